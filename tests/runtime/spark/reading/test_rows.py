"""Which rows a batch becomes, in which columns, and in slices of which size: rfcs/0008."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from read_job import (
    ALL,
    TYPES,
    batch_reader,
    batch_sizes,
    columns,
    fill,
    head_of,
    new_store,
    rows_of,
    ten_batches,
)

from forebay.buffer.base.errors import InvalidInput, Unsupported
from forebay.buffer.format.batch import decode_batch, encode_batch
from forebay.buffer.format.model import BatchDescriptor, Facts, Metadata
from forebay.buffer.format.parquet import DecodedRows
from forebay.buffer.read.fetch import Batch
from forebay.buffer.store.memory import MemoryStore
from forebay.runtime.spark.reading.rows import Rows
from forebay.runtime.spark.reading.times import TimeRange


@pytest.fixture
def store() -> MemoryStore:
    return ten_batches()


def test_rows_of_a_batch_that_is_partly_in_the_time_range_are_cut_exactly() -> None:
    times = (Metadata(1, 1000, b""), Metadata(2, 2000, b""), Metadata(3, 3000, b""))
    descriptor = BatchDescriptor(0, "data/x", times, Facts(1, 1, 4, 0, 1000, 3000))
    batch = Batch(descriptor, decode_batch(encode_batch([b"untimed", b"one", b"two", b"three"])), 1)

    def values_in(since_ms: int | None, until_ms: int | None) -> list[bytes]:
        rows = Rows(columns("value"), TimeRange(since_ms, until_ms))
        return [row["value"] for found in rows.slices(batch, 0) for row in found.to_pylist()]

    assert values_in(1500, 3000) == [b"two"]
    assert values_in(None, 3000) == [b"one", b"two"]
    assert values_in(1000, None) == [b"one", b"two", b"three"], "an entry without a time is in no range of time"
    assert values_in(None, None) == [b"untimed", b"one", b"two", b"three"]


def test_typed_batch_is_refused_where_bytes_were_planned() -> None:
    table = pa.table({"value": pa.array([b"not an entry"])})
    batch = Batch(BatchDescriptor(0, "data/x.parquet"), DecodedRows(table, table.nbytes), 1)
    with pytest.raises(Unsupported, match="rows of a schema"):
        list(Rows(columns("value"), TimeRange(None, None)).slices(batch, 0))


def test_columns_asked_for_come_in_their_order_and_with_their_nullability(store: MemoryStore) -> None:
    wanted = columns("value", "partition", "sequence")
    wanted["value"].nullable = False
    reader = batch_reader(store, wanted, endingSequence=0)
    (batch,) = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert [str(field) for field in batch.schema] == [
        "pyarrow.Field<value: binary not null>",
        "pyarrow.Field<partition: int32>",
        "pyarrow.Field<sequence: int64>",
    ]
    assert batch.to_pylist() == [{"value": b"0", "partition": 0, "sequence": 0}]


def test_all_columns_are_exact(store: MemoryStore) -> None:
    reader = batch_reader(store, startingSequence=2, endingSequence=3)
    assert rows_of(reader, reader.partitions()) == [
        {
            "sequence": number,
            "index": 0,
            "ingestion_time": datetime.fromtimestamp(number, UTC),
            "metadata": b"m",
            "value": b"%d" % number,
        }
        for number in (2, 3)
    ]


def test_column_that_is_not_there_is_refused_with_those_that_are(store: MemoryStore) -> None:
    wrong = columns("sequence")
    wrong["sequence"].dataType = TYPES["value"]
    for schema in (wrong, columns("value").add("values", TYPES["value"])):
        with pytest.raises(InvalidInput, match="the columns are sequence bigint, index int"):
            batch_reader(store, schema).partitions()
    assert head_of(store).holds == {}, "nothing was held for it"


def test_slices_are_bounded_in_rows_and_in_bytes() -> None:
    store = new_store()
    fill(store, [b"x"] * 25_000, [b"y" * 1000] * 10_000, [b"z" * (5 << 20)] * 3)
    reader = batch_reader(store, columns("value"), minPartitions=1)
    (task,) = reader.partitions()
    sizes = batch_sizes(reader.read(task))
    assert sizes[:3] == [10_000, 10_000, 5_000]
    assert sizes[3:6] == [4177, 4177, 1646], "4 MiB of a thousand bytes each, with 4 for the length"
    assert sizes[6:] == [1, 1, 1]


def test_metadata_counts_in_the_size_of_a_slice() -> None:
    store = new_store()
    fill(store, [b"x"] * 1000, metadata=b"p" * (1 << 20))
    reader = batch_reader(store, columns("metadata", "value"))
    (task,) = reader.partitions()
    assert max(batch_sizes(reader.read(task))) == 3
    reader = batch_reader(store, columns("value"))
    (task,) = reader.partitions()
    assert batch_sizes(reader.read(task)) == [1000], "metadata that nobody asked for is not made"


@pytest.mark.parametrize("starts", [(), (0,), (3,), (0, 5), (0, 4, 5, 11)])
def test_slices_together_are_the_rows_of_the_batch(starts: tuple[int, ...]) -> None:
    metadata = tuple(Metadata(start, 1000 * start, b"from %d" % start) for start in starts)
    decoded = decode_batch(encode_batch([b"%d" % number for number in range(12)]))
    batch = Batch(BatchDescriptor(7, "data/x.batch", metadata), decoded, 1)
    found = [row for made in Rows(ALL, TimeRange(), max_rows=5).slices(batch, 0) for row in made.to_pylist()]
    assert found == batch.records().to_pylist()

"""A buffer or topic as one Arrow stream: what it shows, what it holds, and what goes wrong."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from kinds import OF_BYTES

from forebay.buffer.base.errors import Corrupt, Denied, InvalidInput, NotFound, Trimmed
from forebay.buffer.consumer import Consumer
from forebay.buffer.either.scan import scan
from forebay.buffer.either.schemas import evolve_schema
from forebay.buffer.manifest import Queue
from forebay.buffer.producer import Producer
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import TopicProducer, create_topic
from forebay.gc import Collector
from forebay.testing import FaultyStore
from forebay.testing.servers import MotoServer

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("page", pa.string())])
WIDER = pa.schema([*SCHEMA, pa.field("user", pa.string())])


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(f"memory://{request.node.name}")


def fill(store: Any, rows: int, *, schema: pa.Schema | None = SCHEMA, first: int = 0) -> None:
    """One batch for each row."""
    with Producer(store, schema=schema, evolve=schema is not None) as producer:
        for i in range(first, first + rows):
            producer.produce(b"%d" % i if schema is None else {"id": i, "page": f"/{i}"})
            producer.flush().result()


def ids(found: Any) -> list[int]:
    return [row["id"] for row in pa.table(found).to_pylist()]


def test_scan_of_a_typed_buffer_has_its_columns_in_order(store: MemoryStore) -> None:
    fill(store, 5)
    found = scan(store)
    assert found.schema.equals(SCHEMA)
    assert found.to_table().equals(pa.table([list(range(5)), [f"/{i}" for i in range(5)]], schema=SCHEMA))
    assert found.batches == 5


@OF_BYTES
def test_scan_of_bytes_has_a_row_for_each_entry_in_either_version(inner: MemoryStore) -> None:
    for i in range(3):
        with Producer(inner) as producer:
            producer.produce([b"%d" % i, b"x"])
    table = scan(inner).to_table()
    assert table["value"].to_pylist() == [b"0", b"x", b"1", b"x", b"2", b"x"]
    assert table["sequence"].to_pylist() == [0, 0, 1, 1, 2, 2]
    assert table["index"].to_pylist() == [0, 1, 0, 1, 0, 1]


def test_scan_can_be_read_again_and_by_the_c_interface(store: MemoryStore) -> None:
    fill(store, 3)
    found = scan(store)
    assert ids(found) == ids(found) == [0, 1, 2]
    assert [batch.num_rows for batch in found] == [1, 1, 1]
    assert found.to_reader().read_all().num_rows == 3


def test_only_the_named_columns_are_decoded_and_shown_in_that_order(store: MemoryStore) -> None:
    fill(store, 2)
    assert scan(store, ["page", "_sequence"]).to_table().to_pylist() == [
        {"page": "/0", "_sequence": 0},
        {"page": "/1", "_sequence": 1},
    ]
    assert scan(store, ["_index"]).to_table().to_pylist() == [{"_index": 0}, {"_index": 0}]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["paeg"], "^there is no column paeg; the columns are id, page, _sequence"),
        ([], "at least one column"),
        (["id", "id"], "none twice"),
        ("id", r"write \['id'\]"),
    ],
)
def test_columns_that_cannot_be_shown_are_refused_before_anything_is_read(
    store: MemoryStore, columns: Any, message: str
) -> None:
    fill(store, 1)
    with pytest.raises(InvalidInput, match=message):
        scan(store, columns)


def test_start_and_end_are_both_included(store: MemoryStore) -> None:
    fill(store, 6)
    assert ids(scan(store, start=2, end=4)) == [2, 3, 4]
    assert ids(scan(store, start="latest")) == []


def test_range_and_schema_are_fixed_when_the_scan_is_made(store: MemoryStore) -> None:
    fill(store, 2)
    found = scan(store)
    fill(store, 2, schema=WIDER, first=2)
    assert found.to_table().schema.equals(SCHEMA)
    assert ids(found) == [0, 1]
    assert scan(store).to_table().to_pylist()[0] == {"id": 0, "page": "/0", "user": None}


def test_topic_is_read_partition_by_partition(store: MemoryStore) -> None:
    create_topic(store, 3)
    with TopicProducer(store) as producer:
        for i in range(30):
            producer.produce(b"%d" % i, key=b"%d" % i)
    table = scan(store).to_table()
    assert sorted(map(int, table["value"].to_pylist())) == list(range(30))
    assert table.schema.names[0] == "partition"
    assert table["partition"].to_pylist() == sorted(table["partition"].to_pylist())
    assert scan(store, ["value", "partition"]).to_table().column_names == ["value", "partition"]


class _Interrupted(MemoryStore):
    """Does something just before the first read of a partition's manifest."""

    before: Callable[[], None] | None = None

    def get(self, key: str, **options: Any) -> Any:
        before = self.before
        if before is not None and "/manifest" in key:
            self.before = None
            before()
        return super().get(key, **options)


def test_topic_that_evolves_while_it_is_listed_is_shown_in_the_newer_schema() -> None:
    """A topic's record evolves first. So a record that is read after the batches knows the schemas of all of them."""
    store, wider = _Interrupted("memory://evolves-while-listed"), pa.schema([("id", pa.int64())])
    create_topic(store, 1, schema=pa.schema([("id", pa.int32())]))

    def evolve() -> None:
        evolve_schema(store, wider)
        with TopicProducer(store) as producer:
            producer.produce({"id": 1 << 40}).result()

    store.before = evolve
    found = scan(store)
    assert found.schema.equals(wider)
    assert ids(found) == [1 << 40]


def test_typed_topic_has_the_columns_of_the_schema(store: MemoryStore) -> None:
    create_topic(store, 3, schema=SCHEMA)
    with TopicProducer(store) as producer:
        producer.produce([{"id": i} for i in range(30)], key_column="id")
    found = scan(store)
    assert found.schema.equals(SCHEMA)
    assert sorted(ids(found)) == list(range(30))


def test_buffer_without_batches_gives_an_empty_table(store: MemoryStore) -> None:
    fill(store, 0)
    assert scan(store).to_table().equals(SCHEMA.empty_table())
    assert "<th>id" in scan(store)._repr_html_()


def test_missing_buffer_is_not_found(store: MemoryStore) -> None:
    with pytest.raises(NotFound):
        scan(store)


def holds(store: MemoryStore) -> int:
    return len(Queue(store).as_head(Queue(store).read()).holds)


def test_rows_stay_while_they_are_read_and_the_hold_ends_with_the_reader(store: MemoryStore) -> None:
    fill(store, 50)
    reader = iter(scan(store))
    next(reader)
    assert holds(store) == 1
    with Consumer(store, group="etl") as consumer:
        for batch in consumer:
            consumer.ack(batch.sequence)
    Collector(store, grace=0).collect_once()
    assert sum(batch.num_rows for batch in reader) == 49
    assert holds(store) == 0


def test_hold_ends_when_a_reader_is_dropped_half_way(store: MemoryStore) -> None:
    fill(store, 50)
    reader = scan(store).to_reader()
    reader.read_next_batch()
    assert holds(store) == 1
    reader.close()
    del reader
    assert holds(store) == 0


def test_nothing_is_held_or_fetched_before_the_first_batch_is_asked_for(store: MemoryStore) -> None:
    fill(store, 3)
    watched = FaultyStore(store)
    reader = scan(watched).to_reader()
    before = dict(watched.calls)
    assert reader.schema.equals(SCHEMA)
    assert dict(watched.calls) == before


def test_reader_that_may_not_write_reads_without_a_hold_and_says_so(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="forebay")
    fill(store, 3)
    assert ids(scan(_ReadOnly(store))) == [0, 1, 2]
    assert "is read without a hold" in caplog.text


class _ReadOnly(FaultyStore):
    def replace(self, *args: Any, **kwargs: Any) -> Any:
        raise Denied("no rights to write")


def test_batch_that_was_trimmed_before_it_was_read_is_an_error(store: MemoryStore) -> None:
    fill(store, 3)
    found = scan(store)
    with Consumer(store) as consumer:
        for batch in consumer:
            consumer.ack(batch.sequence)
    Collector(store, grace=0).collect_once()
    with pytest.raises(Trimmed):
        found.to_table()


def test_damaged_batch_is_corrupt_and_the_hold_ends(store: MemoryStore) -> None:
    fill(store, 3)
    key = sorted(found.key for found in store.list("data/"))[1]
    store.put(key, b"PAR1 nonsense")
    with pytest.raises(Corrupt):
        scan(store).to_table()
    assert holds(store) == 0


def test_preview_shows_schema_and_rows_and_escapes_them(store: MemoryStore) -> None:
    with Producer(store, schema=SCHEMA) as producer:
        producer.produce({"id": 1, "page": "<b>"})
    shown = scan(store)._repr_html_()
    assert "<th>page<br><small>string</small></th>" in shown
    assert "<td>&lt;b&gt;</td>" in shown
    (batch,) = Consumer(store)
    assert "<th>_sequence" in batch._repr_html_()


def test_notebook_shows_the_progress(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich", reason="the extra cli is not installed")
    fill(store, 3)
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    assert scan(store).to_table().num_rows == 3
    assert "reading batches" in capsys.readouterr().out


@pytest.mark.parametrize("client", ["s3fs", "obstore"])
def test_program_that_ends_in_the_middle_of_a_scan_ends(moto: MotoServer, client: str) -> None:
    url, options = f"s3://tests/scan-exit-{client}", {**moto.storage_options, "client": client}
    with Producer(url, storage_options=options) as producer:
        producer.produce([b"a", b"b"])
    program = f"import forebay\nrows = iter(forebay.scan({url!r}, storage_options={options!r}))\nnext(rows)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

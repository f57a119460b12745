"""Entries that are Arrow IPC streams, and entries as they are."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from forebay.buffer.base.errors import Corrupt
from forebay.runtime.decoders import BadEntry, arrow_ipc, raw
from forebay.testing.commits import make_batch


def stream(table: pa.Table, **options: object) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=2)
    return bytes(out.getvalue())


TABLE = pa.table({"page": ["/", None, "/cart"], "tags": [["a"], [], None]})


def test_raw_gives_the_records_of_the_batch() -> None:
    batch = make_batch([b"x", b"y"], 3, metadata=b"svc=web")
    assert raw(batch) == batch.records()
    assert raw(batch)["value"].to_pylist() == [b"x", b"y"]


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_streams_of_a_batch_become_one_table_in_order(compression: str | None) -> None:
    entry = stream(TABLE, compression=compression)
    assert arrow_ipc(make_batch([entry, entry])) == pa.concat_tables([TABLE, TABLE])


def test_batch_without_entries_gives_no_rows() -> None:
    assert arrow_ipc(make_batch([])).num_rows == 0


def test_stream_without_rows_keeps_the_columns() -> None:
    assert arrow_ipc(make_batch([stream(TABLE.slice(0, 0))])).schema == TABLE.schema


@pytest.mark.parametrize(
    "bad", [b"", b"no stream", stream(TABLE)[:-40], b"\xff" * 64], ids=["empty", "text", "cut", "ff"]
)
def test_entry_that_is_no_stream_is_named(bad: bytes) -> None:
    with pytest.raises(BadEntry, match="entry 1 of") as raised:
        arrow_ipc(make_batch([stream(TABLE), bad], 5))
    assert (raised.value.sequence, raised.value.index) == (5, 1)


def test_entry_with_other_columns_is_named_with_both_schemas() -> None:
    with pytest.raises(BadEntry, match=r"entry 1 .* has the columns other int64, and most entries have page string"):
        arrow_ipc(make_batch([stream(TABLE), stream(pa.table({"other": [1]}))]))


def test_damaged_streams_give_rows_that_hold_or_a_typed_error() -> None:
    """The reader believes offsets: without the check, some of these tables crash the process that looks at them."""
    random, good, refused = Random(7), stream(TABLE), 0
    for _ in range(600):
        damaged = bytearray(good)
        for _ in range(random.randrange(1, 4)):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        try:
            arrow_ipc(make_batch([bytes(damaged)])).validate(full=True)
        except (Corrupt, MemoryError):
            refused += 1
    assert refused > 100

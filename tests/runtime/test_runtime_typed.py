"""The runtime reads typed buffers without a decoder, and refuses what would misread them."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filled import run
from typed_data import EVERY_TYPE

from forebay.buffer.base.errors import ForebayError
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.schema import check_schema
from forebay.buffer.manifest import Queue
from forebay.buffer.producer import Producer
from forebay.buffer.read.fetch import Batch
from forebay.buffer.store.memory import MemoryStore
from forebay.runtime import Combining
from forebay.runtime.decoders import JsonLines
from forebay.runtime.letter_replay import Replay
from forebay.runtime.sinks import BufferSink, CallableSink, ParquetSink

SCHEMA = pa.schema([pa.field("id", pa.int64())])


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    store = MemoryStore(f"memory://{request.node.name}")
    with Producer(store, schema=SCHEMA) as producer:
        producer.produce([{"id": 1}, {"id": 2}])
    return store


def test_sink_gets_the_rows_as_they_are_without_a_decoder(store: MemoryStore) -> None:
    given: list[pa.Table] = []
    run(store, CallableSink(lambda commit: given.append(commit.table)))
    assert [table.to_pylist() for table in given] == [[{"id": 1}, {"id": 2}]]
    assert given[0].schema.equals(SCHEMA)


def test_decoder_of_bytes_stops_the_runtime_and_buries_nothing(store: MemoryStore) -> None:
    letters = MemoryStore("memory://typed-letters")
    with pytest.raises(ForebayError, match=r"holds rows of a schema: .* leave out the decoder"):
        run(store, CallableSink(lambda _: None), decoder=JsonLines(SCHEMA), dead_letters=Producer(letters))
    assert not list(letters.list("data/"))


def test_sink_that_copies_bytes_refuses_a_typed_target(store: MemoryStore) -> None:
    source: Any = MemoryStore("memory://bytes-to-typed")
    with Producer(source) as producer:
        producer.produce(b"x")
    with pytest.raises(ForebayError, match="they are entries of bytes, so decode them first"):
        run(source, BufferSink(store))


def rows_of(store: Any) -> list[Any]:
    return [row for batch in Consumer(store, group="looks") for row in batch.entries]


def evolve(store: MemoryStore) -> None:
    with Producer(store, schema=WIDER, evolve=True) as producer:
        producer.produce({"id": 3, "at": {"x": 1, "y": 2}})


NESTED = pa.schema([pa.field("id", pa.int32()), pa.field("at", pa.struct([pa.field("x", pa.int64())]))])
WIDER = pa.schema([pa.field("id", pa.int64()), pa.field("at", pa.struct([("x", pa.int64()), ("y", pa.int64())]))])
LANDED = [{"id": 1, "at": {"x": 1, "y": None}}, {"id": 3, "at": {"x": 1, "y": 2}}]


@pytest.fixture
def nested(request: pytest.FixtureRequest) -> MemoryStore:
    store = MemoryStore(f"memory://nested-{request.node.name}")
    with Producer(store, schema=NESTED) as producer:
        producer.produce({"id": 1, "at": {"x": 1}})
    return store


def test_schema_that_grows_while_a_runtime_lands_in_parquet_loses_and_doubles_nothing(nested: MemoryStore) -> None:
    """The second batch is of another version, and comes while the first one is fetched."""
    files = MemoryStore("memory://nested-files")
    evolved: list[bool] = []

    def decode(batch: Batch) -> pa.Table:
        if not evolved:
            evolved.append(True)
            evolve(nested)
        return batch.table

    run(nested, ParquetSink(files, combining=Combining(1 << 20)), decoder=decode)
    run(nested, ParquetSink(files))
    found = [pq.read_table(pa.BufferReader(bytes(files.get(item.key).data))) for item in files.list("")]
    rows = sorted((row for table in found for row in table.to_pylist()), key=lambda row: row["id"])
    assert [row["id"] for row in rows] == [1, 3]


def test_batches_of_two_versions_are_one_table_in_the_widest_schema(nested: MemoryStore) -> None:
    evolve(nested)
    given: list[pa.Table] = []
    narrow = {0: NESTED}

    def decode(batch: Batch) -> pa.Table:
        """Show the first batch as a reader did that looked before the schema grew."""
        return batch.table if batch.sequence not in narrow else pa.table({"id": [1], "at": [{"x": 1}]}, schema=NESTED)

    sink = CallableSink(lambda commit: given.append(commit.table), combining=Combining(1 << 20))
    run(nested, sink, decoder=decode)
    assert [table.to_pylist() for table in given] == [LANDED]
    assert given[0].schema.equals(WIDER)


def test_rows_are_copied_to_a_new_typed_buffer_that_grows_with_the_source(nested: MemoryStore) -> None:
    target = MemoryStore("memory://typed-copy")
    for _ in range(2):
        with BufferSink(target, evolve=True) as sink:
            run(nested, sink)
    evolve(nested)
    with BufferSink(target, evolve=True) as sink:
        run(nested, sink)
    assert rows_of(target) == LANDED


def test_target_that_lacks_a_column_of_the_source_halts_with_its_name(store: MemoryStore) -> None:
    target = MemoryStore("memory://typed-narrow")
    Producer(target, schema=pa.schema([pa.field("other", pa.int64())])).close()
    with BufferSink(target) as sink, pytest.raises(ForebayError, match=r"column id: added, int64"):
        run(store, sink)
    assert rows_of(target) == []


def test_rows_are_refused_by_a_buffer_of_bytes(store: MemoryStore) -> None:
    target = MemoryStore("memory://typed-to-bytes")
    with Producer(target) as producer:
        producer.produce(b"x")
    with BufferSink(target) as sink, pytest.raises(ForebayError, match="copy them to a typed buffer"):
        run(store, sink)
    assert rows_of(target) == [b"x"]


def refuse_two(batch: Batch) -> pa.Table:
    if 2 in batch.table["id"].to_pylist():
        raise ValueError("2 is bad")
    return batch.table


def test_letter_holds_the_bad_row_alone_and_is_replayed_as_the_same_row(store: MemoryStore) -> None:
    letters = MemoryStore("memory://typed-row-letters")
    given: list[Any] = []
    with Producer(letters) as dead:
        run(
            store,
            CallableSink(lambda commit: given.extend(commit.table.to_pylist())),
            decoder=refuse_two,
            dead_letters=dead,
        )
    assert given == [{"id": 1}]
    assert rows_of(letters) == [b'{"id":2}']
    work = Replay(Queue(letters), None, lambda _url, name: Producer(store, writer_id=name), group="replay")
    (done,) = work.run()
    assert (done.skipped, done.kept.letter.rows, done.kept.letter.place) == ("", True, "entry 1")
    assert rows_of(store) == [{"id": 1}, {"id": 2}, {"id": 2}]


def test_rows_of_every_type_are_replayed_as_they_were() -> None:
    schema = check_schema(pa.schema([pa.field(name, kind) for name, kind, _ in EVERY_TYPE]))
    # JSON has no infinity.
    held = [[1.5 if value == math.inf else value for value in values] for _, _, values in EVERY_TYPE]
    table = pa.table([pa.array(values, field.type) for values, field in zip(held, schema, strict=True)], schema=schema)
    source, letters = MemoryStore("memory://every-type"), MemoryStore("memory://every-type-letters")
    with Producer(source, schema=schema) as producer:
        producer.produce(table)

    def refuse(_batch: Batch) -> pa.Table:
        raise ValueError("all are bad")

    with Producer(letters) as dead:
        run(source, CallableSink(lambda _: None), decoder=refuse, dead_letters=dead)
    work = Replay(Queue(letters), None, lambda _url, name: Producer(source, writer_id=name), group="replay")
    assert [(done.skipped, done.kept.letter.count) for done in work.run()] == [("", 3)]
    kept, replayed = (batch.table for batch in Consumer(source))
    assert kept.equals(table)
    assert [name for name in schema.names if not replayed[name].equals(table[name])] == []


def test_row_that_no_json_document_can_hold_is_kept_as_its_object_and_not_replayed() -> None:
    source, letters = MemoryStore("memory://infinite"), MemoryStore("memory://infinite-letters")
    with Producer(source, schema=pa.schema([pa.field("id", pa.float64())])) as producer:
        producer.produce([{"id": 1.0}, {"id": math.inf}])

    def refuse(batch: Batch) -> pa.Table:
        if math.inf in batch.table["id"].to_pylist():
            raise ValueError("infinity is bad")
        return batch.table

    with Producer(letters) as dead:
        run(source, CallableSink(lambda _: None), decoder=refuse, dead_letters=dead)
    work = Replay(Queue(letters), None, lambda _url, name: Producer(source, writer_id=name), group="replay")
    assert [done.skipped for done in work.run()] == ["it holds an object that could not be used, and no entries"]
    (listed,) = Queue(source).descriptors(0, 10)
    assert rows_of(letters) == [bytes(source.get(listed.location).data)]


def test_letter_of_rows_is_not_replayed_to_a_buffer_of_bytes(store: MemoryStore) -> None:
    letters = MemoryStore("memory://typed-wrong-letters")
    with Producer(letters) as dead:
        run(store, CallableSink(lambda _: None), decoder=refuse_two, dead_letters=dead)
    target = MemoryStore("memory://typed-wrong-target")
    work = Replay(Queue(letters), target.url, lambda _url, name: Producer(target, writer_id=name), group="replay")
    with pytest.raises(ForebayError, match="holds rows, and memory://typed-wrong-target holds bytes"):
        list(work.run())

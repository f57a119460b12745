"""Parquet files named for what they hold: whole or not at all, and a replay overwrites itself."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from forebay.buffer.base.errors import InvalidInput, Unavailable, Unknown
from forebay.buffer.producer import Producer
from forebay.buffer.store.base import ObjectStore
from forebay.buffer.store.memory import MemoryStore
from forebay.runtime import Runtime, Source
from forebay.runtime.contract import Combining, Commit, Committed, Fatal
from forebay.runtime.decoders import JsonLines
from forebay.runtime.sinks import ParquetSink
from forebay.testing import Crash, Fault, FaultyStore
from forebay.testing.commits import make_batch, make_commit
from forebay.testing.servers import SeaweedServer

JAN_31 = 1_769_817_600_000
MIDNIGHT = 1_769_904_000_000
"""2026-02-01."""
TEXT_VIEW = pa.string_view()
"""Arrow does not count how many values of this type differ."""
OVER_MIDNIGHT = make_commit(make_batch([b"a", b"b"], 4, time_ms=MIDNIGHT - 1), make_batch([b"c"], 5, time_ms=MIDNIGHT))
ONE_DAY = make_commit(make_batch([b"a", b"b"], 4, time_ms=JAN_31))


def keys(store: ObjectStore) -> list[str]:
    return [found.key for found in store.list()]


def values(store: ObjectStore) -> list[bytes]:
    found = [pq.read_table(io.BytesIO(store.get(key).data))["value"].to_pylist() for key in keys(store)]
    return [value for file in found for value in file]


def test_commit_is_one_file_named_for_its_identity() -> None:
    store = MemoryStore("memory://parquet-one")
    assert ParquetSink(store).commit(ONE_DAY) == Committed()
    (name,) = keys(store)
    assert name == f"{'5' * 32}.tests.{'9' * 32}.{4:020}-{4:020}.parquet"
    assert pq.read_table(io.BytesIO(store.get(name).data)) == ONE_DAY.table


def test_files_of_different_readers_and_ranges_have_different_names() -> None:
    store, batch = MemoryStore("memory://parquet-names"), make_batch([b"x"])
    sink = ParquetSink(store)
    for commit in (
        make_commit(batch),
        make_commit(batch, make_batch([b"y"], 1)),
        make_commit(batch, group=""),
        make_commit(batch, group="others"),
        make_commit(batch, source="6" * 32),
    ):
        sink.commit(commit)
    assert len(keys(store)) == 5


def test_replay_overwrites_itself() -> None:
    store = MemoryStore("memory://parquet-replay")
    for _ in range(3):
        ParquetSink(store).commit(ONE_DAY)
    assert values(store) == [b"a", b"b"]


def test_column_whose_values_hardly_repeat_is_written_without_a_dictionary() -> None:
    store = MemoryStore("memory://parquet-distinct")
    rows = pa.table({"distinct": list(range(5000)), "repeats": [1] * 5000, "other": pa.array(["a"] * 5000, TEXT_VIEW)})
    ParquetSink(store).commit(make_commit(make_batch([b"x"]), decoder=lambda _: rows))
    (name,) = keys(store)
    group = pq.ParquetFile(io.BytesIO(store.get(name).data)).metadata.row_group(0)
    assert [group.column(i).has_dictionary_page for i in range(3)] == [False, True, True]


def test_check_says_whether_the_file_is_there() -> None:
    store = MemoryStore("memory://parquet-check")
    sink = ParquetSink(store)
    other = make_commit(make_batch([b"z"], 4), make_batch([b"z"], 40))  # the name begins alike
    sink.commit(other)
    assert sink.check_committed(ONE_DAY.identity) is False
    sink.commit(ONE_DAY)
    assert sink.check_committed(ONE_DAY.identity) is True


def test_by_date_each_date_has_a_file_in_its_folder() -> None:
    store = MemoryStore("memory://parquet-dates")
    assert ParquetSink(store, by_date=True).commit(OVER_MIDNIGHT) == Committed()
    name = f"{OVER_MIDNIGHT.identity.name}.parquet"
    assert keys(store) == [f"ingestion_date=2026-01-31/{name}", f"ingestion_date=2026-02-01/{name}"]
    assert values(store) == [b"a", b"b", b"c"]


def test_rows_without_a_time_have_a_folder_of_their_own() -> None:
    store = MemoryStore("memory://parquet-undated")
    table = pa.table({"x": [1, 2], "ingestion_time": pa.array([None, JAN_31 * 1000], pa.timestamp("us", "UTC"))})
    ParquetSink(store, by_date=True).commit(make_commit(make_batch([b"x"]), decoder=lambda _batch: table))
    assert [key.partition("/")[0] for key in keys(store)] == [
        "ingestion_date=2026-01-31",
        "ingestion_date=__HIVE_DEFAULT_PARTITION__",
    ]


def test_dates_are_read_back_as_a_column_by_arrow(tmp_path: Path) -> None:
    ParquetSink(f"file://{tmp_path}", by_date=True).commit(OVER_MIDNIGHT)
    found = ds.dataset(tmp_path, partitioning="hive").to_table(filter=ds.field("ingestion_date") == "2026-02-01")
    assert found["value"].to_pylist() == [b"c"]


def test_by_date_without_times_halts_and_says_what_to_do() -> None:
    decoder = JsonLines(pa.schema([("count", pa.int64())]))
    sink = ParquetSink("memory://parquet-timeless", by_date=True)
    answer = sink.commit(make_commit(make_batch([b"{}"]), decoder=decoder))
    assert isinstance(answer, Fatal)
    assert "let the decoder keep it" in answer.reason
    assert not answer.poison


AT = pa.array([MIDNIGHT * 1000 - 1, MIDNIGHT * 1000, None], pa.timestamp("us", "UTC"))


def commit_of(table: pa.Table) -> Commit:
    return make_commit(make_batch([b"x"] * table.num_rows), decoder=lambda _batch: table)


def folders(store: ObjectStore) -> list[str]:
    return [key.partition("/")[0] for key in keys(store)]


@pytest.mark.parametrize(
    "column",
    [AT, AT.cast(pa.timestamp("us", "Asia/Tokyo")), AT.cast(pa.timestamp("us")), AT.cast(pa.date32())],
    ids=["UTC", "another zone", "no zone", "date"],
)
def test_by_date_of_a_named_column_makes_folders_of_its_utc_dates(column: pa.Array) -> None:
    store = MemoryStore(f"memory://parquet-event-{column.type}".replace(" ", "").replace("[", "-").replace("]", ""))
    assert ParquetSink(store, by_date="ts").commit(commit_of(pa.table({"ts": column}))) == Committed()
    assert folders(store) == ["ts_date=2026-01-31", "ts_date=2026-02-01", "ts_date=__HIVE_DEFAULT_PARTITION__"]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"other": pa.string()}, "files by date need the column ts, and the rows have other: name another column"),
        ({"ts": pa.string()}, "files by date need a timestamp or a date, and column ts is string"),
        ({"ts": pa.date32(), "ts_date": pa.string()}, "the folders are named ts_date, and the rows have a column"),
    ],
    ids=["missing", "no time", "name of the folders"],
)
def test_by_date_of_a_column_that_gives_no_dates_is_refused_before_and_while_rows_are_written(
    columns: dict[str, pa.DataType], told: str
) -> None:
    sink, schema = ParquetSink("memory://parquet-dateless", by_date="ts"), pa.schema(list(columns.items()))
    with pytest.raises(InvalidInput, match=told):
        sink.plan(schema)
    answer = sink.commit(commit_of(pa.Table.from_pylist([{}], schema)))
    assert isinstance(answer, Fatal)
    assert told in answer.reason


def test_by_date_names_no_folder_of_folders() -> None:
    with pytest.raises(InvalidInput, match="by_date must be True, False or the name of a column without / and ="):
        ParquetSink("memory://parquet-slash", by_date="a/b")


def test_typed_rows_land_by_the_date_of_their_own_column() -> None:
    store, files = MemoryStore("memory://parquet-typed"), MemoryStore("memory://parquet-typed-files")
    schema = pa.schema([pa.field("ts", pa.timestamp("us", "UTC")), pa.field("n", pa.int64())])
    with Producer(store, schema=schema) as producer:
        producer.produce(pa.table({"ts": AT, "n": [1, 2, 3]}, schema=schema))
    with pytest.raises(InvalidInput, match="ingestion_time"):
        Runtime([Source(store, group="etl")], ParquetSink(files, by_date=True)).run(until_caught_up=True)
    Runtime([Source(store, group="etl")], ParquetSink(files, by_date="ts")).run(until_caught_up=True)
    assert len(folders(files)) == 3


def test_plan_refuses_columns_that_parquet_cannot_hold_and_creates_nothing(tmp_path: Path) -> None:
    sink = ParquetSink(f"file://{tmp_path}/files")
    with pytest.raises(InvalidInput, match="cannot be written as Parquet"):
        sink.plan(pa.schema([("x", pa.month_day_nano_interval())]))
    assert sink.plan(pa.schema([("x", pa.int64())])).target == "a new Parquet file for each commit"
    assert not Path(tmp_path, "files").exists()


@pytest.mark.parametrize("fault", [Fault.CRASH, Fault.CRASH_AFTER])
@pytest.mark.parametrize("call", [0, 1])
def test_dying_between_the_files_of_a_commit_leaves_what_a_replay_completes(call: int, fault: Fault) -> None:
    store = MemoryStore(f"memory://parquet-crash-{call}-{fault.name}")
    with pytest.raises(Crash):
        ParquetSink(FaultyStore(store, {call: fault}), by_date=True).commit(OVER_MIDNIGHT)
    sink = ParquetSink(store, by_date=True)
    assert sink.check_committed(OVER_MIDNIGHT.identity) is False
    assert sink.commit(OVER_MIDNIGHT) == Committed()
    assert values(store) == [b"a", b"b", b"c"]


def test_failures_of_the_store_are_told_as_they_are() -> None:
    """The runtime reads them: `Unavailable` did nothing, `Unknown` may have."""
    for fault, error in ((Fault.FAIL, Unavailable), (Fault.LOSE_ANSWER, Unknown)):
        store = FaultyStore(MemoryStore(f"memory://parquet-{fault.name}"), {0: fault})
        with pytest.raises(error):
            ParquetSink(store).commit(ONE_DAY)


def test_check_after_a_lost_answer_finds_the_file() -> None:
    store = MemoryStore("memory://parquet-lost")
    with pytest.raises(Unknown):
        ParquetSink(FaultyStore(store, {0: Fault.LOSE_ANSWER})).commit(ONE_DAY)
    assert ParquetSink(store).check_committed(ONE_DAY.identity) is True


def test_columns_that_parquet_cannot_hold_halt_and_write_nothing() -> None:
    store = MemoryStore("memory://parquet-unfit")
    table = pa.table({"x": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    answer = ParquetSink(store).commit(make_commit(make_batch([b"x"]), decoder=lambda _batch: table))
    assert isinstance(answer, Fatal)
    assert "cannot be written as Parquet" in answer.reason
    assert keys(store) == []


def test_batches_are_combined_unless_told_otherwise() -> None:
    assert ParquetSink("memory://parquet-combined").combining == Combining(target_bytes=128 << 20)
    assert ParquetSink("memory://parquet-combined", combining=None).combining is None


def test_files_go_to_s3(weed: SeaweedServer) -> None:
    sink = ParquetSink("s3://tests/parquet-sink", storage_options=weed.storage_options)
    assert sink.check_committed(ONE_DAY.identity) is False
    assert sink.commit(ONE_DAY) == Committed()
    assert sink.check_committed(ONE_DAY.identity) is True

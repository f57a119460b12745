"""An Iceberg table that takes each commit once, even if it is repeated or its answer is lost (rfcs/0011)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from patience import PATIENCE
from pyarrow.parquet import read_table
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from forebay.buffer.base.clock import Random
from forebay.buffer.base.errors import Corrupt, InvalidInput, Unavailable, Unsupported
from forebay.runtime.contract import Combining, Commit, Committed, Fatal, MaybeCommitted, NotCommitted
from forebay.runtime.sinks import IcebergSink
from forebay.testing import Crash, Fault, FaultyCatalog
from forebay.testing.commits import make_batch, make_commit

TABLE = "lake.clicks"
READER = f"{'5' * 32}.tests.{'9' * 32}"


def properties(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with load_catalog("default", **properties(tmp_path)) as catalog:
        yield catalog


@pytest.fixture
def sink(catalog: Catalog) -> IcebergSink:
    return IcebergSink(catalog, TABLE)


def commit_of(first: int, last: int | None = None, **kwargs: Any) -> Commit:
    sequences = range(first, (first if last is None else last) + 1)
    return make_commit(*(make_batch([b"entry %d" % i], i) for i in sequences), **kwargs)


def rows_of(rows: pa.Table, sequence: int = 0) -> Commit:
    return make_commit(make_batch([b"x"], sequence), decoder=lambda _: rows)


def values(catalog: Catalog) -> list[bytes]:
    found: list[bytes] = catalog.load_table(TABLE).scan().to_arrow()["value"].to_pylist()
    return sorted(found)


def entries(*numbers: int) -> list[bytes]:
    return sorted(b"entry %d" % i for i in numbers)


class Meanwhile(FaultyCatalog):
    """Somebody acts between the sink's look at the table and its commit."""

    def __init__(self, inner: Catalog, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._acts = [act]

    def next_fault(self, kind: str) -> Fault | None:
        if kind == "commit_table" and self._acts:
            self._acts.pop()()
        return None


# One after the other


def test_table_is_created_and_says_how_far_its_reader_has_come(catalog: Catalog, sink: IcebergSink) -> None:
    commit = commit_of(0, 3)
    assert sink.commit(commit) == Committed()
    table = catalog.load_table(TABLE)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert table.scan().to_arrow().to_pylist() == commit.table.to_pylist()
    assert table.properties[f"forebay.position.{READER}"] == (
        f'{{"sequence":3,"snapshot_id":{snapshot.snapshot_id},"sequence_number":1}}'
    )
    assert snapshot.summary is not None
    told = {name: value for name, value in snapshot.summary.additional_properties.items() if "forebay" in name}
    assert told == {"forebay.reader": READER, "forebay.first-sequence": "0", "forebay.last-sequence": "3"}


def test_commits_follow_one_another_in_one_snapshot_each(catalog: Catalog, sink: IcebergSink) -> None:
    for first in range(0, 9, 3):
        assert sink.commit(commit_of(first, first + 2)) == Committed()
    assert values(catalog) == entries(*range(9))
    assert len(catalog.load_table(TABLE).snapshots()) == 3


def test_commit_given_again_is_committed_and_not_repeated(catalog: Catalog, sink: IcebergSink) -> None:
    for _ in range(3):
        assert sink.commit(commit_of(0, 1)) == Committed()
        assert IcebergSink(catalog, TABLE).commit(commit_of(0, 1)) == Committed()
    assert values(catalog) == entries(0, 1)


def test_column_whose_values_hardly_repeat_is_written_without_a_dictionary(catalog: Catalog, sink: IcebergSink) -> None:
    rows = pa.table({"distinct": list(range(5000)), "repeats": [1] * 5000})
    assert sink.commit(rows_of(rows)) == Committed()
    (file,) = catalog.load_table(TABLE).inspect.files()["file_path"].to_pylist()
    group = pq.ParquetFile(file.removeprefix("file://")).metadata.row_group(0)
    assert [group.column(i).has_dictionary_page for i in range(2)] == [False, True]


def test_check_says_whether_the_table_has_come_so_far(catalog: Catalog, sink: IcebergSink) -> None:
    assert sink.check_committed(commit_of(0, 1).identity) is False
    sink.commit(commit_of(0, 1))
    for asked in (sink, IcebergSink(catalog, TABLE)):
        assert asked.check_committed(commit_of(0, 1).identity) is True
        assert asked.check_committed(commit_of(2).identity) is False


def test_readers_do_not_know_of_each_other(catalog: Catalog, sink: IcebergSink) -> None:
    for kwargs in ({"group": "a"}, {"group": "b"}, {"group": ""}, {"source": "6" * 32}):
        assert sink.commit(commit_of(0, **kwargs)) == Committed()
    assert values(catalog) == entries(0) * 4


def test_gaps_are_no_obstacle(sink: IcebergSink) -> None:
    """Batches without rows, and those that went to the dead letters, are never committed."""
    assert sink.commit(commit_of(2)) == Committed()
    assert sink.commit(commit_of(7, 8)) == Committed()
    assert sink.check_committed(commit_of(4).identity) is True


def test_commit_without_rows_moves_the_position_by_a_snapshot(catalog: Catalog, sink: IcebergSink) -> None:
    """A position that moved without one would not be noticed by an append that was prepared before it."""
    sink.commit(commit_of(0))
    assert sink.commit(make_commit(make_batch([b"x"], 1), decoder=lambda batch: batch.records()[:0])) == Committed()
    table = catalog.load_table(TABLE)
    assert len(table.snapshots()) == 2
    assert '"sequence":1,' in table.properties[f"forebay.position.{READER}"]
    assert values(catalog) == entries(0)


def test_range_that_is_half_there_halts(catalog: Catalog, sink: IcebergSink) -> None:
    sink.commit(commit_of(0, 3))
    answer = sink.commit(commit_of(2, 5))
    assert isinstance(answer, Fatal)
    assert not answer.poison
    assert "up to sequence 3" in answer.reason
    assert values(catalog) == entries(0, 1, 2, 3)


# Others who write


def test_rival_that_commits_the_same_between_look_and_commit_wins(catalog: Catalog, sink: IcebergSink) -> None:
    """The retry of pyiceberg would append again here, after the position has moved."""
    sink.commit(commit_of(0))
    late = IcebergSink(Meanwhile(catalog, lambda: sink.commit(commit_of(1))), TABLE)
    assert late.commit(commit_of(1)) == Committed()
    assert values(catalog) == entries(0, 1)


def test_rival_that_comes_further_between_look_and_commit_wins(catalog: Catalog, sink: IcebergSink) -> None:
    """The rival took over, and this one does not know yet that it is fenced."""
    sink.commit(commit_of(0))
    late = IcebergSink(Meanwhile(catalog, lambda: [sink.commit(commit_of(i)) for i in (1, 2, 3)]), TABLE)
    assert late.commit(commit_of(1)) == Committed()
    assert values(catalog) == entries(0, 1, 2, 3)


def test_rival_that_moves_the_position_without_rows_is_noticed(catalog: Catalog, sink: IcebergSink) -> None:
    sink.commit(commit_of(0))
    empty = make_commit(make_batch([b"x"], 1), decoder=lambda batch: batch.records()[:0])
    late = IcebergSink(Meanwhile(catalog, lambda: sink.commit(empty)), TABLE)
    assert late.commit(commit_of(1)) == Committed()
    assert values(catalog) == entries(0)


def test_the_tables_own_retry_setting_does_not_weaken_the_fence(catalog: Catalog, sink: IcebergSink) -> None:
    sink.commit(commit_of(0))
    with catalog.load_table(TABLE).transaction() as change:
        change.set_properties({"commit.retry.num-retries": "10", "commit.retry.min-wait-ms": "0"})
    late = IcebergSink(Meanwhile(catalog, lambda: sink.commit(commit_of(1, 2))), TABLE)
    assert late.commit(commit_of(1, 2)) == Committed()
    assert values(catalog) == entries(0, 1, 2)


def test_others_who_write_to_the_table_meanwhile_do_no_harm(catalog: Catalog, sink: IcebergSink) -> None:
    sink.commit(commit_of(0))

    def act() -> None:
        sink.commit(commit_of(0, group="others"))
        table = catalog.load_table(TABLE)
        table.append(commit_of(9).table.cast(table.schema().as_arrow()))
        with table.transaction() as change:
            change.set_properties(owner="somebody")

    assert IcebergSink(Meanwhile(catalog, act), TABLE).commit(commit_of(1)) == Committed()
    assert values(catalog) == entries(0, 0, 1, 9)


def test_table_that_others_write_to_all_the_time_is_asked_later(catalog: Catalog, sink: IcebergSink) -> None:
    busy = FaultyCatalog(catalog, dict.fromkeys(range(100), Fault.BUSY), only=["commit_table"])
    answer = IcebergSink(busy, TABLE).commit(commit_of(0))
    assert isinstance(answer, MaybeCommitted)
    assert "4 attempts met commits of other writers" in answer.reason
    assert sink.commit(commit_of(0)) == Committed()
    assert values(catalog) == entries(0)


def test_column_that_is_added_meanwhile_is_null(catalog: Catalog, sink: IcebergSink) -> None:
    sink.commit(commit_of(0))

    def act() -> None:
        with catalog.load_table(TABLE).update_schema() as change:
            change.add_column("added", StringType())

    assert IcebergSink(Meanwhile(catalog, act), TABLE).commit(commit_of(1)) == Committed()
    assert values(catalog) == entries(0, 1)


def test_partitioning_that_changes_meanwhile_is_followed(catalog: Catalog, sink: IcebergSink) -> None:
    sink.commit(commit_of(0))

    def act() -> None:
        with catalog.load_table(TABLE).update_spec() as change:
            change.add_identity("sequence")

    assert IcebergSink(Meanwhile(catalog, act), TABLE).commit(commit_of(1, 3)) == Committed()
    files = [task.file.file_path for task in catalog.load_table(TABLE).scan().plan_files()]
    folders = ["data", "sequence=1", "sequence=2", "sequence=3"]
    assert sorted(Path(file).parent.name for file in files) == folders
    assert values(catalog) == entries(0, 1, 2, 3)


def test_table_that_is_created_again_meanwhile_gets_no_commit_of_the_old_one(
    catalog: Catalog, sink: IcebergSink
) -> None:
    def act() -> None:
        schema = catalog.load_table(TABLE).schema()
        catalog.drop_table(TABLE)
        catalog.create_table(TABLE, schema, location=f"{catalog.properties['warehouse']}/again")

    late = IcebergSink(Meanwhile(catalog, act), TABLE)
    assert late.commit(commit_of(0)) == Committed()
    table = catalog.load_table(TABLE)
    assert [Path(task.file.file_path).parts[-3] for task in table.scan().plan_files()] == ["again"]


def test_sinks_in_many_threads_that_commit_the_same_leave_it_once(catalog: Catalog, sink: IcebergSink) -> None:
    sink.commit(commit_of(0))
    barrier = Barrier(4)
    met = [FaultyCatalog(catalog) for _ in range(4)]

    def race(number: int) -> None:
        sink = IcebergSink(met[number], TABLE)
        for sequence in range(1, 6):
            barrier.wait(timeout=PATIENCE)
            while sink.commit(commit_of(sequence)) != Committed():
                pass

    with ThreadPoolExecutor(4) as runtimes:
        list(runtimes.map(race, range(4)))
    assert sum(catalog.calls["commit_table"] for catalog in met) > 5, "no two of them met"
    assert values(catalog) == entries(*range(6))


def test_sources_of_one_runtime_share_the_sink(catalog: Catalog, sink: IcebergSink) -> None:
    def run(source: str) -> None:
        for sequence in range(3):
            assert sink.commit(commit_of(sequence, source=source * 32)) == Committed()

    with ThreadPoolExecutor(3) as sources:
        list(sources.map(run, "abc"))
    assert values(catalog) == sorted(entries(0, 1, 2) * 3)


def test_runtimes_that_create_the_table_at_once_lose_nothing(catalog: Catalog) -> None:
    barrier = Barrier(4)

    def run(source: str) -> None:
        sink = IcebergSink(catalog, TABLE)
        barrier.wait(timeout=PATIENCE)
        while sink.commit(commit_of(0, source=source * 32)) != Committed():
            pass

    with ThreadPoolExecutor(4) as runtimes:
        list(runtimes.map(run, "abcd"))
    assert values(catalog) == entries(0) * 4


# Faults


@pytest.mark.parametrize("call", ["load_table", "create_namespace", "create_table", "commit_table"])
@pytest.mark.parametrize(
    "fault",
    [
        *(Fault.FAIL, Fault.LOSE_ANSWER, Fault.DROP, Fault.LATE, Fault.OWN_RETRY, Fault.BUSY, Fault.OVERLOADED),
        *(Fault.THROTTLED, Fault.CRASH, Fault.CRASH_AFTER),
    ],
)
def test_any_fault_at_any_call_of_the_catalog_leaves_the_rows_once(catalog: Catalog, call: str, fault: Fault) -> None:
    faulty = FaultyCatalog(catalog, {0: fault}, only=[call])
    answers: list[Any] = []
    for _ in range(8):
        sink = IcebergSink(faulty, TABLE)
        try:
            if not sink.check_committed(commit_of(0, 1).identity):
                answers.append(sink.commit(commit_of(0, 1)))
        except (Crash, Unavailable, RuntimeError) as error:
            answers.append(error)
    assert answers.count(Committed()) <= 1
    assert not [answer for answer in answers if isinstance(answer, Fatal)]
    faulty.land_late_requests()
    assert values(catalog) == entries(0, 1)
    assert len(catalog.load_table(TABLE).snapshots()) == 1


def test_commit_that_lands_after_its_retry_is_refused(catalog: Catalog) -> None:
    faulty = FaultyCatalog(catalog, {0: Fault.LATE}, only=["commit_table"])
    sink = IcebergSink(faulty, TABLE)
    assert isinstance(sink.commit(commit_of(0)), MaybeCommitted)
    assert IcebergSink(catalog, TABLE).commit(commit_of(0)) == Committed()
    faulty.land_late_requests()
    assert values(catalog) == entries(0)


def test_commit_that_lands_before_its_retry_is_found(catalog: Catalog) -> None:
    faulty = FaultyCatalog(catalog, {0: Fault.LATE}, only=["commit_table"])
    sink = IcebergSink(faulty, TABLE)
    assert isinstance(sink.commit(commit_of(0)), MaybeCommitted)
    assert sink.check_committed(commit_of(0).identity) is False
    faulty.land_late_requests()
    assert sink.commit(commit_of(0)) == Committed()
    assert values(catalog) == entries(0)


def test_trouble_before_anything_was_sent_means_not_committed(catalog: Catalog) -> None:
    sink = IcebergSink(FaultyCatalog(catalog, {0: Fault.OVERLOADED}), TABLE)
    answer = sink.commit(commit_of(0))
    assert isinstance(answer, NotCommitted)
    assert "ServiceUnavailableError" in answer.reason


def test_catalog_that_is_away_is_asked_again(catalog: Catalog) -> None:
    sink = IcebergSink(FaultyCatalog(catalog, {0: Fault.FAIL}), TABLE)
    with pytest.raises(Unavailable, match="injected"):
        sink.check_committed(commit_of(0).identity)


def test_exception_that_is_no_answer_is_not_taken_for_one(catalog: Catalog) -> None:
    """The runtime gives up after some of these; it would wait for ever for an answer that says "maybe"."""

    def bug() -> None:
        raise TypeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        IcebergSink(Meanwhile(catalog, bug), TABLE).commit(commit_of(0))


def test_message_about_a_catalog_that_cannot_be_opened_shows_no_password() -> None:
    with pytest.raises(InvalidInput, match=r"mysql://\*\*\*@db\.example/lake") as raised:
        IcebergSink({"uri": "mysql://job:hunter2@db.example/lake"}, "web.clicks")
    assert "hunter2" not in str(raised.value)


def test_messages_show_no_secret_of_the_catalog(tmp_path: Path) -> None:
    with load_catalog("default", **properties(tmp_path), **{"s3.secret-access-key": "hunter2"}) as catalog:

        def act() -> None:
            raise ConnectionError("https://lake?signature=hunter2 is away")

        answer = IcebergSink(Meanwhile(catalog, act), TABLE).commit(commit_of(0))
    assert isinstance(answer, MaybeCommitted)
    assert "signature=*** is away" in answer.reason


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.list_(pa.struct([("x", pa.int8())])), [None, [{"x": 1}], [], None, [{"x": 2}, None]]),
        (pa.map_(pa.string(), pa.struct([("x", pa.int8())])), [None, [("a", {"x": 1})], [], None, [("b", None)]]),
    ],
    ids=["list", "map"],
)
def test_null_list_or_map_of_structs_is_no_empty_one(catalog: Catalog, kind: pa.DataType, values: list[Any]) -> None:
    """With pyiceberg it becomes an empty one, in a write and in a scan: so the files are looked at."""
    rows = pa.table({"c": pa.array([[], *values], kind)}).slice(1)  # a slice has offsets that do not begin with 0
    with IcebergSink(catalog, TABLE) as sink:
        assert sink.commit(replace(commit_of(0), table=rows)) == Committed()
    (task,) = catalog.load_table(TABLE).scan().plan_files()
    assert read_table(task.file.file_path.removeprefix("file://"))["c"].to_pylist() == values


# Rolled back, expired, restored


def snapshot_ids(catalog: Catalog) -> list[int]:
    return [snapshot.snapshot_id for snapshot in catalog.load_table(TABLE).snapshots()]


def roll_back(catalog: Catalog, snapshot_id: int) -> None:
    with catalog.load_table(TABLE).manage_snapshots() as change:
        change.rollback_to_snapshot(snapshot_id)


def test_table_that_was_rolled_back_halts_and_names_both_positions(catalog: Catalog, sink: IcebergSink) -> None:
    for sequence in range(3):
        sink.commit(commit_of(sequence))
    first, _, third = snapshot_ids(catalog)
    roll_back(catalog, first)
    for asked in (sink, IcebergSink(catalog, TABLE)):
        answer = asked.commit(commit_of(3))
        assert isinstance(answer, Fatal)
        assert f"rows up to sequence 2 (snapshot {third}) were committed" in answer.reason
        assert f"now holds those up to sequence 0 (snapshot {first})" in answer.reason
        assert f"roll it forward to snapshot {third}" in answer.reason
        assert "--to 1 " in answer.reason
        assert asked.check_committed(commit_of(1).identity) is False
    assert values(catalog) == entries(0)


def test_table_that_was_rolled_back_to_before_the_reader_says_so(catalog: Catalog, sink: IcebergSink) -> None:
    sink.commit(commit_of(0, group="others"))
    sink.commit(commit_of(0))
    roll_back(catalog, snapshot_ids(catalog)[0])
    answer = sink.commit(commit_of(1))
    assert isinstance(answer, Fatal)
    assert "now holds none of them" in answer.reason


def test_table_that_is_rolled_forward_again_goes_on(catalog: Catalog, sink: IcebergSink) -> None:
    sink.commit(commit_of(0))
    sink.commit(commit_of(1))
    first, second = snapshot_ids(catalog)
    roll_back(catalog, first)
    assert isinstance(sink.commit(commit_of(2)), Fatal)
    with catalog.load_table(TABLE).manage_snapshots() as change:
        change.set_current_snapshot(second)
    assert sink.commit(commit_of(2)) == Committed()
    assert values(catalog) == entries(0, 1, 2)


def test_rollback_is_noticed_after_others_have_written_and_the_snapshot_has_expired(
    catalog: Catalog, sink: IcebergSink
) -> None:
    sink.commit(commit_of(0))
    sink.commit(commit_of(1))
    first, second = snapshot_ids(catalog)
    roll_back(catalog, first)
    table = catalog.load_table(TABLE)
    table.append(commit_of(9).table.cast(table.schema().as_arrow()))
    table.maintenance.expire_snapshots().by_id(second).commit()
    answer = IcebergSink(catalog, TABLE).commit(commit_of(2))
    assert isinstance(answer, Fatal)
    assert f"sequence 1 (snapshot {second})" in answer.reason


def test_late_commit_of_a_dead_process_onto_a_table_that_was_rolled_back_changes_nothing(
    catalog: Catalog, sink: IcebergSink
) -> None:
    """It was based on the snapshot that is the newest again. But its sequence number was used since."""
    sink.commit(commit_of(0))
    faulty = FaultyCatalog(catalog, {0: Fault.LATE}, only=["commit_table"])
    IcebergSink(faulty, TABLE).commit(commit_of(1))
    for sequence in (1, 2):
        sink.commit(commit_of(sequence))
    roll_back(catalog, snapshot_ids(catalog)[0])
    faulty.land_late_requests()
    answer = IcebergSink(catalog, TABLE).commit(commit_of(3))
    assert isinstance(answer, Fatal)
    assert "rows up to sequence 2" in answer.reason
    assert "those up to sequence 0" in answer.reason
    assert values(catalog) == entries(0)


def expire_all_but_newest(table: Table) -> None:
    table.maintenance.expire_snapshots().older_than(datetime(2999, 1, 1, tzinfo=UTC)).commit()


def test_position_survives_the_expiry_of_its_snapshot(catalog: Catalog, sink: IcebergSink) -> None:
    sink.commit(commit_of(0, 1))
    for sequence in range(3):
        sink.commit(commit_of(sequence, group="others"))
    expire_all_but_newest(catalog.load_table(TABLE))
    assert len(snapshot_ids(catalog)) == 1
    for asked in (sink, IcebergSink(catalog, TABLE)):
        assert asked.commit(commit_of(0, 1)) == Committed()
        assert asked.check_committed(commit_of(2).identity) is False
    assert sink.commit(commit_of(2)) == Committed()
    assert values(catalog) == entries(0, 0, 1, 1, 2, 2)


def test_snapshots_that_expire_between_look_and_commit_do_no_harm(catalog: Catalog, sink: IcebergSink) -> None:
    for sequence in range(3):
        sink.commit(commit_of(sequence))
    late = IcebergSink(Meanwhile(catalog, lambda: expire_all_but_newest(catalog.load_table(TABLE))), TABLE)
    assert late.commit(commit_of(3)) == Committed()
    assert values(catalog) == entries(0, 1, 2, 3)


def test_metadata_log_that_is_cut_short_does_no_harm(catalog: Catalog, sink: IcebergSink) -> None:
    sink.commit(commit_of(0))
    with catalog.load_table(TABLE).transaction() as change:
        change.set_properties({"write.metadata.previous-versions-max": "1"})
    for sequence in range(1, 5):
        assert sink.commit(commit_of(sequence)) == Committed()
    table = catalog.load_table(TABLE)
    assert len(table.metadata.metadata_log) == 1
    folder = Path(table.location().removeprefix("file://")) / "metadata"
    assert len(list(folder.glob("*.metadata.json"))) <= 3, "older ones are deleted, as the table's settings say"
    assert IcebergSink(catalog, TABLE).commit(commit_of(4)) == Committed()
    assert values(catalog) == entries(*range(5))


def test_table_that_was_restored_to_an_old_state_is_not_written_to(catalog: Catalog, sink: IcebergSink) -> None:
    """Its metadata tells nothing of what came after. Only a process that has seen it knows."""
    sink.commit(commit_of(0))
    old = catalog.load_table(TABLE).metadata_location
    sink.commit(commit_of(1))
    catalog.drop_table(TABLE)
    catalog.register_table(TABLE, old)
    answer = sink.commit(commit_of(2))
    assert isinstance(answer, NotCommitted)
    assert re.search(r"position was sequence 1 \(snapshot \d+\) and is now sequence 0", answer.reason)
    with pytest.raises(Unavailable, match="restored or created again"):
        sink.check_committed(commit_of(2).identity)
    assert values(catalog) == entries(0)


def test_position_that_somebody_took_away_is_found_in_the_snapshots(catalog: Catalog, sink: IcebergSink) -> None:
    sink.commit(commit_of(0))
    with catalog.load_table(TABLE).transaction() as change:
        change.remove_properties(f"forebay.position.{READER}")
    assert IcebergSink(catalog, TABLE).commit(commit_of(0)) == Committed()
    assert values(catalog) == entries(0)


def test_position_that_is_none_is_refused(catalog: Catalog, sink: IcebergSink) -> None:
    sink.commit(commit_of(0))
    with catalog.load_table(TABLE).transaction() as change:
        change.set_properties({f"forebay.position.{READER}": "7"})
    with pytest.raises(Corrupt, match="is '7', which is not a position"):
        sink.commit(commit_of(1))


# Rows and columns


def create(catalog: Catalog, *fields: NestedField, **kwargs: Any) -> Table:
    catalog.create_namespace_if_not_exists("lake")
    return catalog.create_table(TABLE, Schema(*fields), **kwargs)


def test_rows_are_cast_to_the_columns_of_the_table(catalog: Catalog, sink: IcebergSink) -> None:
    create(
        catalog,
        NestedField(1, "extra", StringType()),
        NestedField(2, "n", LongType()),
        NestedField(3, "text", StringType()),
    )
    rows = pa.table({"text": pa.array(["a"], pa.large_string()).dictionary_encode(), "n": pa.array([7], pa.int8())})
    assert sink.commit(rows_of(rows)) == Committed()
    assert catalog.load_table(TABLE).scan().to_arrow().to_pylist() == [{"extra": None, "n": 7, "text": "a"}]


def test_nested_rows_are_written(catalog: Catalog, sink: IcebergSink) -> None:
    rows = pa.table({"tags": [["a", "b"], None], "at": [{"x": 1, "y": ["z"]}, {"x": None, "y": []}]})
    assert sink.commit(rows_of(rows)) == Committed()
    assert sink.commit(rows_of(rows, 1)) == Committed()
    assert catalog.load_table(TABLE).scan().to_arrow().to_pylist() == rows.to_pylist() * 2


@pytest.mark.parametrize(
    ("rows", "reason", "poison"),
    [
        (pa.table({"n": [1], "other": [1]}), "no column other: add it with merge_schema=True", False),
        (pa.table({"text": ["a"]}), "n must not be null, and the rows have no such column", False),
        (pa.table({"n": [[1]]}), "n: conflict, int64 to list<.*>: let the decoder give", True),
        (pa.table({"n": pa.array([1 << 63], pa.uint64())}), "found uint64: Integer value .* not in range", True),
        (pa.table({"n": pa.array([None], pa.int32())}), "n: expected int64 not null, found null", True),
    ],
    ids=["unknown column", "missing column", "other type", "too large", "null"],
)
def test_rows_that_do_not_fit_halt_and_say_what_to_do(
    catalog: Catalog, sink: IcebergSink, rows: pa.Table, reason: str, poison: bool
) -> None:
    create(catalog, NestedField(1, "n", LongType(), required=True), NestedField(2, "text", StringType()))
    answer = sink.commit(rows_of(rows))
    assert isinstance(answer, Fatal), answer
    assert re.search(reason, answer.reason), answer.reason
    assert answer.poison is poison
    assert sink.commit(rows_of(pa.table({"n": [1]}), 1)) == Committed(), "the next one is not harmed"


def test_columns_that_iceberg_does_not_have_halt(sink: IcebergSink) -> None:
    answer = sink.commit(rows_of(pa.table({"t": pa.array([1], pa.duration("s"))})))
    assert isinstance(answer, Fatal)
    assert "column t: duration[s] cannot be stored so that Spark reads it; use int64" in answer.reason


def test_partitions_of_the_table_are_kept(catalog: Catalog, sink: IcebergSink) -> None:
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "day"))
    create(catalog, NestedField(1, "day", StringType()), NestedField(2, "n", LongType()), partition_spec=spec)
    assert sink.commit(rows_of(pa.table({"day": ["mon", "tue", "mon"], "n": [1, 2, 3]}))) == Committed()
    files = [task.file.file_path for task in catalog.load_table(TABLE).scan().plan_files()]
    assert sorted(Path(file).parent.name for file in files) == ["day=mon", "day=tue"]


def test_table_that_the_sink_creates_keeps_commits_cheap(catalog: Catalog, sink: IcebergSink) -> None:
    sink.commit(commit_of(0))
    found = catalog.load_table(TABLE).properties
    assert found["commit.manifest-merge.enabled"] == "true"
    assert found["write.metadata.delete-after-commit.enabled"] == "true"


def test_manifests_are_merged_as_the_tables_settings_say(catalog: Catalog, sink: IcebergSink) -> None:
    sink.commit(commit_of(0))
    with catalog.load_table(TABLE).transaction() as change:
        change.set_properties({"commit.manifest.min-count-to-merge": "2"})
    for sequence in range(1, 4):
        sink.commit(commit_of(sequence))
    table = catalog.load_table(TABLE)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) == 1
    with table.transaction() as change:
        change.set_properties({"commit.manifest-merge.enabled": "false"})
    sink.commit(commit_of(4))
    table = catalog.load_table(TABLE)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) == 2


def test_table_of_format_version_1_is_refused(catalog: Catalog, sink: IcebergSink) -> None:
    create(catalog, NestedField(1, "n", LongType()), properties={"format-version": "1"})
    with pytest.raises(Unsupported, match=r"upgrade_table_version\(2\)"):
        sink.commit(rows_of(pa.table({"n": [1]})))


# Opening


def test_catalog_is_given_as_an_object_by_its_properties_or_by_name(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    IcebergSink(catalog, TABLE).commit(commit_of(0))
    with IcebergSink(properties(tmp_path), TABLE) as sink:
        assert sink.check_committed(commit_of(0).identity) is True
    with IcebergSink({**properties(tmp_path), "name": "other"}, TABLE) as sink:
        assert sink.check_committed(commit_of(0).identity) is False, "another catalog in the same database"


def test_what_cannot_be_opened_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"'nowhere' cannot be opened: .*\.pyiceberg\.yaml"):
        IcebergSink("nowhere", TABLE)
    with pytest.raises(InvalidInput, match="has no namespace"):
        IcebergSink(properties(tmp_path), "clicks")


@pytest.mark.parametrize(
    "given",
    [{"type": "rest", "uri": "http://127.0.0.1:9"}, {"type": "sql", "uri": "sqlite:////no/such/folder/catalog.db"}],
    ids=["rest", "sql"],
)
def test_catalog_that_does_not_answer_is_named_with_what_to_check(given: dict[str, str]) -> None:
    with pytest.raises(Unavailable, match=r"catalog 'lake' does not answer: .* Check its uri"):
        IcebergSink({**given, "name": "lake"}, TABLE)


@pytest.mark.parametrize("found", [None, "0.11.1", "0.13.0"])
def test_pyiceberg_that_is_missing_or_of_another_release_is_refused(
    monkeypatch: pytest.MonkeyPatch, catalog: Catalog, found: str | None
) -> None:
    monkeypatch.setattr("forebay.runtime.sinks.iceberg.installed_version", lambda _: found)
    with pytest.raises(Unsupported, match=rf"0\.12\.x, and {found or 'none'} is installed"):
        IcebergSink(catalog, TABLE)


def test_commits_are_in_order_and_a_minute_apart_unless_told_otherwise(sink: IcebergSink) -> None:
    assert sink.in_order
    assert sink.combining == Combining(target_bytes=128 << 20, max_seconds=60)


def test_files_are_named_for_the_commit_and_the_attempt(catalog: Catalog) -> None:
    sink = IcebergSink(catalog, TABLE, random=Random(1))
    sink.commit(commit_of(0, 3))
    identity = commit_of(0, 3).identity
    names = sorted(
        path.name for path in Path(catalog.load_table(TABLE).location().removeprefix("file://")).rglob("*forebay.*")
    )
    mark = re.escape(f"forebay.{identity.name}.") + "[0-9a-f]{8}-0"
    for name, wanted in zip(
        names, (rf"00000-0-{mark}\.parquet", rf"{mark}-m0\.avro", rf"snap-\d+-0-{mark}\.avro"), strict=True
    ):
        assert re.fullmatch(wanted, name), name


# What the sink relies on in pyiceberg itself, in case a release changes it


def stage(table: Table, rows: pa.Table) -> Any:
    transaction = table.transaction()
    transaction.append(rows)
    return transaction


def test_commit_table_is_still_refused_for_the_slower_one_and_not_repeated(catalog: Catalog) -> None:
    table = create(catalog, NestedField(1, "n", LongType()))
    rows = pa.table({"n": [1]})
    first, second = stage(catalog.load_table(TABLE), rows), stage(catalog.load_table(TABLE), rows)
    catalog.commit_table(table, first._requirements, first._updates)
    with pytest.raises(CommitFailedException):
        catalog.commit_table(table, second._requirements, second._updates)
    assert len(catalog.load_table(TABLE).scan().to_arrow()) == 1


def test_pyicebergs_own_commit_still_repeats_an_append(catalog: Catalog) -> None:
    """The reason why the sink does not use it. If this fails, the sink may become simpler."""
    create(catalog, NestedField(1, "n", LongType()), properties={"commit.retry.min-wait-ms": "0"})
    rows = pa.table({"n": [1]})
    first, second = stage(catalog.load_table(TABLE), rows), stage(catalog.load_table(TABLE), rows)
    first.commit_transaction()
    second.commit_transaction()
    assert len(catalog.load_table(TABLE).scan().to_arrow()) == 2

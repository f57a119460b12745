"""An Iceberg table whose columns differ from the rows': what is added and widened, in one commit, under faults too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import StringType

from forebay.buffer.base.errors import InvalidInput, Unavailable, Unsupported
from forebay.buffer.consumer import Consumer
from forebay.buffer.groups import Groups
from forebay.buffer.producer import Producer
from forebay.runtime import IcebergSink, Runtime, Source
from forebay.runtime.contract import Combining, Commit, Committed, Fatal, MaybeCommitted
from forebay.testing import WRITE_FAULTS, Crash, Fault, FaultyCatalog
from forebay.testing.commits import make_batch, make_commit

TABLE = "lake.clicks"


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    found = SqlCatalog("tests", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    yield found
    found.close()


def commit_of(rows: pa.Table, sequence: int = 0) -> Commit:
    return make_commit(make_batch([b"x"] * rows.num_rows, sequence), decoder=lambda _: rows)


def rows_of(catalog: Catalog) -> list[Any]:
    found: list[Any] = catalog.load_table(TABLE).scan().to_arrow().to_pylist()
    return sorted(found, key=str)


def columns_of(catalog: Catalog) -> dict[str, str]:
    return {field.name: str(field.field_type) for field in catalog.load_table(TABLE).schema().fields}


A = pa.table({"a": pa.array([1], pa.int32())})
WIDER = pa.table({"a": pa.array([1 << 40]), "b": ["x"], "at": [{"x": 1, "y": 2}]})
LANDED = [{"a": 1, "b": None, "at": None}, {"a": 1 << 40, "b": "x", "at": {"x": 1, "y": 2}}]


def test_column_is_added_and_another_widened_by_the_snapshot_that_adds_the_rows(catalog: Catalog) -> None:
    sink = IcebergSink(catalog, TABLE, merge_schema=True)
    sink.commit(commit_of(A))
    assert sink.commit(commit_of(WIDER, 1)) == Committed()
    assert rows_of(catalog) == LANDED
    assert columns_of(catalog)["a"] == "long"
    assert len(catalog.load_table(TABLE).snapshots()) == 2


def test_rows_without_new_columns_change_no_schema(catalog: Catalog) -> None:
    sink = IcebergSink(catalog, TABLE, merge_schema=True)
    for sequence in range(3):
        assert sink.commit(commit_of(A, sequence)) == Committed()
    assert len(catalog.load_table(TABLE).schemas()) == 1


def test_field_of_a_struct_is_added_and_a_required_column_becomes_optional(catalog: Catalog) -> None:
    first = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("at", pa.struct([("x", pa.int64())]))])
    sink = IcebergSink(catalog, TABLE, merge_schema=True)
    sink.commit(commit_of(pa.Table.from_pylist([{"n": 1, "at": {"x": 1}}], first)))
    assert sink.commit(commit_of(pa.table({"n": pa.array([None], pa.int64()), "at": [{"x": 2, "y": "z"}]}), 1)) == (
        Committed()
    )
    assert rows_of(catalog) == [{"n": 1, "at": {"x": 1, "y": None}}, {"n": None, "at": {"x": 2, "y": "z"}}]


def test_without_merge_schema_a_new_column_halts_and_wider_values_are_poison(catalog: Catalog) -> None:
    sink = IcebergSink(catalog, TABLE)
    sink.commit(commit_of(A))
    answer = sink.commit(commit_of(WIDER, 1))
    assert isinstance(answer, Fatal)
    assert "no column b, at: add it with merge_schema=True" in answer.reason
    answer = sink.commit(commit_of(pa.table({"a": [1, 1 << 40]}), 1))
    assert isinstance(answer, Fatal)
    assert (answer.poison, list(answer.rows)) == (True, [1])
    assert rows_of(catalog) == [{"a": 1}]


def test_column_that_differs_only_in_case_is_refused(catalog: Catalog) -> None:
    sink = IcebergSink(catalog, TABLE, merge_schema=True)
    sink.commit(commit_of(A))
    answer = sink.commit(commit_of(pa.table({"A": [1]}), 1))
    assert isinstance(answer, Fatal)
    assert "column A differs from the table's column a only in case" in answer.reason


def test_unsigned_integers_get_columns_that_hold_all_their_values(catalog: Catalog) -> None:
    rows = pa.table(
        {
            "u8": pa.array([255], pa.uint8()),
            "u32": pa.array([2**32 - 1], pa.uint32()),
            "u64": pa.array([2**64 - 1], pa.uint64()),
        }
    )
    assert IcebergSink(catalog, TABLE).commit(commit_of(rows)) == Committed()
    assert rows_of(catalog) == rows.to_pylist()


@pytest.mark.parametrize("fault", [*WRITE_FAULTS, Fault.CRASH, Fault.CRASH_AFTER], ids=lambda fault: fault.name)
def test_fault_of_the_commit_that_adds_columns_leaves_all_of_it_or_nothing(catalog: Catalog, fault: Fault) -> None:
    IcebergSink(catalog, TABLE).commit(commit_of(A))
    faulty = FaultyCatalog(catalog, {0: fault}, only={"commit_table"})
    sink = IcebergSink(faulty, TABLE, merge_schema=True)
    try:
        answer: object = sink.commit(commit_of(WIDER, 1))
    except Crash:
        answer = None
    is_there = len(rows_of(catalog)) == 2
    assert columns_of(catalog).keys() == ({"a", "b", "at"} if is_there else {"a"})
    assert columns_of(catalog)["a"] == ("long" if is_there else "int")
    assert answer != Committed() or is_there
    again = IcebergSink(catalog, TABLE, merge_schema=True)
    if not again.check_committed(commit_of(WIDER, 1).identity):
        assert again.commit(commit_of(WIDER, 1)) == Committed()
    faulty.land_late_requests()
    assert rows_of(catalog) == LANDED


@pytest.mark.parametrize("other", [pa.table({"z": ["1"]}), A], ids=["another column", "no column"])
def test_rival_between_look_and_commit_gets_its_columns_and_so_do_we(catalog: Catalog, other: pa.Table) -> None:
    """Files that were written before the rival's column came would give its number to ours."""
    IcebergSink(catalog, TABLE).commit(commit_of(A))
    rival = IcebergSink(catalog, TABLE, merge_schema=True)

    class Slow(FaultyCatalog):
        def next_fault(self, kind: str) -> Fault | None:
            if kind == "commit_table" and not met:
                met.append(True)
                theirs = make_commit(make_batch([b"x"]), decoder=lambda _: other, group="others")
                assert rival.commit(theirs) == Committed()
            return None

    met: list[bool] = []
    sink = IcebergSink(Slow(catalog), TABLE, merge_schema=True)
    answer = sink.commit(commit_of(WIDER, 1))
    if isinstance(answer, MaybeCommitted):
        answer = sink.commit(commit_of(WIDER, 1))
    assert answer == Committed()
    landed = [row for row in rows_of(catalog) if row["b"] is not None]
    assert [{name: row[name] for name in ("a", "b", "at")} for row in landed] == LANDED[1:]
    assert len(rows_of(catalog)) == 3


def test_columns_that_came_and_went_meanwhile_do_not_mix_up_their_numbers(catalog: Catalog) -> None:
    """The schema is the old one again, and the numbers of the columns that were dropped are used up."""
    IcebergSink(catalog, TABLE).commit(commit_of(A))

    class Slow(FaultyCatalog):
        def next_fault(self, kind: str) -> Fault | None:
            if kind == "commit_table" and not met:
                met.append(True)
                table = catalog.load_table(TABLE)
                with table.update_schema() as change:
                    change.add_column("gone", StringType())
                with table.update_schema(allow_incompatible_changes=True) as change:
                    change.delete_column("gone")
            return None

    met: list[bool] = []
    sink = IcebergSink(Slow(catalog), TABLE, merge_schema=True)
    assert sink.commit(commit_of(WIDER, 1)) == Committed()
    assert met
    assert rows_of(catalog) == LANDED


# Before anything is read


def test_plan_says_what_would_be_created_and_creates_nothing(catalog: Catalog) -> None:
    plan = IcebergSink(catalog, TABLE).plan(WIDER.schema)
    assert plan.changes == ("creates the table with the columns a, b, at",)
    assert not catalog.list_namespaces()


def test_plan_lists_what_would_change(catalog: Catalog) -> None:
    sink = IcebergSink(catalog, TABLE, merge_schema=True)
    sink.commit(commit_of(A))
    plan = sink.plan(pa.schema([("a", pa.int64()), ("b", pa.string())]))
    assert plan.changes == ("column a: widened, int32 to int64", "column b: added, string")
    assert sink.plan(pa.schema([("a", pa.list_(pa.int64()))])).conflicts
    assert IcebergSink(catalog, TABLE).plan(pa.schema([("a", pa.int64())])).warnings


def test_plan_refuses_what_can_never_be_committed(catalog: Catalog) -> None:
    sink = IcebergSink(catalog, TABLE)
    with pytest.raises(InvalidInput, match=r"column t: duration\[s\] cannot be stored"):
        sink.plan(pa.schema([("t", pa.duration("s"))]))
    sink.commit(commit_of(A))
    with pytest.raises(InvalidInput, match="no column b: add it with merge_schema=True"):
        sink.plan(pa.schema([("a", pa.int32()), ("b", pa.string())]))


def test_plan_of_a_catalog_that_is_away_is_not_a_refusal(catalog: Catalog) -> None:
    sink = IcebergSink(FaultyCatalog(catalog, {0: Fault.FAIL}), TABLE)
    with pytest.raises(Unavailable):
        sink.plan(A.schema)


def test_table_of_version_1_is_refused_before_anything_is_read(catalog: Catalog, tmp_path: Path) -> None:
    catalog.create_namespace("lake")
    catalog.create_table(TABLE, A.schema, properties={"format-version": "1"})
    source = f"file://{tmp_path}/source"
    with Producer(source, schema=A.schema) as producer:
        producer.produce(A)
    with IcebergSink(catalog, TABLE) as sink, pytest.raises(Unsupported, match="format version 1"):
        Runtime([Source(source, group="etl")], sink).run(until_caught_up=True)
    assert Groups(source).list() == [], "nothing was claimed"


def test_evolved_buffer_widens_the_table_and_loses_and_doubles_nothing(catalog: Catalog, tmp_path: Path) -> None:
    source, letters = f"file://{tmp_path}/source", f"file://{tmp_path}/letters"
    v1 = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("n", pa.int32())])
    v2 = pa.schema([("id", pa.int64()), ("n", pa.float64()), ("ref", pa.string())])

    def land() -> None:
        sink = IcebergSink(catalog, TABLE, merge_schema=True, combining=Combining(1 << 20))
        with Producer(letters) as dead:
            Runtime([Source(source, group="etl")], sink, dead_letters=dead).run(until_caught_up=True)

    with Producer(source, schema=v1) as producer:
        producer.produce({"id": 1, "n": 1})
    land()
    with Producer(source, schema=v2, evolve=True) as producer:
        producer.produce([{"id": 1 << 40, "n": 2.0, "ref": "ad"}, {"id": 3, "n": 0.5}])
    land()
    assert rows_of(catalog) == [{"id": 1, "n": 1, "ref": None}, {"id": 1 << 40, "n": 2, "ref": "ad"}]
    assert columns_of(catalog) == {"id": "long", "n": "int", "ref": "string"}
    (letter,) = [entry for batch in Consumer(letters) for entry in batch.entries]
    assert b'"n":0.5' in letter, "Iceberg does not widen int to double"

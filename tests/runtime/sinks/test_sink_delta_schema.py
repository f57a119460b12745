"""A Delta table whose columns differ from the rows': what is added, what is refused, and when it is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from forebay.buffer.base.errors import InvalidInput, Unavailable, Unsupported
from forebay.buffer.consumer import Consumer
from forebay.buffer.groups import Groups
from forebay.buffer.producer import Producer
from forebay.runtime import Runtime, Source
from forebay.runtime.contract import Combining, Commit, Committed, Fatal, MaybeCommitted
from forebay.runtime.decoders import JsonLines
from forebay.runtime.sinks import DeltaSink
from forebay.testing.commits import make_batch, make_commit
from forebay.testing.proxy import Fault, FaultProxy
from forebay.testing.servers import SeaweedServer


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/table"


def commit_of(rows: pa.Table, sequence: int = 0) -> Commit:
    return make_commit(make_batch([b"x"] * rows.num_rows, sequence), decoder=lambda _: rows)


def rows_of(url: str) -> list[Any]:
    found: list[Any] = DeltaTable(url).to_pyarrow_table().to_pylist()
    return sorted(found, key=str)


def actions_of(url: str, version: int) -> list[str]:
    lines = Path(url.removeprefix("file://"), "_delta_log", f"{version:020}.json").read_text().splitlines()
    return [next(iter(json.loads(line))) for line in lines]


A = pa.table({"a": [1]})
A_B = pa.table({"a": [2], "b": ["x"]})
OLD_READER = pa.schema([pa.field("n", pa.int32(), nullable=False), pa.field("at", pa.struct([("x", pa.int64())]))])


def test_column_is_added_by_the_version_that_adds_the_rows_and_the_position(url: str) -> None:
    sink = DeltaSink(url, merge_schema=True)
    sink.commit(commit_of(A))
    assert sink.commit(commit_of(A_B, 1)) == Committed()
    assert rows_of(url) == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]
    assert {"metaData", "add", "txn"} <= set(actions_of(url, 2))
    assert DeltaTable(url).version() == 2


def test_version_without_new_columns_changes_no_metadata(url: str) -> None:
    sink = DeltaSink(url, merge_schema=True)
    sink.commit(commit_of(A))
    sink.commit(commit_of(A, 1))
    assert "metaData" not in actions_of(url, 2)


def test_field_of_a_struct_is_added_and_required_columns_stay_required(url: str) -> None:
    DeltaTable.create(url, schema=OLD_READER)
    rows = pa.table({"n": pa.array([1], pa.int32()), "at": [{"x": 1, "y": "z"}]})
    assert DeltaSink(url, merge_schema=True).commit(commit_of(rows)) == Committed()
    table = DeltaTable(url)
    assert table.to_pyarrow_table().to_pylist() == rows.to_pylist()
    assert not pa.schema(table.schema().to_arrow()).field("n").nullable


def test_added_columns_that_the_rows_require_are_nullable_in_the_table(url: str) -> None:
    DeltaSink(url).commit(commit_of(A))
    required = pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.string(), nullable=False)])
    assert DeltaSink(url, merge_schema=True).commit(commit_of(A_B.cast(required), 1)) == Committed()
    assert rows_of(url) == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


def test_without_merge_schema_a_new_column_halts_and_says_how(url: str) -> None:
    DeltaSink(url).commit(commit_of(A))
    answer = DeltaSink(url).commit(commit_of(A_B, 1))
    assert isinstance(answer, Fatal)
    assert "no column b: add it with merge_schema=True" in answer.reason
    assert not answer.poison
    assert rows_of(url) == [{"a": 1}]


def test_column_that_differs_only_in_case_is_refused(url: str) -> None:
    DeltaSink(url).commit(commit_of(A))
    sink = DeltaSink(url, merge_schema=True)
    answer = sink.commit(commit_of(pa.table({"A": [1]}), 1))
    assert isinstance(answer, Fatal)
    assert "column A differs from the table's column a only in case" in answer.reason
    with pytest.raises(InvalidInput, match="only in case"):
        sink.plan(pa.schema([("A", pa.int64())]))


class Stalled(DeltaSink):
    """Somebody else acts between the look at the table and the append."""

    meanwhile: Any

    def _append(self, table: DeltaTable, identity: Any, rows: pa.Table) -> None:
        self.meanwhile()
        super()._append(table, identity, rows)


@pytest.mark.parametrize("rows", [A, A_B], ids=["no new column", "the same new column"])
def test_rival_that_adds_a_column_between_look_and_append_is_noticed(url: str, rows: pa.Table) -> None:
    DeltaSink(url).commit(commit_of(A))
    sink = Stalled(url, merge_schema=True)
    rival = DeltaSink(url, merge_schema=True)
    other = make_commit(make_batch([b"x"]), decoder=lambda _: A_B, group="others")
    sink.meanwhile = lambda: rival.commit(other)
    assert isinstance(sink.commit(commit_of(rows, 1)), MaybeCommitted)
    assert sink.check_committed(commit_of(rows, 1).identity) is False
    sink.meanwhile = lambda: None
    assert sink.commit(commit_of(rows, 1)) == Committed()
    assert len(rows_of(url)) == 3


def test_same_commit_of_two_runtimes_adds_the_column_and_the_rows_once(url: str) -> None:
    DeltaSink(url).commit(commit_of(A))
    sink = Stalled(url, merge_schema=True)
    sink.meanwhile = lambda: DeltaSink(url, merge_schema=True).commit(commit_of(A_B, 1))
    assert isinstance(sink.commit(commit_of(A_B, 1)), MaybeCommitted)
    assert sink.check_committed(commit_of(A_B, 1).identity) is True
    assert rows_of(url) == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


def test_death_before_the_version_leaves_the_columns_as_they_were(url: str) -> None:
    class Dying(DeltaSink):
        def _append(self, table: DeltaTable, identity: Any, rows: pa.Table) -> None:
            raise KeyboardInterrupt

    DeltaSink(url).commit(commit_of(A))
    with pytest.raises(KeyboardInterrupt):
        Dying(url, merge_schema=True).commit(commit_of(A_B, 1))
    assert pa.schema(DeltaTable(url).schema().to_arrow()).names == ["a"]
    assert DeltaSink(url, merge_schema=True).commit(commit_of(A_B, 1)) == Committed()
    assert len(rows_of(url)) == 2


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE_ANSWER, Fault.CUT_BEFORE_REQUEST])
def test_lost_answer_to_a_version_that_adds_a_column_doubles_nothing(weed: SeaweedServer, fault: Fault) -> None:
    url = f"s3://tests/delta-merge-{fault.name}"
    with FaultProxy(weed.endpoint_url) as proxy:
        sink = DeltaSink(
            url, merge_schema=True, storage_options={**weed.storage_options, "endpoint_url": proxy.endpoint_url}
        )
        sink.commit(commit_of(A))
        left = [fault]
        proxy.choose = lambda line: left.pop() if left and f"_delta_log/{2:020}.json" in line else Fault.NONE
        answer = sink.commit(commit_of(A_B, 1))
        assert not left
        if isinstance(answer, MaybeCommitted) and not sink.check_committed(commit_of(A_B, 1).identity):
            answer = sink.commit(commit_of(A_B, 1))
    plan = DeltaSink(url, storage_options=weed.storage_options).plan(A_B.schema)
    assert (plan.target, plan.changes) == ("a table at version 2", ())


# Types


def test_unsigned_integers_get_columns_that_hold_all_their_values(url: str) -> None:
    rows = pa.table(
        {
            "u8": pa.array([255], pa.uint8()),
            "u16": pa.array([65535], pa.uint16()),
            "u32": pa.array([2**32 - 1], pa.uint32()),
            "u64": pa.array([2**64 - 1], pa.uint64()),
        }
    )
    assert DeltaSink(url).commit(commit_of(rows)) == Committed()
    assert DeltaTable(url).to_pyarrow_table().to_pylist() == rows.to_pylist()


def test_time_in_another_zone_lands_as_the_same_instant(url: str) -> None:
    rows = pa.table({"at": pa.array([1_700_000_000_000], pa.timestamp("ms", "Europe/Berlin"))})
    assert DeltaSink(url).commit(commit_of(rows)) == Committed()
    (landed,) = DeltaTable(url).to_pyarrow_table().to_pylist()
    assert landed["at"].timestamp() == 1_700_000_000


NARROW = {"n": pa.int32(), "f": pa.float32()}
FITS = {"n": 1, "f": 0.5}
MISFITS = [{"n": 1 << 40}, {"f": 0.1}]


@pytest.mark.parametrize("misfit", MISFITS, ids=["integer", "float"])
def test_wider_values_than_the_column_holds_are_poison_and_others_land(url: str, misfit: dict[str, Any]) -> None:
    """delta-rs cannot widen a column, whatever `merge_schema` says. It would have rounded 0.1 to a float."""
    DeltaTable.create(url, schema=pa.schema(list(NARROW.items())))
    wide = pa.schema([("n", pa.int64()), ("f", pa.float64())])
    sink = DeltaSink(url, merge_schema=True)
    assert sink.commit(commit_of(pa.Table.from_pylist([FITS], wide))) == Committed()
    answer = sink.commit(commit_of(pa.Table.from_pylist([FITS, FITS | misfit, FITS], wide), 1))
    assert isinstance(answer, Fatal)
    assert answer.poison
    assert list(answer.rows) == [1]
    (name,) = misfit
    assert f"column {name}: expected {NARROW[name]}, found {wide.field(name).type}" in answer.reason
    assert rows_of(url) == [FITS]


def test_naive_times_are_not_taken_for_utc(url: str) -> None:
    DeltaTable.create(url, schema=pa.schema([("at", pa.timestamp("us", "UTC"))]))
    answer = DeltaSink(url).commit(commit_of(pa.table({"at": pa.array([0], pa.timestamp("us"))})))
    assert isinstance(answer, Fatal)
    assert answer.poison


def test_text_is_still_parsed_for_columns_that_json_cannot_give(url: str) -> None:
    DeltaTable.create(url, schema=pa.schema([("day", pa.date32())]))
    assert DeltaSink(url).commit(commit_of(pa.table({"day": ["2026-01-31"]}))) == Committed()
    answer = DeltaSink(url).commit(commit_of(pa.table({"day": ["2026-01-31", "soon"]}), 1))
    assert isinstance(answer, Fatal)
    assert list(answer.rows) == [1]


# Before anything is read


def test_plan_says_what_would_be_created_and_creates_nothing(url: str) -> None:
    plan = DeltaSink(url).plan(A_B.schema)
    assert plan.changes == ("creates the table with the columns a, b",)
    assert not Path(url.removeprefix("file://")).exists()


def test_plan_lists_every_difference(url: str) -> None:
    DeltaTable.create(url, schema=pa.schema([("a", pa.int32()), ("c", pa.string()), ("d", pa.list_(pa.int64()))]))
    rows = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.int64()), ("d", pa.string())])
    plan = DeltaSink(url, merge_schema=True).plan(rows)
    assert plan.changes == ("column b: added, string",)
    assert plan.warnings == ("column a: widened, int32 to int64", "column c: converted, string to int64")
    assert plan.conflicts == ("column d: conflict, list<element: int64> to string",)


def test_plan_refuses_a_new_column_without_merge_schema(url: str) -> None:
    DeltaSink(url).commit(commit_of(A))
    with pytest.raises(InvalidInput, match="no column b: add it with merge_schema=True"):
        DeltaSink(url).plan(A_B.schema)


def test_plan_refuses_a_type_that_delta_does_not_have(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"column t: time32\[ms\] cannot be stored.*use int64 or string"):
        DeltaSink(url).plan(pa.schema([("t", pa.time32("ms"))]))


def test_plan_of_a_store_that_is_away_is_not_a_refusal(weed: SeaweedServer) -> None:
    with FaultProxy(weed.endpoint_url) as proxy:
        proxy.choose = lambda _: Fault.CUT_BEFORE_REQUEST
        options = {**weed.storage_options, "endpoint_url": proxy.endpoint_url, "max_attempts": 1}
        with pytest.raises(Unavailable):
            DeltaSink("s3://tests/delta-plan-away", storage_options=options).plan(A.schema)


def make_table(url: str, features: list[str], configuration: dict[str, str], reader: list[str]) -> None:
    """Write the first version of a table by hand, since delta-rs makes no such tables."""
    schema = {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": {}}]}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": reader, "writerFeatures": features}
    metadata = {
        "id": "937da7e5-2719-4162-8cae-6fe3bab65576",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": [],
        "configuration": configuration,
        "createdTime": 1,
    }
    log = Path(url.removeprefix("file://"), "_delta_log")
    log.mkdir(parents=True)
    lines = [json.dumps({"protocol": protocol}), json.dumps({"metaData": metadata})]
    (log / f"{0:020}.json").write_text("\n".join(lines))


TIMESTAMPS = {"delta.enableInCommitTimestamps": "true"}


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ((["catalogManaged", "inCommitTimestamp"], TIMESTAMPS, ["catalogManaged"]), "catalog-managed table"),
        ((["rowTracking", "domainMetadata"], {"delta.enableRowTracking": "true"}, []), "RowTracking"),
        ((["typeWidening"], {"delta.enableTypeWidening": "true"}, ["typeWidening"]), "TypeWidening"),
        ((["somethingNew"], {}, []), "somethingNew"),
    ],
    ids=["catalog-managed", "row tracking", "type widening", "unknown"],
)
def test_table_with_a_feature_that_delta_rs_refuses_is_refused_before_anything_is_read(
    tmp_path: Path, url: str, made: Any, named: str
) -> None:
    make_table(url, *made)
    source = f"file://{tmp_path}/source"
    with Producer(source, schema=A.schema) as producer:
        producer.produce(A)
    with DeltaSink(url) as sink, pytest.raises(Unsupported, match=named) as raised:
        Runtime([Source(source, group="etl")], sink).run(until_caught_up=True)
    assert "write to another table" in str(raised.value)
    assert Groups(source).list() == [], "nothing was claimed"


def test_feature_that_appears_while_the_runtime_runs_halts_it(url: str) -> None:
    """delta-rs calls that a failed commit, which would be tried again for ever."""
    make_table(url, ["somethingNew"], {}, [])
    answer = DeltaSink(url).commit(commit_of(A))
    assert isinstance(answer, Fatal)
    assert "somethingNew" in answer.reason
    assert not answer.poison


def test_table_with_features_that_delta_rs_knows_is_written_to(url: str) -> None:
    make_table(url, ["deletionVectors"], {"delta.enableDeletionVectors": "true"}, ["deletionVectors"])
    sink = DeltaSink(url)
    assert sink.plan(A.schema).target == "a table at version 0"
    assert sink.commit(commit_of(A)) == Committed()


# With a runtime, from buffers whose schema grows

V1 = pa.schema([pa.field("id", pa.int32()), pa.field("at", pa.struct([("x", pa.int64())]))])
V2 = pa.schema(
    [("id", pa.int64()), pa.field("at", pa.struct([("x", pa.int64()), ("y", pa.string())])), ("ref", pa.string())]
)


def land(source: str, sink: DeltaSink, letters: str | None = None) -> int:
    dead = None if letters is None else Producer(letters)
    try:
        status = Runtime([Source(source, group="etl")], sink, dead_letters=dead).run(until_caught_up=True)
    finally:
        if dead is not None:
            dead.close()
    return status.rows


def test_evolved_buffer_adds_its_columns_and_its_wide_values_become_dead_letters(tmp_path: Path, url: str) -> None:
    source, letters = f"file://{tmp_path}/source", f"file://{tmp_path}/letters"
    with Producer(source, schema=V1) as producer:
        producer.produce({"id": 1, "at": {"x": 1}})
    sink = DeltaSink(url, merge_schema=True, combining=Combining(1 << 20))
    assert land(source, sink) == 1
    with Producer(source, schema=V2, evolve=True) as producer:
        producer.produce([{"id": 2, "at": {"x": 2, "y": "z"}, "ref": "ad"}, {"id": 1 << 40}, {"id": 3}])
    assert land(source, sink, letters) == 2
    assert rows_of(url) == [
        {"id": 1, "at": {"x": 1, "y": None}, "ref": None},
        {"id": 2, "at": {"x": 2, "y": "z"}, "ref": "ad"},
        {"id": 3, "at": None, "ref": None},
    ]
    (letter,) = [entry for batch in Consumer(letters) for entry in batch.entries]
    assert json.loads(letter)["id"] == 1 << 40


def test_table_that_was_rewritten_with_wider_columns_goes_on_where_it_was(tmp_path: Path, url: str) -> None:
    """What docs/parquet-and-delta.md says to do. The position survives, as it is no part of the schema."""
    source = f"file://{tmp_path}/source"
    with Producer(source, schema=V1) as producer:
        producer.produce({"id": 1})
    land(source, DeltaSink(url))
    table = DeltaTable(url)
    wide = table.to_pyarrow_table().cast(pa.schema([("id", pa.int64()), V1.field("at")]))
    write_deltalake(table, wide, mode="overwrite", schema_mode="overwrite")
    with Producer(source, schema=V2, evolve=True) as producer:
        producer.produce({"id": 1 << 40})
    land(source, DeltaSink(url, merge_schema=True))
    assert sorted(row["id"] for row in rows_of(url)) == [1, 1 << 40]


def test_conflict_is_refused_before_anything_is_read_unless_dead_letters_take_it(tmp_path: Path, url: str) -> None:
    source, letters = f"file://{tmp_path}/source", f"file://{tmp_path}/letters"
    DeltaTable.create(url, schema=pa.schema([("id", pa.list_(pa.int64()))]))
    with Producer(source, schema=pa.schema([("id", pa.int64())])) as producer:
        producer.produce([{"id": 1}, {"id": 2}])
    with pytest.raises(InvalidInput, match=r"no row fits into the target: column id: conflict"):
        land(source, DeltaSink(url))
    assert land(source, DeltaSink(url), letters) == 0
    assert [entry for batch in Consumer(letters) for entry in batch.entries] == [b'{"id":1}', b'{"id":2}']


def test_type_that_delta_does_not_have_is_refused_before_anything_is_read(tmp_path: Path, url: str) -> None:
    source = f"file://{tmp_path}/source"
    with Producer(source) as producer:
        producer.produce(b'{"at": 1}')
    decoder = JsonLines(pa.schema([("at", pa.timestamp("ns"))]))
    with DeltaSink(url) as sink, pytest.raises(InvalidInput, match=r"column at: Spark cannot read timestamp\[ns\]"):
        Runtime([Source(source, group="etl")], sink, decoder=decoder).run(until_caught_up=True)
    assert not Path(tmp_path, "table").exists()

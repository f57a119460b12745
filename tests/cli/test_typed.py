"""What the commands do with rows of a schema: write, infer, read, show, evolve."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.names import mint
from forebay.buffer.either.schemas import schema_versions
from forebay.buffer.format.checksum import crc32c
from forebay.buffer.format.model import Facts, NewBatch
from forebay.buffer.format.parquet import encode_rows
from forebay.buffer.manifest import Queue
from forebay.buffer.store import open_store
from forebay.buffer.topic import TopicProducer, create_topic
from forebay.cli import main

Shown = Callable[..., str]
Told = Callable[..., str]

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("at", pa.timestamp("us", "UTC"))])
ROWS = [b'{"id": 1, "at": "2026-01-31T12:00:00Z"}', b'{"id": 2}']


@pytest.fixture
def typed(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/lake/typed"
    with forebay.Producer(url, schema=SCHEMA) as producer:
        producer.produce(ROWS, b"from=test")
    return url


@pytest.fixture
def topic(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/lake/topic"
    create_topic(url, 2, schema=SCHEMA)
    with TopicProducer(url) as producer:
        producer.produce(ROWS, b"from=test", key=b"a")
    return url


@pytest.fixture
def plain(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/lake/plain"
    with forebay.Producer(url) as producer:
        producer.produce([b"one", b"two"])
    return url


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Shown:
    """Runs a command that has to succeed, and returns what it printed."""

    def run(*arguments: str) -> str:
        status = main(list(arguments))
        out, err = capsys.readouterr()
        assert status == 0, err
        return out

    return run


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs a command, and returns what it wrote to standard error."""

    def run(*arguments: str, status: int = 2) -> str:
        found = main(list(arguments))
        err = capsys.readouterr().err
        assert found == status, err
        assert "Traceback" not in err
        return err

    return run


def write(path: Path, *lines: str) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def rows_in(url: str) -> list[dict[str, Any]]:
    return [row for batch in forebay.Consumer(url, group="check") for row in batch.entries]


def objects_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# Writing


def test_produce_makes_a_typed_buffer_of_a_schema_file(tmp_path: Path, shown: Shown) -> None:
    url = f"file://{tmp_path}/new"
    schema = write(tmp_path / "schema.toml", 'id = "int64 not null"', 'tags = "list<string>"')
    lines = write(tmp_path / "lines", '{"id": 1, "tags": ["a"]}', '{"id": 2}')
    (answer,) = objects_of(shown("produce", url, lines, "--schema", schema, "--metadata", "host=a", "--json"))
    assert (answer["entries"], answer["schema"]) == (2, {"id": "int64 not null", "tags": "list<string>"})
    (batch,) = forebay.Consumer(url)
    assert list(batch.entries) == [{"id": 1, "tags": ["a"]}, {"id": 2, "tags": None}]
    assert batch.metadata[0].payload == b"host=a"


def test_empty_input_with_a_schema_makes_an_empty_typed_buffer(tmp_path: Path, told: Told) -> None:
    url = f"file://{tmp_path}/new"
    schema = write(tmp_path / "schema.toml", 'id = "int64"')
    assert "0 rows" in told("produce", url, "/dev/null", "--schema", schema, status=0)
    assert schema_versions(url)[0].schema == pa.schema([pa.field("id", pa.int64())])


def test_typed_buffer_that_is_there_needs_no_schema(typed: str, tmp_path: Path, shown: Shown) -> None:
    shown("produce", typed, write(tmp_path / "lines", '{"id": 3}', '{"id": 4}'))
    assert [row["id"] for row in rows_in(typed)] == [1, 2, 3, 4]


def test_rows_go_into_a_typed_topic(topic: str, tmp_path: Path, shown: Shown) -> None:
    shown("produce", topic, write(tmp_path / "lines", '{"id": 3}'), "--infer")
    assert sorted(row["id"] for row in objects_of(shown("tail", topic))) == [1, 2, 3]


def test_line_that_does_not_fit_is_named_and_all_before_it_are_durable(
    tmp_path: Path, shown: Shown, told: Told
) -> None:
    url = f"file://{tmp_path}/new"
    schema = write(tmp_path / "schema.toml", 'id = "int64"')
    good = [f'{{"id": {number}}}' for number in range(20_000)]
    lines = write(tmp_path / "lines", *good, '{"id": "x"}', '{"id": 5}')
    error = told("produce", url, lines, "--schema", schema)
    assert "20,000 rows" in error
    assert "line 20001, column id: expected int64, found str 'x'" in error
    assert "continue with line 20001" in error
    assert [row["id"] for row in rows_in(url)] == list(range(20_000))


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('{"id": 1, "other": 5}', "column other: expected no column of this name, found int 5"),
        ('{"id": 1.5}', "column id: expected int64, found float 1.5"),
        ("[1]", "expected exactly one JSON object"),
        ("", "expected exactly one JSON object"),
        ('{"id": 1} {"id": 2}', "expected exactly one JSON object"),
        ('{"id": 1, "id": 2}', "column id: expected each key once"),
    ],
)
def test_each_misfit_is_told_with_its_line(line: str, error: str, typed: str, tmp_path: Path, told: Told) -> None:
    assert f"error: line 1, {error}" in told("produce", typed, write(tmp_path / "lines", line))
    assert len(rows_in(typed)) == 2


def test_entry_after_its_length_that_does_not_fit_is_named_by_its_number(
    typed: str, tmp_path: Path, told: Told
) -> None:
    frames = [b'{"id": 3}', b"{}{}"]
    (tmp_path / "frames").write_bytes(b"".join(len(each).to_bytes(4, "little") + each for each in frames))
    error = told("produce", typed, str(tmp_path / "frames"), "--length-prefixed")
    assert "error: entry 2, expected exactly one JSON object" in error


def test_bytes_buffer_refuses_a_schema(plain: str, tmp_path: Path, told: Told) -> None:
    lines = write(tmp_path / "lines", '{"id": 1}')
    for way in (["--schema", write(tmp_path / "schema.toml", 'id = "int64"')], ["--infer"]):
        assert "holds entries of bytes, and rows need another buffer" in told("produce", plain, lines, *way)
    assert [entry for batch in forebay.Consumer(plain) for entry in batch.entries] == [b"one", b"two"]


def test_schema_that_differs_is_refused_and_says_how_to_change_it(typed: str, tmp_path: Path, told: Told) -> None:
    schema = write(tmp_path / "schema.toml", 'id = "int64"', 'page = "string"')
    error = told("produce", typed, "/dev/null", "--schema", schema)
    assert "column page: added, string" in error
    assert "forebay schema evolve" in error


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('id = "int', "schema.toml holds no schema"),
        ('id = "whole"', "column id: position 1 of 'whole': 'whole' is no type"),
        ('id = "timestamp[ns]"', "schema.toml: column id: Spark cannot read timestamp[ns]; use timestamp[us]"),
        ("", "schema.toml holds no schema"),
    ],
)
def test_bad_schema_file_is_told_and_nothing_is_made(text: str, error: str, tmp_path: Path, told: Told) -> None:
    schema = write(tmp_path / "schema.toml", text)
    assert error in told("produce", f"file://{tmp_path}/new", "/dev/null", "--schema", schema)
    assert not (tmp_path / "new").exists()


def test_schema_file_that_is_missing_is_told(tmp_path: Path, told: Told) -> None:
    error = told("produce", f"file://{tmp_path}/new", "/dev/null", "--schema", str(tmp_path / "none.toml"))
    assert "none.toml' does not exist" in error
    assert not (tmp_path / "new").exists()


# Inferring


def test_inferred_schema_is_used_and_printed_as_a_schema_file(tmp_path: Path, told: Told) -> None:
    url = f"file://{tmp_path}/new"
    lines = write(
        tmp_path / "lines",
        '{"id": 1, "ms": 1, "tags": []}',
        '{"id": 2, "ms": 2.5, "tags": ["a"], "place": {"zip": "1", "at": null}}',
        '{"id": 3, "place": {"at": "2026-01-31T12:00:00Z"}, "ok": true}',
    )
    printed = told("produce", url, lines, "--infer", status=0)
    wanted = {
        "id": "int64",
        "ms": "double",
        "tags": "list<string>",
        "place": "struct<zip: string, at: string>",
        "ok": "bool",
    }
    assert printed.splitlines()[:6] == [
        "# schema, inferred from 3 lines of the input",
        *(f'"{name}" = "{kind}"' for name, kind in wanted.items()),
    ]
    assert rows_in(url)[2]["place"] == {"zip": None, "at": "2026-01-31T12:00:00Z"}
    again = write(tmp_path / "again.toml", *printed.splitlines()[:6])
    assert "3 rows" in told("produce", url, lines, "--schema", again, status=0)


def test_no_more_than_the_first_lines_decide_the_schema(tmp_path: Path, told: Told) -> None:
    url = f"file://{tmp_path}/new"
    lines = write(tmp_path / "lines", *['{"id": 1}'] * 1000, '{"id": 1, "late": true}')
    error = told("produce", url, lines, "--infer")
    assert "inferred from 1,000 lines" in error
    assert "line 1001, column late: expected no column of this name" in error
    assert len(rows_in(url)) == 1000


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([], "the input is empty"),
        (['{"id": 1}', '{"id": "x"}'], "line 2, column id: expected int64, found string"),
        (['{"a": {"b": [1]}}', '{"a": {"b": [true]}}'], "line 2, column a.b.element: expected int64, found bool"),
        (['{"id": 1}', "[]"], "line 2, expected exactly one JSON object, found bytes b'[]'"),
        (['{"id": 9223372036854775808}'], "line 1, column id: expected int64, found int 9223372036854775808"),
        (['{"id": null}'], "column id: null cannot be stored"),
        (['{"id": {}}'], "column id: struct<> cannot be stored"),
        (['{"id": 1, "ID": 2}'], "differ only in case"),
        (['{"_index": 1}'], "column _index: readers add a column of this name"),
        (["{}"], "a schema needs at least one column"),
        ([f'{{"id": {"[" * 40}{"]" * 40}}}'], "values nested 32 deep at most"),
    ],
)
def test_input_that_gives_no_schema_is_refused_and_nothing_is_made(
    lines: list[str], error: str, tmp_path: Path, told: Told
) -> None:
    refused = told("produce", f"file://{tmp_path}/new", write(tmp_path / "lines", *lines), "--infer")
    assert "no schema can be inferred" in refused
    assert error in refused
    assert "--schema FILE" in refused
    assert not (tmp_path / "new").exists()


def test_schema_is_not_inferred_for_a_buffer_that_has_one(typed: str, tmp_path: Path, told: Told) -> None:
    printed = told("produce", typed, write(tmp_path / "lines", '{"id": 3}'), "--infer", status=0)
    assert "has a schema, which is used" in printed
    assert "inferred from" not in printed


def test_schema_is_either_given_or_inferred(tmp_path: Path, told: Told) -> None:
    schema = write(tmp_path / "schema.toml", 'id = "int64"')
    error = told("produce", f"file://{tmp_path}/new", "/dev/null", "--infer", "--schema", schema)
    assert "give one of the two" in error


class Interrupted(io.BufferedIOBase):
    """An input that Ctrl-C ends after some bytes."""

    def __init__(self, given: bytes) -> None:
        self._given = given

    def read1(self, size: int = -1, /) -> bytes:
        if not size:
            return b""  # which finds out that it gives bytes
        if not self._given:
            raise KeyboardInterrupt
        given, self._given = self._given, b""
        return given

    read = read1


def test_ctrl_c_while_a_schema_is_inferred_stores_what_was_read(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/new"
    monkeypatch.setattr("sys.stdin", Interrupted(b'{"id": 1}\n{"id"'))
    assert "1 rows" in told("produce", url, "--infer", status=130)
    assert rows_in(url) == [{"id": 1}]


def test_ctrl_c_before_the_first_line_makes_nothing(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Interrupted(b""))
    assert told("produce", f"file://{tmp_path}/new", "--infer", status=130) == "interrupted\n"
    assert not (tmp_path / "new").exists()


# Reading


def test_rows_are_shown_as_json(shown: Shown, typed: str) -> None:
    expected = [{"id": 1, "at": "2026-01-31T12:00:00.000000Z"}, {"id": 2, "at": None}]
    for command in (("tail", typed), ("consume", typed, "--group", "etl"), ("batch", "cat", typed, "0")):
        assert objects_of(shown(*command)) == expected
    (first, _) = objects_of(shown("tail", typed, "--format", "json"))
    assert first.items() >= {"id": 1, "_sequence": 0, "_index": 0, "_call_metadata": "from=test"}.items()


def test_rows_that_were_printed_can_be_written_again(tmp_path: Path, shown: Shown) -> None:
    schema = pa.schema(
        [
            pa.field("raw", pa.binary()),
            pa.field("price", pa.decimal128(9, 2)),
            pa.field("day", pa.date32()),
            pa.field("counts", pa.map_(pa.string(), pa.int64())),
            pa.field("place", pa.struct([pa.field("name", pa.string())])),
        ]
    )
    url, again = f"file://{tmp_path}/one", f"file://{tmp_path}/two"
    given = b'{"raw": "/wA=", "price": "1.50", "day": "2026-01-31", "counts": {"a": 1}, "place": {"name": "\\u001b"}}'
    forebay.Producer(again, schema=schema).close()
    with forebay.Producer(url, schema=schema) as producer:
        producer.produce(given)
    (tmp_path / "rows").write_text(shown("tail", url))
    shown("produce", again, str(tmp_path / "rows"))
    assert rows_in(again) == rows_in(url)


def test_rows_are_shown_as_a_table_with_one_heading(shown: Shown, typed: str) -> None:
    with forebay.Producer(typed) as producer:
        producer.produce({"id": 3})
    assert shown("tail", typed, "--format", "table").splitlines() == [
        "id  at",
        "--  ---------------------------",
        "1   2026-01-31T12:00:00.000000Z",
        "2   null",
        "3   null",
    ]
    assert shown("consume", typed, "--group", "etl", "--format", "table") == shown("tail", typed, "--format", "table")


def test_table_begins_anew_where_its_columns_change_or_grow(tmp_path: Path, shown: Shown) -> None:
    url = f"file://{tmp_path}/new"
    with forebay.Producer(url, schema=pa.schema([pa.field("page", pa.string())])) as producer:
        producer.produce({"page": "/"}).result()
        producer.produce({"page": "/product\n" + "x" * 80}).result()
    assert shown("tail", url, "--format", "table").splitlines() == [
        "page",
        "----",
        "/",
        "",
        "page",
        "-" * 60,
        "/product\\n" + "x" * 49 + "…",
    ]


def test_entries_of_bytes_are_shown_as_a_table(shown: Shown, plain: str) -> None:
    heads, _, first, second = shown("tail", plain, "--format", "table").splitlines()
    assert heads.split() == ["sequence", "index", "ingestion_time", "metadata", "value"]
    assert [first.split()[-1], second.split()[-1]] == ["one", "two"]


def test_rows_cannot_be_shown_as_hex(typed: str, told: Told) -> None:
    assert "holds rows of a schema" in told("tail", typed, "--format", "hex")


# Schema, statistics, manifest


def test_schema_is_shown_and_evolved_only_when_asked_to(shown: Shown, typed: str) -> None:
    assert shown("schema", "show", typed).splitlines()[1].split() == ["id", "int64"]
    change = ("schema", "evolve", typed, "--column", "page", "string")
    assert "column page: added, string\nnothing was changed" in shown(*change)
    assert len(shown("schema", "show", typed, "--json").splitlines()) == 1
    assert "changed" in shown(*change, "--apply")
    first, second = objects_of(shown("schema", "show", typed, "--json"))
    assert (first["changes"], list(second["columns"])) == ([], ["id", "at", "page"])
    assert [(change["path"], change["kind"]) for change in second["changes"]] == [("page", "added")]
    assert "version 1" in shown("schema", "show", typed)
    assert "nothing to change" in shown(*change, "--apply")


def test_evolution_is_told_as_json(shown: Shown, topic: str) -> None:
    change = ("schema", "evolve", topic, "--column", "place", "struct<tags: list<string>>", "--json")
    (dry,) = objects_of(shown(*change))
    (wet,) = objects_of(shown(*change, "--apply"))
    assert (dry["applied"], wet["applied"]) == (False, True)
    assert dry["changes"] == wet["changes"]
    assert [change["new"] for change in wet["changes"]] == ["struct<tags: list<element: string>>"]


def test_schema_evolves_to_a_file(shown: Shown, typed: str, tmp_path: Path) -> None:
    (tmp_path / "wider.json").write_text('{"id": "int64", "page": "string"}')
    shown("schema", "evolve", typed, "--schema", str(tmp_path / "wider.json"), "--apply")
    assert schema_versions(typed)[-1].schema.names == ["id", "at", "page"]


def test_schema_change_that_is_not_allowed_names_both_types(typed: str, told: Told) -> None:
    for way in ([], ["--apply"]):
        assert "int64 to string" in told("schema", "evolve", typed, "--column", "id", "string", *way)


def test_evolution_needs_columns_or_a_file(typed: str, told: Told) -> None:
    assert "say what to change" in told("schema", "evolve", typed)


def test_column_without_a_type_is_told_with_what_is_accepted(typed: str, told: Told) -> None:
    error = told("schema", "evolve", typed, "--column", "page", "text")
    assert "column page: position 1 of 'text': 'text' is no type; accepted are" in error


def test_partition_refuses_to_evolve_already_in_the_dry_run(topic: str, told: Told) -> None:
    assert "gets its schema from the topic" in told("schema", "evolve", f"{topic}/p-00000", "--column", "a", "string")


def test_buffer_of_bytes_has_no_schema_to_show_or_to_evolve(shown: Shown, told: Told, plain: str) -> None:
    assert "have no schema" in shown("schema", "show", plain)
    assert shown("schema", "show", plain, "--json") == ""
    assert "have no schema" in told("schema", "evolve", plain, "--column", "page", "string")


@pytest.mark.parametrize("kind", ["typed", "topic"])
def test_stat_and_ls_show_schema_and_rows(kind: str, shown: Shown, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(kind)
    shown("schema", "evolve", url, "--column", "page", "string", "--apply")
    told = shown("stat", url)
    assert "  schema    version 1, 3 columns: id int64, at timestamp[us, tz=UTC], page string\n" in told
    assert " batches, 2 rows, " in told
    lines = shown("ls", url.rpartition("/")[0]).splitlines()
    assert (lines[0].split()[-1], lines[1].endswith("  version 1, 3 columns")) == ("schema", True)
    (listed,) = objects_of(shown("ls", url, "--json"))
    columns = {"id": "int64", "at": "timestamp[us, tz=UTC]", "page": "string"}
    assert (listed["schema"]["version"], listed["schema"]["columns"]) == (1, columns)


def test_stat_shows_the_version_that_each_partition_has_reached(shown: Shown, topic: str) -> None:
    shown("schema", "evolve", topic, "--column", "page", "string", "--apply")
    with TopicProducer(topic) as producer:
        producer.produce({"id": 3}, key=b"a")
    versions = {part["schema"]["version"] for part in objects_of(shown("stat", topic, "--json"))}
    assert versions == {0, 1}


def test_bytes_are_listed_without_a_schema(shown: Shown, plain: str) -> None:
    assert "2 entries" in shown("stat", plain)
    (part,) = objects_of(shown("stat", plain, "--json"))
    assert part["schema"] is None
    assert shown("ls", plain).splitlines()[1].endswith("-")


def test_manifest_dump_shows_every_version_of_the_schema(shown: Shown, typed: str) -> None:
    shown("schema", "evolve", typed, "--column", "page", "string", "--apply")
    dumped = json.loads(shown("manifest", "dump", typed))
    assert [list(version["columns"]) for version in dumped["schemas"]] == [["id", "at"], ["id", "at", "page"]]
    written = dumped["batches"][0]["schema"]
    assert written == {"written": dumped["schemas"][0]["id"], "newest": dumped["schemas"][1]["id"]}


def test_manifest_with_a_schema_that_is_missing_is_dumped_all_the_same(shown: Shown, typed: str) -> None:
    store = open_store(typed)
    store.delete([info.key for info in store.list("schemas/")])
    dumped = json.loads(shown("manifest", "dump", typed))
    assert "is missing" in dumped["schemas"][0]["error"]
    assert len(dumped["batches"]) == 1


# Integrity, migration


def test_verify_decodes_rows(typed: str, shown: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    """The object has the size and the checksum that are listed, and other columns than the schema."""
    assert "ok: 1 batches" in shown("verify", typed)
    store = open_store(typed)
    other = bytes(encode_rows(pa.table({"name": ["x"]})))
    location = f"data/{mint(SystemClock(), system_random())}.parquet"
    store.put(location, other)
    batch = NewBatch(location, (), Facts(len(other), 100, 1, crc32c(other), 0, 0), schema=0)
    queue = Queue(store)
    queue.append([batch], version=2, schemas=queue.read().schemas)
    assert "ok: 2 batches" in shown("verify", typed, "--shallow")
    assert main(["verify", typed]) == 1
    assert f"corrupt: {location}: batch 1: " in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["typed", "topic"])
def test_migrate_refuses_what_was_of_version_2_from_the_start(
    kind: str, told: Told, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(kind)
    reason = "is a typed buffer: it holds rows of a schema" if kind == "typed" else "is a topic"
    assert f"error: {url} {reason}" in told("migrate", url, "--others-stopped")

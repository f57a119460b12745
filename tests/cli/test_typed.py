"""What the commands do with a typed buffer that is there: read it, show it, evolve it, check it."""

from __future__ import annotations

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
from forebay.buffer.topic import TopicProducer
from forebay.cli import main

Shown = Callable[..., str]
Told = Callable[..., str]


def objects_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


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
    (first,), (second,) = forebay.Consumer(url), forebay.Consumer(again)
    assert first.table.equals(second.table)


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


def test_evolution_is_told_as_json(shown: Shown, typed_topic: str) -> None:
    change = ("schema", "evolve", typed_topic, "--column", "place", "struct<tags: list<string>>", "--json")
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
    assert "there is nothing to change" in told("schema", "evolve", typed)


def test_column_without_a_type_is_told_with_what_is_accepted(typed: str, told: Told) -> None:
    error = told("schema", "evolve", typed, "--column", "page", "text")
    assert "column page: position 1 of 'text': 'text' is not a type; use a type such as" in error


def test_partition_refuses_to_evolve_already_in_the_dry_run(typed_topic: str, told: Told) -> None:
    assert "gets its schema from the topic" in told(
        "schema", "evolve", f"{typed_topic}/p-00000", "--column", "a", "string"
    )


def test_buffer_of_bytes_has_no_schema_to_show_or_to_evolve(shown: Shown, told: Told, plain: str) -> None:
    assert "have no schema" in shown("schema", "show", plain)
    assert shown("schema", "show", plain, "--json") == ""
    assert "have no schema" in told("schema", "evolve", plain, "--column", "page", "string")


@pytest.mark.parametrize("kind", ["typed", "typed_topic"])
def test_stat_and_ls_show_schema_and_rows(kind: str, shown: Shown, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(kind)
    shown("schema", "evolve", url, "--column", "page", "string", "--apply")
    told = shown("stat", url)
    assert "  schema    version 1, 3 columns: id int64, at timestamp[us, tz=UTC], page string\n" in told
    assert "1 batch, 2 rows, " in told or " batches, 2 rows, " in told
    lines = shown("ls", url.rpartition("/")[0]).splitlines()
    assert (lines[0].split()[-1], lines[1].endswith("  version 1, 3 columns")) == ("schema", True)
    (listed,) = objects_of(shown("ls", url, "--json"))
    columns = {"id": "int64", "at": "timestamp[us, tz=UTC]", "page": "string"}
    assert (listed["schema"]["version"], listed["schema"]["columns"]) == (1, columns)


def test_stat_shows_the_version_that_each_partition_has_reached(shown: Shown, typed_topic: str) -> None:
    shown("schema", "evolve", typed_topic, "--column", "page", "string", "--apply")
    with TopicProducer(typed_topic) as producer:
        producer.produce({"id": 3}, key=b"a")
    versions = {part["schema"]["version"] for part in objects_of(shown("stat", typed_topic, "--json"))}
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


@pytest.mark.parametrize("options", [[], ["--deep"]], ids=" ".join)
def test_verify_decodes_rows(options: list[str], typed: str, shown: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    """The object has the size and the checksum that are listed, and other columns than the schema."""
    assert "ok: 1 batch," in shown("verify", typed)
    store = open_store(typed)
    other = bytes(encode_rows(pa.table({"name": ["x"]})))
    location = f"data/{mint(SystemClock(), system_random())}.parquet"
    store.put(location, other)
    batch = NewBatch(location, (), Facts(len(other), 100, 1, crc32c(other), 0, 0), schema=0)
    queue = Queue(store)
    queue.append([batch], version=2, schemas=queue.read().schemas)
    assert "ok: 2 batches" in shown("verify", typed, "--shallow")
    assert main(["verify", typed, *options]) == 1
    assert f"corrupt: {location}: batch 1: " in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["typed", "typed_topic"])
def test_migrate_refuses_what_was_of_version_2_from_the_start(
    kind: str, told: Told, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(kind)
    reason = "is a typed buffer: it holds rows of a schema" if kind == "typed" else "is a topic"
    assert f"error: {url} {reason}" in told("migrate", url, "--others-stopped")

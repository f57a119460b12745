"""What `forebay produce` does with JSON lines for a typed buffer: by a schema file, and by one that it infers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.buffer.either.schemas import schema_versions

Shown = Callable[..., str]
Told = Callable[..., str]


def write(path: Path, *lines: str) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def rows_in(url: str) -> list[dict[str, Any]]:
    return [row for batch in forebay.Consumer(url, group="check") for row in batch.entries]


# Writing


def test_produce_makes_a_typed_buffer_of_a_schema_file(tmp_path: Path, shown: Shown) -> None:
    url = f"file://{tmp_path}/new"
    schema = write(tmp_path / "schema.toml", 'id = "int64 not null"', 'tags = "list<string>"')
    lines = write(tmp_path / "lines", '{"id": 1, "tags": ["a"]}', '{"id": 2}')
    answer = json.loads(shown("produce", url, lines, "--schema", schema, "--metadata", "host=a", "--json"))
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


def test_rows_go_into_a_typed_topic(typed_topic: str, tmp_path: Path, shown: Shown) -> None:
    shown("produce", typed_topic, write(tmp_path / "lines", '{"id": 3}'), "--infer")
    assert sorted(json.loads(line)["id"] for line in shown("tail", typed_topic).splitlines()) == [1, 2, 3]


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
    assert "Correct line 20001, and continue with it" in error
    assert [row["id"] for row in rows_in(url)] == list(range(20_000))


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('{"id": 1, "other": 5}', "column other: the schema has no column of this name; found int 5"),
        ('{"id": 1.5}', "column id: expected int64, found float 1.5"),
        ("[1]", "expected exactly one JSON object"),
        ("", "expected exactly one JSON object"),
        ('{"id": 1} {"id": 2}', "expected exactly one JSON object"),
        ('{"id": 1, "id": 2}', "column id: expected each key once"),
        ('{"at": "2026-01-31T12:00:00"}', "column at: expected timestamp[us, tz=UTC], found str '2026-01-31T12:00:00'"),
    ],
)
def test_each_misfit_is_told_with_its_line(line: str, error: str, typed: str, tmp_path: Path, told: Told) -> None:
    text = told("produce", typed, write(tmp_path / "lines", line))
    assert f"error: line 1, {error}" in text
    assert ".. All lines before it are durable" not in text
    assert len(rows_in(typed)) == 2


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ('{"id": 1, "other": 5}', "or add the column to the schema (`forebay schema evolve`)"),
        ('{"id": 300}', "or widen the type of the column (`forebay schema evolve`)"),
        ('{"page": "/"}', "or make the column nullable (`forebay schema evolve --schema`)"),
        ('{"id": "x"}', "Correct line 2, and continue with it"),
        ("[1]", "Correct line 2, and continue with it"),
    ],
)
def test_change_of_the_schema_is_advised_only_where_it_helps(
    line: str, advice: str, tmp_path: Path, told: Told
) -> None:
    schema = write(tmp_path / "schema.toml", 'id = "int8 not null"', 'page = "string"')
    lines = write(tmp_path / "lines", '{"id": 1}', line)
    error = told("produce", f"file://{tmp_path}/new", lines, "--schema", schema)
    assert "The line before it is durable. Nothing from line 2 on was written. Correct line 2" in error
    assert advice in error
    assert error.count("`forebay") == advice.count("`forebay")


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
        ('id = "whole"', "column id: position 1 of 'whole': 'whole' is not a type"),
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
    assert "line 1001, column late: the schema has no column of this name; found bool True" in error
    assert len(rows_in(url)) == 1000


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([], "the input is empty"),
        (['{"id": 1}', '{"id": "x"}'], "line 2, column id: expected int64, found string"),
        (['{"a": {"b": [1]}}', '{"a": {"b": [true]}}'], "line 2, column a.b.element: expected int64, found bool"),
        (['{"id": 9223372036854775808}'], "line 1, column id: expected int64, found int 9223372036854775808"),
        (['{"id": null}'], "from 1 line: column id has no value except null, so its type is unknown"),
        (['{"id": {}}'], "column id: struct<> cannot be stored"),
        (['{"id": 1, "ID": 2}'], "differ only in case"),
        (['{"_index": 1}'], "column _index: readers add a column of this name"),
        (["{}"], "the schema has no columns; give it at least one"),
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


@pytest.mark.parametrize("line", ["[]", "hello", ""])
def test_line_that_is_not_a_json_object_is_named_before_anything_is_inferred(
    line: str, tmp_path: Path, told: Told
) -> None:
    refused = told("produce", f"file://{tmp_path}/new", write(tmp_path / "lines", '{"id": 1}', line, "{}"), "--infer")
    assert f"line 2 is not exactly one JSON object, but bytes {line.encode()!r}" in refused
    assert "leave out --infer to write bytes" in refused
    assert not (tmp_path / "new").exists()


def test_schema_is_not_inferred_for_a_buffer_that_has_one(typed: str, tmp_path: Path, told: Told) -> None:
    printed = told("produce", typed, write(tmp_path / "lines", '{"id": 3}'), "--infer", status=0)
    assert "has a schema, which is used" in printed
    assert "inferred from" not in printed


def test_schema_is_either_given_or_inferred(tmp_path: Path, told: Told) -> None:
    schema = write(tmp_path / "schema.toml", 'id = "int64"')
    error = told("produce", f"file://{tmp_path}/new", "/dev/null", "--infer", "--schema", schema)
    assert "give one of them" in error


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
    assert "1 row" in told("produce", url, "--infer", status=130)
    assert rows_in(url) == [{"id": 1}]


def test_ctrl_c_before_the_first_line_makes_nothing(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Interrupted(b""))
    assert told("produce", f"file://{tmp_path}/new", "--infer", status=130) == "interrupted\n"
    assert not (tmp_path / "new").exists()

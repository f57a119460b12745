"""JSON entries into rows, by Arrow's own reader, and never a crash or a wrong row for hostile ones.

Mutation notes: each of these, removed from `JsonLines`, fails a test here: the check of how an entry begins and ends
(Arrow dies of a leading `null`), of its nesting (it dies of that too), of the number of rows, and `validate`.
"""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.buffer.base.errors import Corrupt, InvalidInput
from forebay.runtime.decoders import BadEntry, JsonLines
from forebay.testing.commits import make_batch

SCHEMA = pa.schema([("page", pa.string()), ("count", pa.int64())])
decode = JsonLines(SCHEMA)


def rows(*entries: bytes) -> list[dict[str, object]]:
    found: list[dict[str, object]] = decode(make_batch(entries)).to_pylist()
    return found


def test_entries_become_rows_of_the_schema_in_order() -> None:
    table = decode(make_batch([b'{"page": "/", "count": 1}', b'{"count": 2, "page": "/cart"}']))
    assert table.schema == SCHEMA
    assert table.to_pylist() == [{"page": "/", "count": 1}, {"page": "/cart", "count": 2}]


def test_entries_are_decoded_without_a_batch_too() -> None:
    entries = [b'{"page": "/", "count": 1}', b'{"count": 2}']
    expected = decode(make_batch(entries))
    assert decode.decode(entries) == expected
    assert decode.decode(pa.array(entries, pa.binary())) == expected
    assert JsonLines(SCHEMA, keep=["sequence"]).decode(entries) == expected
    assert decode.decode([]) == SCHEMA.empty_table()


def test_time_without_a_zone_is_taken_as_utc() -> None:
    columns = JsonLines(pa.schema([("at", pa.timestamp("us", tz="UTC"))]))
    table = columns.decode([b'{"at": "2026-01-31T12:00:00"}', b'{"at": "2026-01-31T13:00:00+01:00"}'])
    assert table["at"].to_pylist() == [datetime(2026, 1, 31, 12, tzinfo=UTC)] * 2


def test_bad_entries_without_a_batch_are_all_named() -> None:
    with pytest.raises(BadEntry, match="entry 1 is not what was expected: it is not a JSON object") as raised:
        decode.decode([b"{}", b"no", b"{}", b'{"count": "x"}'])
    assert list(raised.value.reasons) == [1, 3]
    assert raised.value.index == 1


@pytest.mark.parametrize("entries", [b"{}", "{}", ["{}"], [None], pa.array(["{}"])])
def test_what_is_no_list_of_bytes_is_refused(entries: Any) -> None:
    with pytest.raises(InvalidInput, match=r"bytes|binary"):
        decode.decode(entries)


def test_unknown_fields_are_left_out_and_missing_ones_are_null() -> None:
    assert rows(b'{"other": [null, {"deep": 1}]}', b"{}") == [{"page": None, "count": None}] * 2


def test_white_space_and_line_ends_around_and_in_an_object_do_not_matter() -> None:
    assert rows(b' {"count": 1}\r\n', b'{"count":\n2\n}') == [{"page": None, "count": 1}, {"page": None, "count": 2}]


def test_text_becomes_times_decimals_and_bytes_where_the_schema_says_so() -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("price", pa.decimal128(9, 2)), ("id", pa.binary())])
    entry = b'{"at": "2026-01-31T12:00:00Z", "price": "1.25", "id": "x"}'
    (row,) = JsonLines(schema)(make_batch([entry])).to_pylist()
    assert row == {"at": datetime(2026, 1, 31, 12, tzinfo=UTC), "price": Decimal("1.25"), "id": b"x"}


def test_nested_columns_are_read_with_their_nulls() -> None:
    schema = pa.schema([("a", pa.list_(pa.int64())), ("s", pa.struct([("x", pa.list_(pa.string()))]))])
    entries = [{"a": [None, 1], "s": {"x": [None, "y"]}}, {"a": None, "s": None}, {"a": [], "s": {"x": None}}]
    assert JsonLines(schema)(make_batch([json.dumps(entry).encode() for entry in entries])).to_pylist() == entries


def test_columns_of_the_record_are_kept_if_asked_for() -> None:
    keeping = JsonLines(SCHEMA, keep=["sequence", "index", "ingestion_time"])
    batch = make_batch([b'{"count": 1}', b'{"count": 2}'], 7, time_ms=1_767_225_600_000)
    table = keeping(batch)
    assert table.column_names == ["page", "count", "sequence", "index", "ingestion_time"]
    assert table.drop(["page", "count"]) == batch.records().drop(["metadata", "value"])


def test_batch_without_entries_gives_no_rows_of_the_same_schema() -> None:
    assert decode(make_batch([])) == SCHEMA.empty_table()


def test_entries_larger_than_the_readers_block_are_read() -> None:
    long = json.dumps({"page": "x" * 3_000_000, "count": 1}).encode()
    table = JsonLines(SCHEMA, piece_bytes=4 << 20)(make_batch([b'{"count": 0}', long, long, b'{"count": 3}']))
    assert [len(page or "") for page in table["page"].to_pylist()] == [0, 3_000_000, 3_000_000, 0]


def test_decoder_pickles() -> None:
    assert pickle.loads(pickle.dumps(decode))(make_batch([b"{}"])).num_rows == 1


DEEP = b'{"other":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
HOSTILE = [
    pytest.param(b"null", id="null"),
    pytest.param(b" null ", id="null with space"),
    pytest.param(b"", id="nothing"),
    pytest.param(b"\n", id="an empty line"),
    pytest.param(b"[1]", id="a list"),
    pytest.param(b"3", id="a number"),
    pytest.param(b'{"count": 1', id="cut short"),
    pytest.param(b'{"count": 1} null', id="an object and null"),
    pytest.param(b'{"count": 1} {"count": 2}', id="two objects"),
    pytest.param(b'{"count": 1}\n{"count": 2}', id="two lines"),
    pytest.param(b'{"count": "many"}', id="text for a number"),
    pytest.param(b'{"count": 1.5}', id="a fraction for a whole number"),
    pytest.param(b'{"count": 99999999999999999999}', id="too large"),
    pytest.param(b'{"page": 5}', id="a number for text"),
    pytest.param(b'{"page": "\xff"}', id="no UTF-8"),
    pytest.param(b'{"page": "a\nb"}', id="a line end in text"),
    pytest.param(b'{"count": 1, "count": 2}', id="a field twice"),
    pytest.param(b'{"a": {}', id="a brace too few"),
    pytest.param(b'{"a": "}', id="an open text"),
    pytest.param(b'{"b": 1}}', id="a brace too many"),
    pytest.param(b"\xef\xbb\xbf{}", id="a byte order mark"),
    pytest.param(b"\x00" * 20, id="zeros"),
    pytest.param(DEEP, id="nested 200,000 deep"),
    pytest.param(b'{"q":' * 60_000 + b"1" + b"}" * 60_000, id="objects 60,000 deep"),
]


@pytest.mark.parametrize("bad", HOSTILE)
@pytest.mark.parametrize("index", [0, 2, 4])
def test_hostile_entry_is_named_and_kills_nobody(bad: bytes, index: int) -> None:
    entries = [b'{"page": "/", "count": 1}'] * 4
    entries.insert(index, bad)
    with pytest.raises(BadEntry, match=rf"batch 12, entry {index} of data/") as raised:
        decode(make_batch(entries, 12))
    assert (raised.value.sequence, raised.value.index) == (12, index)
    assert isinstance(raised.value, Corrupt)


def test_first_of_several_bad_entries_is_named() -> None:
    with pytest.raises(BadEntry) as raised:
        rows(b"{}", b'{"count": "x"}', b"null", b"{}")
    assert raised.value.index == 1
    with pytest.raises(BadEntry) as raised:
        rows(b"{}", b"null", b'{"count": "x"}', b"{}")
    assert raised.value.index == 1


def test_bad_entry_of_a_later_piece_is_named_by_its_place_in_the_batch() -> None:
    decode = JsonLines(SCHEMA, piece_bytes=100)
    entries = [b'{"count": %d}' % i for i in range(50)]
    assert decode(make_batch(entries))["count"].to_pylist() == list(range(50))
    with pytest.raises(BadEntry) as raised:
        decode(make_batch([*entries, b"[]"]))
    assert raised.value.index == 50


@pytest.mark.parametrize("pair", [(b'{"a": ', b'{"x": 1}}'), (b'{"page": "}', b'{"}'), (b'{"a": 1', b',"b": 2}')])
def test_entries_that_are_one_object_together_are_bad_each(pair: tuple[bytes, bytes]) -> None:
    """With two objects in the third, there would be as many rows as entries."""
    with pytest.raises(BadEntry) as raised:
        rows(*pair, b'{"count": 1}{"count": 2}')
    assert raised.value.index == 0


def test_large_entry_with_many_brackets_and_little_depth_is_read() -> None:
    entry = json.dumps({"count": 1, "other": [[i] for i in range(20_000)]}).encode()
    assert rows(entry) == [{"page": None, "count": 1}]


def test_null_in_a_column_that_forbids_it_is_named() -> None:
    strict = JsonLines(pa.schema([pa.field("count", pa.int64(), nullable=False)]))
    with pytest.raises(BadEntry, match="column count: expected a number") as raised:
        strict(make_batch([b'{"count": 1}', b'{"count": null}']))
    assert raised.value.index == 1


@given(st.lists(st.one_of(st.binary(max_size=12), st.sampled_from([b"{}", b"null", b'{"count":1}', b"}", b"{", b'"']))))
def test_any_bytes_give_rows_or_name_the_first_entry_that_is_no_object(entries: list[bytes]) -> None:
    wrong = [i for i, entry in enumerate(entries) if not is_object(entry)]
    if not wrong:
        assert decode(make_batch(entries)).num_rows == len(entries)
        return
    with pytest.raises(BadEntry) as raised:
        decode(make_batch(entries))
    assert raised.value.index == wrong[0]


def is_object(entry: bytes) -> bool:
    try:
        found = json.loads(entry)
    except ValueError:
        return False
    return isinstance(found, dict) and found in ({}, {"count": 1})


def test_schema_that_json_cannot_fill_is_refused_at_once() -> None:
    with pytest.raises(InvalidInput, match="map"):
        JsonLines(pa.schema([("m", pa.map_(pa.string(), pa.int64()))]))


def test_kept_columns_must_exist_and_have_names_of_their_own() -> None:
    with pytest.raises(InvalidInput, match="value"):
        JsonLines(SCHEMA, keep=["value"])
    with pytest.raises(InvalidInput, match="name of its own"):
        JsonLines(pa.schema([("sequence", pa.int64())]), keep=["sequence"])

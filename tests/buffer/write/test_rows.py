"""Calls with rows on their way into a batch: copied at the call, converted together, those that do not fit left out."""

from __future__ import annotations

from array import array
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from forebay.buffer.base.errors import Closed, InvalidInput, Unavailable
from forebay.buffer.format.model import Metadata
from forebay.buffer.format.parquet import decode_rows
from forebay.buffer.format.rows import Converted, Fitted, RowConverter
from forebay.buffer.write.accumulator import FLUSH_METADATA_BYTES
from forebay.buffer.write.rows import FilledRows, RowAccumulator, RowCall, RowFormat, check_rows, row_bytes_of

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
    ]
)
CONVERTER = RowConverter(SCHEMA)
FORMAT = RowFormat(SCHEMA, SCHEMA, ("a" * 32, "b" * 32))


def fill(*calls: RowCall, rows: RowFormat = FORMAT) -> FilledRows:
    accumulator = RowAccumulator(1 << 20, rows)
    for call in calls:
        assert accumulator.apply(call) is call
    filled, _ = accumulator.freeze()
    return filled


def ids_in(filled: FilledRows) -> list[int]:
    filled.prepare()
    records, raw_bytes = filled.count, filled.raw_bytes
    data = filled.encode("zstd", 1)
    table = decode_rows(data, FORMAT.stored, records=records, raw_bytes=raw_bytes)
    ids: list[int] = table["id"].to_pylist()
    return ids


def call(*ids: Any, metadata: bytes = b"", time_ms: int = 5, number: int | None = None) -> RowCall:
    made = check_rows([{"id": each} for each in ids], metadata, time_ms, converter=CONVERTER)
    made.number = number
    return made


@pytest.mark.parametrize(
    ("rows", "count"),
    [
        ({"id": 1}, 1),
        ([{"id": 1}, {"id": 2}], 2),
        (({"id": 1},), 1),
        (b'{"id": 1}', 1),
        ([b'{"id": 1}', b'{"id": 2}'], 2),
        (pa.table({"id": [1, 2, 3]}), 3),
        (pa.record_batch({"id": [1, 2]}), 2),
    ],
)
def test_rows_of_every_form_are_taken(rows: Any, count: int) -> None:
    made = check_rows(rows, b"", 5, converter=CONVERTER)
    assert made.count == count
    assert ids_in(fill(made)) == list(range(1, count + 1))


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([], "no rows"),
        (pa.table({"id": pa.array([], pa.int64())}), "no rows"),
        ("text", "not str"),
        (7, "not int"),
        (None, "not NoneType"),
        (pa.array([1]), "Array"),
        ([{"id": 1}, b"{}"], "found bytes, dict"),
        ([["id", 1]], "found list"),
    ],
)
def test_what_can_never_be_rows_is_refused_by_the_call(rows: Any, match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        check_rows(rows, b"", 5, converter=CONVERTER)


def test_metadata_must_be_bytes() -> None:
    with pytest.raises(InvalidInput, match="metadata must be bytes"):
        check_rows({"id": 1}, "text", 5, converter=CONVERTER)  # type: ignore[arg-type]


def test_rows_may_be_changed_after_the_call() -> None:
    rows: list[Any] = [{"id": 1, "tags": ["a"], "text": "kept"}]
    made = check_rows(rows, b"", 5, converter=CONVERTER)
    one = check_rows(rows[0], b"", 5, converter=CONVERTER)
    flat: list[Any] = [{"id": 1, "text": "kept"}]
    without_lists = check_rows(flat, b"", 5, converter=CONVERTER)
    rows[0]["tags"].append("b")
    rows[0]["text"] = flat[0]["text"] = "changed"
    rows.append({"id": 2})
    filled = fill(made, one, without_lists)
    filled.prepare()
    assert filled.table is not None
    kept = {"id": 1, "text": "kept", "tags": ["a"]}
    assert filled.table.to_pylist() == [kept, kept, {**kept, "tags": None}]


def test_list_of_documents_may_be_changed_after_the_call() -> None:
    documents = [b'{"id": 1}', b'{"id": 2}']
    made = check_rows(documents, b"", 5, converter=CONVERTER)
    documents[0] = b'{"id": 9}'
    documents.append(b'{"id": 3}')
    assert ids_in(fill(made)) == [1, 2]


def test_nested_rows_may_be_changed_after_the_call() -> None:
    schema = pa.schema([pa.field("a", pa.struct([pa.field("b", pa.list_(pa.field("element", pa.binary())))]))])
    row: dict[str, Any] = {"a": {"b": [bytearray(b"kept")]}}
    made = check_rows(row, b"", 5, converter=CONVERTER)
    row["a"]["b"][0][:] = b"gone"
    row["a"]["c"] = 1
    filled = fill(made, rows=RowFormat(schema, schema, ("a" * 32,)))
    filled.prepare()
    assert filled.table is not None
    assert filled.table.to_pylist() == [{"a": {"b": [b"kept"]}}]


def test_slice_of_a_table_does_not_keep_the_table() -> None:
    table = pa.table({"id": pa.array(range(100_000))})
    made = check_rows(table.slice(10, 5), b"", 5, converter=CONVERTER)
    assert made.rows.get_total_buffer_size() < 1000
    assert ids_in(fill(made)) == [10, 11, 12, 13, 14]


def test_slice_does_not_keep_its_table_if_arrow_cannot_copy_one_of_its_columns() -> None:
    count = 100_000
    table = pa.table({"id": pa.array(range(count)), "text": pa.array(["kept"] * count, pa.string_view())})
    made = check_rows(table.slice(10, 5), b"", 5, converter=CONVERTER)
    assert made.rows.table.get_total_buffer_size() < 1000
    assert ids_in(fill(made)) == [10, 11, 12, 13, 14]


def test_slice_with_wrong_offsets_fails_alone() -> None:
    offsets = array("i", [0] * 998 + [1 << 30, 10])
    text = pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(b"x" * 10_000))
    lists = pa.ListArray.from_buffers(
        pa.list_(pa.string()), len(text), [None, pa.py_buffer(offsets)], children=[pa.array(["x"] * 10)]
    )
    inside = pa.table({"id": range(len(text)), "text": text}).slice(len(text) - 3)
    at_the_end = pa.table({"id": range(len(text)), "tags": lists}).slice(len(text) - 3, 2)
    calls = [check_rows(rows, b"", 5, converter=CONVERTER) for rows in (inside, at_the_end)]
    assert ids_in(fill(call(1), *calls, call(2))) == [1, 2]
    assert ["expected valid Arrow data" in str(made.error) for made in calls] == [True, True]


def test_whole_table_is_not_copied() -> None:
    table = pa.table({"id": pa.array(range(100_000))})
    assert check_rows(table, b"", 5, converter=CONVERTER).rows is table


@pytest.mark.parametrize("rows", [{"id": 1, "text": "x" * 10_000}, [{"id": 1, "tags": ["x" * 10_000]}], b"x" * 10_000])
def test_memory_of_a_call_counts_its_texts(rows: Any) -> None:
    assert 10_000 <= check_rows(rows, b"", 5, converter=CONVERTER).memory <= 12_000


def test_memory_of_a_small_table_counts_its_columns() -> None:
    table = pa.table({f"c{number}": [number] for number in range(10)})
    assert 6_000 <= check_rows(table, b"", 5, converter=CONVERTER).memory <= 8_000
    rows: list[dict[str, Any]] = [{"id": number} for number in range(200)]
    converted = check_rows(rows, b"", 5, converter=CONVERTER)
    assert converted.memory >= converted.rows.table.nbytes + 3 * 640, "of a list that was converted at the call too"


def test_memory_of_a_dict_counts_the_dict() -> None:
    assert 400 <= check_rows({"id": 1}, b"", 5, converter=CONVERTER).memory <= 600
    assert 2_400 <= check_rows([{"id": 1}] * 10, b"", 5, converter=CONVERTER).memory <= 3_000


def test_memory_of_a_slice_counts_all_that_it_keeps() -> None:
    table = pa.table({"id": list(range(1_000_000))})
    kept = check_rows(table.slice(0, 700_000), b"", 5, converter=CONVERTER)
    assert kept.memory >= 8_000_000, "the whole table stays in memory"
    copied = check_rows(table.slice(0, 100_000), b"", 5, converter=CONVERTER)
    assert 800_000 <= copied.memory <= 810_000


def test_call_that_does_not_fit_is_left_out_and_told_why() -> None:
    good, bad, last = call(1, 2), call(3, "four"), call(5)
    filled = fill(good, bad, last)
    assert ids_in(filled) == [1, 2, 5]
    assert bad.error is not None
    assert "row 1, column id: expected int64 not null, found str 'four'" in str(bad.error)
    assert (good.error, last.error) == (None, None)


def test_batch_of_calls_that_do_not_fit_is_empty() -> None:
    filled = fill(call("one"), call("two"))
    filled.prepare()
    assert filled.count == 0
    assert filled.metadata == []


def test_metadata_is_counted_without_the_rows_that_were_left_out() -> None:
    filled = fill(
        call(1, 2, metadata=b"a"), call("x", 3, metadata=b"b"), call(4, metadata=b"a"), call(5, metadata=b"c")
    )
    filled.prepare()
    assert filled.metadata == [Metadata(0, 5, b"a"), Metadata(3, 5, b"c")]


def test_calls_of_one_millisecond_with_equal_metadata_share_an_item() -> None:
    filled = fill(call(1), call(2), call(3, time_ms=6))
    filled.prepare()
    assert filled.metadata == [Metadata(0, 5, b""), Metadata(2, 6, b"")]


def test_number_of_a_batch_is_that_of_the_last_call_that_is_stored() -> None:
    filled = fill(call(1, number=7), call(2, number=8), call("x", number=9))
    filled.prepare()
    assert filled.number == 8


def test_rows_are_let_go_of_once_they_are_converted() -> None:
    good, bad = call(1), call("x")
    fill(good, bad).prepare()
    assert (good.rows, bad.rows) == (None, None)


def test_repeat_of_what_is_durable_adds_nothing() -> None:
    repeat = call(1, number=1)
    repeat.drop_entries()
    filled = fill(repeat)
    assert (filled.count, filled.calls) == (0, [])


def test_columns_that_the_producer_lacks_are_stored_as_null() -> None:
    narrow = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    filled = fill(call(1), rows=RowFormat(narrow, SCHEMA, FORMAT.ids))
    filled.prepare()
    assert filled.table is not None
    assert filled.table.to_pylist() == [{"id": 1, "text": None, "tags": None}]


def test_batch_names_its_version_and_its_ending() -> None:
    assert (fill().schema, fill().ending, fill().version) == (1, ".parquet", 2)


def test_batch_with_much_metadata_is_due_for_a_flush() -> None:
    accumulator = RowAccumulator(1 << 30, FORMAT)
    accumulator.apply(call(1, metadata=b"x" * FLUSH_METADATA_BYTES))
    assert accumulator.size() >= 1 << 30


@pytest.mark.parametrize("is_nested", [False, True])
def test_values_of_a_dictionary_count_for_each_row_that_has_them(is_nested: bool) -> None:
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int8()), pa.array(["x" * 1000]))
    column = {"tags": pa.ListArray.from_arrays(range(1001), text)} if is_nested else {"text": text}
    made = check_rows(pa.table({"id": range(1000), **column}), b"", 5, converter=CONVERTER)
    assert 1_000_000 <= made.raw_bytes <= made.memory <= 1_100_000
    assert ids_in(fill(made)) == list(range(1000))


@pytest.mark.parametrize("column", [pa.nulls(10_000), pa.array([{}] * 10_000, pa.struct([]))], ids=["null", "none"])
def test_rows_without_a_value_count_what_they_take_in_a_batch(column: pa.Array) -> None:
    rows = pa.table({"text": column})
    if pa.types.is_struct(column.type):
        rows = pa.RecordBatch.from_struct_array(column)
    schema = pa.schema([pa.field("text", pa.string())])
    made = check_rows(rows, b"", 5, converter=RowConverter(schema))
    assert made.count == 10_000
    assert 10_000 / 8 <= made.raw_bytes <= made.memory, "at least a bit for each row"


def test_size_is_about_what_the_rows_take() -> None:
    accumulator = RowAccumulator(1 << 30, FORMAT)
    accumulator.apply(check_rows([{"id": 1, "text": "x" * 1000}] * 10, b"", 5, converter=CONVERTER))
    assert 10_000 <= accumulator.size() <= 12_000
    filled, after = accumulator.freeze()
    assert filled.count == 10
    assert after.size() == 0


def test_long_list_of_dicts_is_converted_at_the_call_and_may_change_after_it() -> None:
    rows = [{"id": i, "tags": ["a"]} for i in range(1000)]
    made = check_rows(rows, b"", 5, converter=CONVERTER)
    rows[5]["tags"].append("b")
    rows[6]["id"] = 7
    assert isinstance(made.rows, Fitted)
    assert ids_in(fill(call(-1), made, call(1000))) == list(range(-1, 1001))
    assert made.error is None


def test_long_list_that_does_not_fit_fails_alone_as_a_short_one_does() -> None:
    wrong = [{"id": i} for i in range(500)] + [{"id": "x"}]
    made = check_rows(wrong, b"", 5, converter=CONVERTER)
    before, after = call(1), call(2)
    assert ids_in(fill(before, made, after)) == [1, 2]
    assert str(made.error) == "row 500, column id: expected int64 not null, found str 'x'"
    assert (before.error, after.error) == (None, None)


def test_numbered_call_after_one_that_does_not_fit_is_not_stored() -> None:
    calls = [call(1, number=7), call("x", number=8), call(3, number=9)]
    filled = fill(*calls)
    assert ids_in(filled) == [1]
    assert (filled.number, filled.gap) == (7, calls[1].error)
    assert [type(made.error) for made in calls] == [type(None), InvalidInput, Closed]


def test_batch_that_lacks_rows_is_not_stored() -> None:
    class Losing(RowConverter):
        def convert(self, calls: Any) -> Converted:
            found = super().convert(calls)
            return Converted(found.table.slice(1), found.rows, found.failures)

    filled = FilledRows(FORMAT, Losing(SCHEMA), [call(1, 2)])
    with pytest.raises(InvalidInput, match="these calls have 2 rows, of which 1 were converted"):
        filled.prepare()


class Short(list[RowCall]):
    """Has no memory for the second call."""

    def append(self, call: RowCall) -> None:
        if call.number == 2:
            raise MemoryError
        super().append(call)


def test_batch_that_lacks_a_numbered_call_is_not_stored() -> None:
    accumulator = RowAccumulator(1 << 20, FORMAT)
    accumulator._batch.calls = Short()
    for number in (1, 2, 3):
        with suppress(MemoryError):
            accumulator.apply(call(number, number=number))
    filled, _ = accumulator.freeze()
    with pytest.raises(Unavailable, match="memory ran short"):
        filled.prepare()


@pytest.mark.parametrize("number", [1, 2])
def test_call_whose_number_does_not_grow_in_the_queue_is_refused(number: int) -> None:
    accumulator = RowAccumulator(1 << 20, FORMAT)
    accumulator.apply(call(2, number=2))
    accumulator.freeze()
    with pytest.raises(InvalidInput, match="numbers must grow"):
        accumulator.apply(call(number, number=number))


def test_lack_of_memory_is_no_misfit(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise pa.ArrowMemoryError("realloc of size 536870912 failed")

    filled = fill(call(1))
    monkeypatch.setattr("forebay.buffer.format.columns._whole", fail)
    with pytest.raises(MemoryError):
        filled.prepare()


def test_zstd_without_memory_is_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("ZSTD compression failed: Allocation error : not enough memory")

    filled = fill(call(1))
    filled.prepare()
    monkeypatch.setattr("forebay.buffer.write.rows.encode_rows", fail)
    with pytest.raises(MemoryError):
        filled.encode("zstd", 1)


def test_columns_that_a_row_lacks_are_counted() -> None:
    kinds = [pa.float64(), pa.string(), pa.struct([("x", pa.int32())]), pa.bool_(), pa.map_("string", "int8")]
    schema = pa.schema([pa.field(f"c{i}", kinds[i % 5]) for i in range(40)])
    converter = RowConverter(schema)
    rows = [b'{"c0": 1}'] * 1000
    call = check_rows(rows, b"", 5, converter=converter, row_bytes=row_bytes_of(schema))
    assert call.memory >= call.raw_bytes >= converter.convert([rows]).table.nbytes * 0.9

"""Schemas and batches of typed buffers as they lie in buckets. The files here are never changed."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa

from forebay.buffer.format.parquet import decode_rows
from forebay.buffer.format.schema import check_schema, decode_schema, encode_schema, present

GOLDEN = Path(__file__).parent
SCHEMA = check_schema(
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("count", pa.int32()),
            pa.field("page", pa.string()),
            pa.field("at", pa.timestamp("us", "Europe/Berlin")),
            pa.field("price", pa.decimal128(12, 2)),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("of", pa.struct([pa.field("a", pa.float64()), pa.field("b", pa.binary())])),
            pa.field("by", pa.map_(pa.string(), pa.int64())),
        ]
    )
)
WIDER = check_schema(
    pa.schema(
        [*[field if field.name != "count" else field.with_type(pa.int64()) for field in SCHEMA], ("new", pa.bool_())]
    )
)
AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
FIRST = {"id": 1, "count": 7, "page": "/a", "at": AT, "price": Decimal("1.50"), "tags": ["x", None]}
ROWS = [
    {**FIRST, "of": {"a": 0.5, "b": b"\0"}, "by": [("k", 1)]},
    {**dict.fromkeys(FIRST), "id": 2, "of": None, "by": None},
]
IDS = {"schema-v1": "a93ab3e18627a004a97fa10b0ebe8a2f", "schema-v1-wider": "e2a184aba366ac45ea0638e79dbf7193"}


def test_golden_schemas_are_read_and_written_as_they_always_were() -> None:
    for name, schema in (("schema-v1", SCHEMA), ("schema-v1-wider", WIDER)):
        data = (GOLDEN / name).read_bytes()
        assert decode_schema(data, name).equals(schema)
        assert encode_schema(schema) == data
        assert blake2b(data, digest_size=16).hexdigest() == IDS[name]


def test_golden_batch_is_read_as_it_always_was() -> None:
    data = (GOLDEN / "rows-v1.parquet").read_bytes()
    table = decode_rows(data, SCHEMA, records=2, raw_bytes=1000)
    assert table.schema.equals(SCHEMA)
    assert table.to_pylist() == ROWS


def test_golden_batch_is_shown_in_a_later_version() -> None:
    data = (GOLDEN / "rows-v1.parquet").read_bytes()
    shown = present(decode_rows(data, SCHEMA, records=2, raw_bytes=1000), WIDER)
    assert shown.schema.equals(WIDER)
    assert shown.to_pylist() == [{**row, "new": None} for row in ROWS]

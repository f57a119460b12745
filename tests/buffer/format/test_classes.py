"""A class as a schema: which columns it describes, and which classes describe none."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import NamedTuple, TypedDict

import msgspec
import pyarrow as pa
import pytest

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.format.schema import check_schema


@dataclass
class Place:
    country: str
    city: str | None = None


@dataclass
class Click:
    user: int
    seconds: float
    is_new: bool
    raw: bytes
    day: date
    at: datetime
    page: str | None
    place: Place | None
    tags: list[str]
    counts: dict[str, int | None]


class Event(msgspec.Struct, rename={"user": "User"}):
    user: int


class Row(TypedDict):
    user: int


class Pair(NamedTuple):
    user: int


@dataclass
class Priced:
    price: Decimal


@dataclass
class Mixed:
    user: int | str


@dataclass
class Tree:
    children: list[Tree]


def test_dataclass_describes_its_columns() -> None:
    place = pa.struct([pa.field("country", pa.string(), nullable=False), pa.field("city", pa.string())])
    expected = pa.schema(
        [
            pa.field("user", pa.int64(), nullable=False),
            pa.field("seconds", pa.float64(), nullable=False),
            pa.field("is_new", pa.bool_(), nullable=False),
            pa.field("raw", pa.binary(), nullable=False),
            pa.field("day", pa.date32(), nullable=False),
            pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("page", pa.string()),
            pa.field("place", place),
            pa.field("tags", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
            pa.field("counts", pa.map_(pa.string(), pa.int64()), nullable=False),
        ]
    )
    assert check_schema(Click) == check_schema(expected)


@pytest.mark.parametrize(("given", "name"), [(Event, "User"), (Row, "user"), (Pair, "user")])
def test_other_classes_with_fields_describe_columns_too(given: type, name: str) -> None:
    assert check_schema(given) == pa.schema([pa.field(name, pa.int64(), nullable=False)])


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (Priced, "column price: Decimal needs a precision and a scale"),
        (Mixed, "column user: Union has no type of a column"),
        (Tree, "Tree contains itself"),
        (int, "int is not a class with fields"),
        (object, "object is not a class with fields"),
    ],
)
def test_class_that_describes_no_columns_is_refused_with_what_to_do(given: type, found: str) -> None:
    with pytest.raises(InvalidInput, match=f"{found}.*give an Arrow schema"):
        check_schema(given)

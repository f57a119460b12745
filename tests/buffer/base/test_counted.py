"""Numbers of things in texts for people."""

from __future__ import annotations

import pytest

from forebay.buffer.base.counted import counted


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "row", "1 row"),
        (0, "row", "0 rows"),
        (2000, "entry", "2,000 entries"),
        (1, "entry", "1 entry"),
        (3, "batch", "3 batches"),
        (None, "batch", "- batches"),
    ],
)
def test_noun_is_in_the_plural_unless_there_is_one(number: int | None, noun: str, text: str) -> None:
    assert counted(number, noun) == text

"""Numbers of things in texts for people: `1 row`, `2 rows`."""

from __future__ import annotations


def counted(number: float | None, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is one: `1 entry`, `2,000 entries`, `3 batches`."""
    if number is None:
        return f"- {_plural(noun)}"
    return f"{number:,.0f} {noun if number == 1 else _plural(noun)}"


def _plural(noun: str) -> str:
    if noun.endswith("y"):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith("ch") else f"{noun}s"

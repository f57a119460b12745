"""The tree of errors, pinned: callers branch on it."""

from __future__ import annotations

import pickle

import pytest

from forebay.buffer.base import errors


def subtree(kind: type) -> dict[str, object]:
    """Our own branches below `kind`; subclasses private to a module are details of it."""
    return {sub.__name__: subtree(sub) for sub in branches(kind)}


def branches(kind: type) -> list[type]:
    found: list[type] = []
    for sub in kind.__subclasses__():
        if sub.__module__ == errors.__name__:
            found.extend(branches(sub) if sub.__name__.startswith("_") else [sub])
    return found


def test_error_tree_is_as_documented() -> None:
    assert subtree(errors.ForebayError) == {
        "InvalidInput": {},
        "Backpressure": {},
        "Timeout": {},
        "Closed": {},
        "Fenced": {},
        "NotReady": {},
        "Trimmed": {},
        "StoreError": {"NotFound": {}, "Denied": {}, "Unavailable": {}, "Unknown": {}},
        "Corrupt": {},
        "Unsupported": {},
    }


def test_docstring_draws_every_error() -> None:
    def names(tree: dict[str, object]) -> set[str]:
        return set(tree).union(*(names(below) for below in tree.values() if isinstance(below, dict)))

    assert errors.__doc__ is not None
    for name in names(subtree(errors.ForebayError)):
        assert f"── {name} " in errors.__doc__


@pytest.mark.parametrize(
    ("error", "field"),
    [
        (errors.Timeout("late", write=[b"a"]), ("write", [b"a"])),
        (errors.Backpressure("full", write=b"b"), ("write", b"b")),
        (errors.Trimmed("gone", first=7), ("first", 7)),
    ],
)
def test_error_keeps_its_message_and_fields_through_a_pickle(
    error: errors.ForebayError, field: tuple[str, object]
) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert getattr(copy, field[0]) == field[1]


def test_timeout_and_bad_input_are_also_what_python_calls_them() -> None:
    assert issubclass(errors.Timeout, TimeoutError)
    assert issubclass(errors.InvalidInput, ValueError)

"""Packages whose names are loaded when they are asked for."""

from __future__ import annotations

import pytest

import forebay.buffer
import forebay.buffer.topic
import forebay.runtime


@pytest.mark.parametrize("package", [forebay.buffer, forebay.buffer.topic, forebay.runtime])
def test_every_public_name_can_be_had_and_is_listed(package: object) -> None:
    public: list[str] = vars(package)["__all__"]
    assert all(getattr(package, name) is not None for name in public)
    assert set(public) <= set(dir(package))


def test_name_that_is_not_there_is_missed_as_in_any_module() -> None:
    with pytest.raises(AttributeError, match=r"module 'forebay.runtime' has no attribute 'Rantime'"):
        forebay.runtime.Rantime  # type: ignore[attr-defined]  # noqa: B018

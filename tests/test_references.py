"""REFERENCES.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
NAMED = re.findall(r"^\| .* \| `(test_\w+)` \| `([\w/.]+)` \|$", (TESTS / "REFERENCES.md").read_text(), re.MULTILINE)


def test_every_test_that_is_named_exists() -> None:
    assert NAMED
    for name, path in NAMED:
        assert f"def {name}(" in (TESTS / path).read_text(), f"there is no {name} in {path}"

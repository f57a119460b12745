"""REFERENCES.md names tests that exist, and every test that says which case it holds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
NAMED = re.findall(r"^\| .* \| `(test_\w+)` \| `([\w/.]+)` \|$", (TESTS / "REFERENCES.md").read_text(), re.MULTILINE)


def test_every_test_that_is_named_exists() -> None:
    assert NAMED
    for name, path in NAMED:
        assert f"def {name}(" in (TESTS / path).read_text(), f"there is no {name} in {path}"


def test_every_test_of_a_case_is_named() -> None:
    for path in TESTS.rglob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and (ast.get_docstring(node) or "").startswith("Ref 00"):
                assert (node.name, str(path.relative_to(TESTS))) in NAMED, f"REFERENCES.md does not name {node.name}"

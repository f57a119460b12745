"""The tests themselves: none depends on how fast the machine is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import PATIENCE
from system import SYSTEM

TESTS = Path(__file__).parent
CALLS = {
    "acquire",
    "awaitTermination",
    "communicate",
    "get",
    "join",
    "poll",
    "result",
    "settimeout",
    "wait",
    "wait_for",
}
"""Methods whose only or last number is a limit in seconds. `timeout=` counts in any call."""


def limits_in(source: str) -> Iterator[tuple[int, float]]:
    """The line and the seconds of each limit that is written as a number."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and re.search("WAIT|PATIENCE", ast.unparse(node.targets[0])):
            yield from numbers(node.value)
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            given = [word.value for word in node.keywords if word.arg == "timeout"]
            given += node.args[-1:] if name in CALLS else []
            yield from numbers(*given)


def numbers(*values: ast.expr) -> Iterator[tuple[int, float]]:
    """The line and the value of each expression that is a number."""
    for value in values:
        if isinstance(value, ast.Constant) and type(value.value) in {int, float}:
            yield value.lineno, value.value


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: path.relative_to(TESTS).as_posix())
def test_no_test_has_a_time_limit_that_a_slow_machine_may_exceed(path: Path) -> None:
    """A few seconds are for manual clocks, and for waits that are meant to end. What is for hangs is `PATIENCE`."""
    wrong = [line for line, seconds in limits_in(path.read_text()) if 10 <= seconds < PATIENCE]
    assert not wrong, f"lines {wrong}: leave the limit out (pytest has one), or import PATIENCE from patience.py"


@pytest.mark.parametrize(
    "call",
    [
        "WAIT = 60.0",
        "handle.result(30)",
        "thread.join(timeout=60)",
        "run(['x'], timeout=100)",
        "lock.acquire(True, 20)",
    ],
)
def test_limit_written_as_a_number_is_found(call: str) -> None:
    assert [line for line, _ in limits_in(call)] == [1]


def test_limit_of_pytest_is_the_same_as_of_waits() -> None:
    (limit,) = re.findall(r"^timeout = (\d+)", (TESTS.parent / "pyproject.toml").read_text(), re.MULTILINE)
    assert float(limit) == PATIENCE


@pytest.mark.parametrize("place", sorted(SYSTEM), ids=lambda place: place.relative_to(TESTS).as_posix())
def test_what_the_fast_run_leaves_out_exists(place: Path) -> None:
    assert place.exists()

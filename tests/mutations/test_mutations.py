"""Guards and their tests: each guard can be taken out; in the long form, its test fails without it."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import mutations
from guards import TOP, Guard, Misplaced, find_files, load_guards

GUARDS = load_guards()
FILES = find_files()
MODULE = """
def halve(number):
    if number % 2:  # guard: refuse odd numbers
        raise ValueError
    try:
        half = number // 2
    # guard: catch any error
    except Exception:
        half = None
    log(half)  # guard: log it
    return half
"""


@cache
def functions_in(path: str) -> set[str]:
    tree = ast.parse((TOP / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def problem_with(guard: Guard) -> str | None:
    try:
        guard.remove_from((TOP / FILES[guard.name]).read_text())
    except (Misplaced, SyntaxError) as error:
        return f"{guard.name}: {error}"
    path, _, test = guard.test.partition("::")
    return None if test.partition("[")[0] in functions_in(path) else f"{guard.name}: there is no {guard.test}"


def test_guards_in_the_code_are_those_in_the_list() -> None:
    assert sorted(FILES) == sorted(guard.name for guard in GUARDS)


def test_every_guard_can_be_taken_out_and_its_test_is_there() -> None:
    by_file = sorted(GUARDS, key=lambda guard: FILES.get(guard.name, TOP))  # each file is parsed once
    assert [problem for guard in by_file if (problem := problem_with(guard))] == []


def test_guards_have_different_names_and_are_ordered_by_rfc() -> None:
    twice = [name for name, times in Counter(guard.name for guard in GUARDS).items() if times > 1]
    assert not twice
    assert [guard.rfc for guard in GUARDS] == sorted(guard.rfc for guard in GUARDS)


@pytest.mark.parametrize(
    ("guard", "before", "after"),
    [
        (Guard("refuse odd numbers", "", ""), "if number % 2:", "if False:"),
        (
            Guard("refuse odd numbers", "", "", without="if number:"),
            "if number % 2:  # guard: refuse odd",
            "if number:",
        ),
        (Guard("catch any error", "", "", without="except TypeError:"), "except Exception:", "except TypeError:"),
        (Guard("log it", "", ""), "    log(half)  # guard: log it", "    pass"),
        (Guard("log it", "", "", statements=2), "    return half", ""),
        (Guard("log it", "", "", before="half = 0"), "    log(half)", "    half = 0\n    log(half)"),
    ],
)
def test_guard_is_taken_out_as_the_list_says(guard: Guard, before: str, after: str) -> None:
    changed = guard.remove_from(MODULE)
    assert before in MODULE
    assert after in changed
    assert changed != MODULE


@pytest.mark.parametrize(
    ("guard", "complaint"),
    [
        (Guard("a comment that is not there", "", ""), "0 times"),
        (Guard("log it", "", "", without="forget(half)"), "has no forget"),
    ],
)
def test_guard_that_cannot_be_taken_out_is_reported(guard: Guard, complaint: str) -> None:
    with pytest.raises(Misplaced, match=complaint):
        guard.remove_from(MODULE)


def test_test_of_a_guard_fails_without_it_and_another_does_not() -> None:
    """All the way for one guard: the copy, the edit, its test, and a test that has nothing to do with it."""
    guard = next(guard for guard in GUARDS if FILES[guard.name].name == "names.py")
    other = replace(
        guard, test="tests/buffer/manifest/test_register.py::test_update_that_changes_nothing_writes_nothing"
    )
    with mutations.copy_of_the_tree() as copy:
        noticed, said = mutations.is_noticed(guard, FILES[guard.name], copy)
        assert noticed, said
        noticed, said = mutations.is_noticed(other, FILES[guard.name], copy)
        assert not noticed, said


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_guard_is_missed(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutations.main([]) == 0, capsys.readouterr().out

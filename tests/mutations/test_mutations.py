"""Guards and the tests that hold them: always, that each can be taken out; in the long form, that it is missed."""

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
from mutations import Guard, Moved

GUARDS = mutations.load_guards()


@cache
def functions_in(path: str) -> set[str]:
    tree = ast.parse((mutations.TOP / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def problem_with(guard: Guard) -> str | None:
    try:
        guard.remove_from((mutations.TOP / guard.file).read_text())
    except (Moved, SyntaxError, FileNotFoundError) as error:
        return str(error)
    path, _, test = guard.test.partition("::")
    return None if test.partition("[")[0] in functions_in(path) else f"{guard.name}: there is no {guard.test}"


def test_every_guard_can_be_taken_out_and_its_test_is_there() -> None:
    assert [problem for guard in GUARDS if (problem := problem_with(guard))] == []


def test_guards_have_names_of_their_own_and_come_by_rfc() -> None:
    twice = [name for name, times in Counter(guard.name for guard in GUARDS).items() if times > 1]
    assert not twice
    assert [guard.rfc for guard in GUARDS] == sorted(guard.rfc for guard in GUARDS)


def test_table_is_the_one_that_the_guards_make() -> None:
    written = mutations.TABLE.read_text()
    assert written == mutations.render_table(GUARDS), "run python tests/mutations/mutations.py --table"


def test_guard_that_has_moved_is_told() -> None:
    moved = replace(GUARDS[0], guard="this stands nowhere")
    with pytest.raises(Moved, match=r"stands 0 times"):
        moved.remove_from((mutations.TOP / moved.file).read_text())


def test_guard_is_missed_by_its_test_and_by_no_other() -> None:
    """The whole way for one of them: the copy, the edit, its test, and one that has nothing to do with it."""
    guard = next(guard for guard in GUARDS if guard.file == "buffer/names.py")
    other = replace(guard, test="tests/buffer/test_register.py::test_update_that_changes_nothing_writes_nothing")
    with mutations.copy_of_the_tree() as copy:
        noticed, said = mutations.is_noticed(guard, copy)
        assert noticed, said
        noticed, said = mutations.is_noticed(other, copy)
        assert not noticed, said


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_guard_is_missed(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutations.main([]) == 0, capsys.readouterr().out

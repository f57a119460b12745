"""Guards: statements that a promise depends on, and how each is taken out of the code.

A comment marks a guard: `# guard: <name>`, at the end of its line or on the line above. `guards.toml` names the RFC
that asks for it and its test. To take a guard out, the condition of an `if`, `elif` or `while` becomes false, and any
other statement is removed. Where this is not enough, `guards.toml` says what to do instead.
"""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

TOP = Path(__file__).parents[2]
FOLDERS = ("forebay", "buffer", "runtime", "gc", "testing")
MARK = re.compile(r"# guard: (?P<name>[^#\n]+?)\s*$", re.MULTILINE)


class Misplaced(Exception):
    """A guard's comment is missing or marks no statement, or the replacement does not fit there."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A statement that must stay."""

    name: str
    """What the statement does: the text of its comment."""
    rfc: str
    """Number of the RFC that asks for it."""
    test: str
    """The test that fails without it."""
    without: str | None = None
    """Code that replaces the statement, or the first line of a compound one. None: the rule of this module."""
    before: str | None = None
    """Code that is put before the statement; the statement stays."""
    statements: int = 0
    """Number of whole statements that are replaced or removed, from the marked one on. 0: see `without`."""

    def remove_from(self, text: str) -> str:
        """Return a module's text without this guard."""
        lines = text.split("\n")
        marked = self._marked_statements(text, lines)
        first, last = marked[0], marked[-1]
        indent = " " * first.col_offset
        if self.before is not None:
            lines[first.lineno - 1 : first.lineno - 1] = [textwrap.indent(self.before, indent)]
        elif self.without is not None:
            end = last.end_lineno if self.statements else _end_of_header(first, lines)
            lines[first.lineno - 1 : end] = [textwrap.indent(self.without, indent)]
        elif isinstance(first, ast.If | ast.While) and not self.statements:
            _make_false(lines, first.test)
        else:
            lines[first.lineno - 1 : last.end_lineno] = [f"{indent}pass"]
        changed = "\n".join(lines)
        self._check_names(text, changed)
        return changed

    def _marked_statements(self, text: str, lines: list[str]) -> list[ast.stmt | ast.excepthandler]:
        """The statements that the comment marks."""
        marks = [number for number, line in enumerate(lines, 1) if _name_in(line) == self.name]
        if len(marks) != 1:
            raise Misplaced(f"{self.name}: the comment is there {len(marks)} times")
        place = marks[0]
        while _is_comment(lines[place - 1]):  # the comment is on a line of its own
            place += 1
        for block in _blocks(_parse(text)):
            for index, statement in enumerate(block):
                if statement.lineno <= place <= _end_of_header(statement, lines):
                    return block[index : index + max(1, self.statements)]
        raise Misplaced(f"{self.name}: the comment marks no statement")

    def _check_names(self, text: str, changed: str) -> None:
        """Refuse a replacement that uses a name or an own attribute that is new: it would fail for another reason."""
        tree = ast.parse(changed)
        unknown = _used(tree) - _used_in(text) - _bound(tree) - set(dir(builtins))
        if unknown:
            raise Misplaced(f"{self.name}: its module has no {', '.join(sorted(unknown))}; mend guards.toml")


@lru_cache(maxsize=1)
def _parse(text: str) -> ast.Module:
    """Return the tree of a module. A module has many guards: they are best taken one after the other."""
    return ast.parse(text)


@lru_cache(maxsize=1)
def _used_in(text: str) -> set[str]:
    return _used(_parse(text))


def _used(tree: ast.Module) -> set[str]:
    """Names that are read, and attributes of `self`."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return names | {
        f"self.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def _bound(tree: ast.Module) -> set[str]:
    """Names that something is assigned to, arguments and methods included."""
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    methods = {f"self.{node.name}" for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return bound | methods | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}


def load_guards() -> list[Guard]:
    """All guards in the order of `guards.toml`. TOML itself refuses a name that is there twice in one RFC."""
    guards = []
    for rfc, named in tomllib.loads((Path(__file__).parent / "guards.toml").read_text()).items():
        for name, fields in named.items():
            guards.append(Guard(name, rfc, **({"test": fields} if isinstance(fields, str) else fields)))
    return guards


def find_files() -> dict[str, Path]:
    """The file of each marked guard, relative to the top."""
    found: dict[str, Path] = {}
    for path in sorted(path for folder in FOLDERS for path in (TOP / folder).rglob("*.py")):
        for mark in MARK.finditer(path.read_text()):
            if mark["name"] in found:
                raise Misplaced(f"{mark['name']}: marked in {found[mark['name']]} and in {path.relative_to(TOP)}")
            found[mark["name"]] = path.relative_to(TOP)
    return found


def _name_in(line: str) -> str | None:
    mark = MARK.search(line)
    return mark["name"] if mark else None


def _blocks(tree: ast.Module) -> Iterator[list[ast.stmt | ast.excepthandler]]:
    """Every list of statements, and the handlers of every `try`; inner ones first."""
    for node in reversed(list(ast.walk(tree))):
        for field in ("body", "orelse", "finalbody", "handlers"):
            block = getattr(node, field, None)
            if isinstance(block, list) and block:
                yield block


def _end_of_header(node: ast.stmt | ast.excepthandler, lines: list[str]) -> int:
    """Last line of a simple statement, or of what stands before a compound statement's body."""
    body = getattr(node, "body", None)
    if not isinstance(body, list):
        return node.end_lineno or node.lineno
    end: int = body[0].lineno - 1
    while end > node.lineno and _is_comment(lines[end - 1]):
        end -= 1
    return end


def _is_comment(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _make_false(lines: list[str], condition: ast.expr) -> None:
    """Put `False` where a condition stands. The columns are of UTF-8 bytes."""
    start, end = condition.lineno - 1, (condition.end_lineno or condition.lineno) - 1
    head = lines[start].encode()[: condition.col_offset].decode()
    tail = lines[end].encode()[condition.end_col_offset :].decode()
    lines[start : end + 1] = [f"{head}False{tail}"]

"""What each guard is worth: taken out of a copy of the tree, one at a time, a named test must fail without it.

    python tests/mutations/mutations.py             all of them, some minutes
    python tests/mutations/mutations.py NAME …      those whose name holds one of these texts
    python tests/mutations/mutations.py --table     writes docs/guards.md anew, and runs nothing

`guards.toml` says for each guard what it is, which RFC asks for it, the text that is it, what stands there without it,
and the test. The working tree is never touched. Exit status: 0 if every guard is missed by its test, 1 if one is not,
or if its text is not where it was.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).parents[2]
PACKAGE_FOLDERS = ("buffer", "gc", "runtime", "testing")
"""Beside `forebay/` in the tree, and in it when imported."""
TABLE = TOP / "docs" / "guards.md"
SECONDS = 300
"""A test that hangs without a guard has noticed, too."""


class Moved(Exception):
    """The guard's text is not there, or more than once: somebody has changed the code around it."""


@dataclass(frozen=True, slots=True)
class Guard:
    """Something that must not be left out, and how it is left out to see."""

    name: str
    """What it does, as the subject of "without …"."""
    rfc: str
    """The number of the one that asks for it."""
    file: str
    guard: str
    """The text that is taken out, which stands there once."""
    without: str
    """What stands there instead."""
    test: str
    """What fails then."""

    def remove_from(self, text: str) -> str:
        """Return the file's text without the guard."""
        if text.count(self.guard) != 1:
            raise Moved(f"{self.name}: its text stands {text.count(self.guard)} times in {self.file}: mend guards.toml")
        changed = text.replace(self.guard, self.without)
        ast.parse(changed, self.file)
        return changed


def load_guards() -> list[Guard]:
    """All guards, by RFC, in the order in which they are written down."""
    with (Path(__file__).parent / "guards.toml").open("rb") as file:
        return [Guard(**fields) for fields in tomllib.load(file)["guards"]]


@contextmanager
def copy_of_the_tree() -> Iterator[Path]:
    """A copy in which tests find their own `forebay`, not the one that is installed."""
    with tempfile.TemporaryDirectory(prefix="forebay-mutations-") as folder:
        copy = Path(folder)
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*")
        for name in ("tests", "examples", "docs", "rfcs"):
            shutil.copytree(TOP / name, copy / name, ignore=ignored)
        for name in ("pyproject.toml", "README.md", "SECURITY.md"):
            shutil.copy(TOP / name, copy / name)
        package = copy / "site" / "forebay"
        shutil.copytree(TOP / "forebay", package, ignore=ignored)
        for name in PACKAGE_FOLDERS:
            shutil.copytree(TOP / name, package / name, ignore=ignored)
        shutil.copy(TOP / "pyspark_forebay.py", copy / "site")
        yield copy


def run_tests(copy: Path, tests: Iterable[str]) -> subprocess.CompletedProcess[str]:
    """Run tests in a copy of the tree."""
    # Without bytecode: a file changed twice in one second would else be taken for what it was.
    settings = {"PYTHONPATH": str(copy / "site"), "PYTHONDONTWRITEBYTECODE": "1", "CI": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "--timeout=60",
        *tests,
    ]
    return subprocess.run(
        command, cwd=copy, env={**os.environ, **settings}, capture_output=True, text=True, check=False, timeout=SECONDS
    )


def is_noticed(guard: Guard, copy: Path) -> tuple[bool, str]:
    """Whether the guard's test fails without it, and what was said."""
    place = copy / "site" / (guard.file if guard.file.startswith("forebay/") else f"forebay/{guard.file}")
    whole = place.read_text()
    place.write_text(guard.remove_from(whole))
    try:
        run = run_tests(copy, [guard.test])
    except subprocess.TimeoutExpired as hung:
        return True, str(hung)
    finally:
        place.write_text(whole)
    # 1 is that tests failed; anything else, that they could not be run.
    return run.returncode == 1, run.stdout[-3000:] + run.stderr[-1000:]


def render_table(guards: Iterable[Guard]) -> str:
    """The part of the documentation that names every guard."""
    lines = [
        "## Guards and the tests that hold them",
        "",
        "Each line below is one thing that must not be left out, and the test that fails without it.",
        "`python tests/mutations/mutations.py` shows it: it takes them out of a copy of the tree, one at a time, and",
        "runs the test. It also wrote this table.",
    ]
    titles = {
        path.name[:4]: path.read_text().splitlines()[0].removeprefix("# ") for path in (TOP / "rfcs").glob("*.md")
    }
    rfc = ""
    for guard in guards:
        if guard.rfc != rfc:
            rfc = guard.rfc
            lines += ["", f"### {titles[rfc]}", "", "| without | in | fails |", "| --- | --- | --- |"]
        path, _, test = guard.test.partition("::")
        lines.append(f"| {guard.name} | `{guard.file}` | `{test}` in `{path}` |")
    return "\n".join([*lines, ""])


def main(names: list[str]) -> int:
    """Try the guards whose names hold one of the texts, or all."""
    guards = load_guards()
    if names == ["--table"]:
        TABLE.write_text(render_table(guards))
        return 0
    chosen = [guard for guard in guards if not names or any(name in guard.name for name in names)]
    if not chosen:
        sys.stdout.write(f"no guard's name holds {' or '.join(map(repr, names))}\n\n{__doc__}")
        return 2
    with copy_of_the_tree() as copy:
        whole = run_tests(copy, sorted({guard.test for guard in chosen}))
        if whole.returncode != 0:
            sys.stdout.write(f"with every guard in place:\n{whole.stdout[-5000:]}{whole.stderr[-2000:]}\n")
            return 1
        survivors = []
        for number, guard in enumerate(chosen, 1):
            try:
                noticed, said = is_noticed(guard, copy)
            except Moved as error:
                noticed, said = False, str(error)
            sys.stdout.write(f"{number}/{len(chosen)} {'noticed ' if noticed else 'SURVIVED'} {guard.name}\n")
            sys.stdout.flush()
            if not noticed:
                survivors.append(f"\n{guard.name} ({guard.file}), by {guard.test}:\n{said}")
    sys.stdout.write("".join(survivors) or f"all {len(chosen)} guards are missed by their tests\n")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

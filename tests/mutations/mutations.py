"""Takes guards out of a copy of the tree, one at a time. Each time, the guard's test must fail.

    python tests/mutations/mutations.py             all of them, some minutes
    python tests/mutations/mutations.py NAME …      those whose name contains one of these texts

`guards.py` says what a guard is, `guards.toml` lists them. The working tree is never changed. Exit status: 0 if every
test fails without its guard, 1 if one passes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from guards import FOLDERS, TOP, Guard, Misplaced, find_files, load_guards

SECONDS = 300
"""Maximum time of one guard's test. A test that hangs without its guard counts as failed."""
_HANG_SECONDS = 60
"""After this time, pytest ends a test that hangs without its guard."""


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
        for name in FOLDERS[1:]:
            shutil.copytree(TOP / name, package / name, ignore=ignored)
        shutil.copy(TOP / "pyspark_forebay.py", copy / "site")
        yield copy


def run_tests(
    copy: Path, tests: Iterable[str], seconds: float | None, hang: int = _HANG_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run tests in a copy of the tree, each for at most `hang` seconds.

    Raises `TimeoutExpired` if all take longer than `seconds`.
    """
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
        f"--timeout={hang}",
        *tests,
    ]
    return subprocess.run(
        command, cwd=copy, env={**os.environ, **settings}, capture_output=True, text=True, check=False, timeout=seconds
    )


def is_noticed(guard: Guard, file: Path, copy: Path) -> tuple[bool, str]:
    """Whether the guard's test fails without it, and what was printed."""
    place = copy / "site" / (file if file.parts[0] == "forebay" else Path("forebay", file))
    whole = place.read_text()
    place.write_text(guard.remove_from(whole))
    try:
        run = run_tests(copy, [guard.test], SECONDS)
    except subprocess.TimeoutExpired as hung:
        return True, str(hung)
    finally:
        place.write_text(whole)
    # Status 1: tests failed. Any other: they could not be run.
    return run.returncode == 1, run.stdout[-3000:] + run.stderr[-1000:]


def main(names: list[str]) -> int:
    """Try the guards whose names contain one of the texts, or all."""
    chosen = [guard for guard in load_guards() if not names or any(name in guard.name for name in names)]
    if not chosen:
        sys.stdout.write(f"no guard's name contains {' or '.join(map(repr, names))}\n\n{__doc__}")
        return 2
    files = find_files()
    with copy_of_the_tree() as copy:
        # On a busy machine, all tests together take long, and so does a test of Spark that must pass.
        whole = run_tests(copy, sorted({guard.test for guard in chosen}), None, hang=600)
        if whole.returncode != 0:
            sys.stdout.write(f"with every guard in place:\n{whole.stdout[-5000:]}{whole.stderr[-2000:]}\n")
            return 1
        survivors = []
        for number, guard in enumerate(chosen, 1):
            try:
                noticed, said = is_noticed(guard, files[guard.name], copy)
            except Misplaced as error:
                noticed, said = False, str(error)
            sys.stdout.write(f"{number}/{len(chosen)} {'noticed ' if noticed else 'SURVIVED'} {guard.name}\n")
            sys.stdout.flush()
            if not noticed:
                survivors.append(f"\n{guard.name} ({files[guard.name]}), by {guard.test}:\n{said}")
    sys.stdout.write("".join(survivors) or f"all {len(chosen)} guards are missed by their tests\n")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

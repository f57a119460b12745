"""A folder imports only from folders listed above it, and no modules import each other in a circle: rfcs/0002."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
FOLDERS = ("forebay", "buffer", "runtime", "gc", "testing")

# The lowest layer comes first. A folder that is not listed belongs to the folder that contains it.
LAYERS = [
    "forebay.buffer.base",
    "forebay.buffer.store",
    "forebay.buffer.format",
    "forebay.buffer.manifest",
    "forebay.buffer.coordinator",
    "forebay.buffer.read",
    "forebay.buffer.write",
    "forebay.buffer",  # what lies flat: producer, consumer, groups, holds
    "forebay.buffer.topic",
    "forebay.buffer.either",
    "forebay.buffer.inspect",
    "forebay.buffer.eventlog",
    "forebay.gc",
    "forebay.runtime.catalog",
    "forebay.runtime",
    "forebay.runtime.spark",
    "forebay.ui",
    "forebay.testing",
    "forebay",
]
EXCEPTIONS = {
    "forebay.buffer.consumer": {"forebay.gc"},
}
"""Imports from a folder further down in the list, or in a circle, by module. RFC 0002 gives the reasons."""


def module_name(path: Path) -> str:
    parts = path.relative_to(TOP).with_suffix("").parts
    if parts[0] != "forebay":
        parts = ("forebay", *parts)
    return ".".join(parts).removesuffix(".__init__")


MODULES = {module_name(path): path for folder in FOLDERS for path in sorted((TOP / folder).rglob("*.py"))}
PACKAGES = {name for name, path in MODULES.items() if path.name == "__init__.py"}


def layer(module: str) -> int:
    """Number of a module's layer. The `__init__` of a package re-exports what may be anywhere in it: see below."""
    folder = module if module in PACKAGES else module.rpartition(".")[0]
    while folder not in LAYERS:
        folder = folder.rpartition(".")[0]
    return LAYERS.index(folder)


def imported_by(name: str) -> set[str]:
    """Modules that a module imports anywhere: at the top, for type checkers, or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{name} imports relatively"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(each if each in MODULES else node.module for each in names)
    return {each for each in found if each in MODULES}


@cache
def allowed_imports(name: str) -> frozenset[str]:
    """Modules that a module imports, without its exceptions. Not all at once: every worker collects this file."""
    return frozenset(imported_by(name) - EXCEPTIONS.get(name, set()))


@pytest.mark.parametrize("name", MODULES)
def test_module_imports_only_from_its_own_folder_and_those_above_it_in_the_list(name: str) -> None:
    if name == "forebay.buffer":
        return  # re-exports names of all its folders; nothing in them may import it, which the next test sees
    too_high = {each for each in allowed_imports(name) if layer(each) > layer(name)}
    assert not too_high, f"{name} must not import {too_high}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    left = {name: allowed_imports(name) for name in MODULES}
    while free := {name for name, imports in left.items() if not imports & left.keys() - {name}}:
        left = {name: imports for name, imports in left.items() if name not in free}
    assert not {name: imports & left.keys() for name, imports in left.items()}


def test_every_exception_is_still_needed() -> None:
    for name, allowed in EXCEPTIONS.items():
        assert allowed <= imported_by(name), f"{name} no longer imports {allowed}"


def rows_of_rfc(heading: str) -> list[list[str]]:
    """Cells of the table that follows a heading of RFC 0002, by row."""
    section = (
        (TOP / "rfcs" / "0002-tree-and-layers.md").read_text().partition(f"### {heading}\n")[2].partition("\n### ")[0]
    )
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    assert rows, heading
    return rows


def package_of(path: str) -> str:
    return "forebay" if path == "forebay/" else "forebay." + path.removeprefix("forebay/").strip("/").replace("/", ".")


def test_rfc_lists_the_folders_in_the_order_of_the_layers() -> None:
    assert [package_of(cells[0].strip("`")) for cells in rows_of_rfc("The folders")] == LAYERS


@pytest.mark.parametrize("cells", rows_of_rfc("The folders"), ids=lambda cells: cells[0].strip("`"))
def test_folder_imports_no_folder_that_its_row_in_the_rfc_does_not_name(cells: list[str]) -> None:
    folder, _, builds_on = cells
    if builds_on in {"the folders above", "everything"}:
        return
    # `buffer/` stands for all its folders too, but `runtime/` for itself alone.
    named = [package_of(path) for path in re.findall(r"`([a-z/]+)`", builds_on)]
    inside = [f"{each}." for each in named if each == "forebay.buffer"]
    own = LAYERS.index(package_of(folder.strip("`")))
    for name in (each for each in MODULES if layer(each) == own and each != "forebay.buffer"):
        for imported in allowed_imports(name):
            found = LAYERS[layer(imported)]
            is_named = found in named or found.startswith(tuple(inside))
            assert layer(imported) == own or is_named, f"{name} imports {imported}: RFC 0002 does not say so"


def test_tests_mirror_the_tree() -> None:
    """`tests/cli` and `tests/ui` are those of `forebay/cli` and `forebay/ui`: `forebay/` is the import root."""
    apart = {TOP / cells[0].strip("`") for cells in rows_of_rfc("Tests mirror the tree")}
    for path in (TOP / "tests").rglob("test_*.py"):
        folder = path.parent.relative_to(TOP / "tests")
        is_mirror = f"forebay.{'.'.join(folder.parts)}".rstrip(".") in PACKAGES
        assert is_mirror or path.parent in apart, f"tests/{folder} is no folder of the tree, nor in RFC 0002"


def test_few_modules_lie_flat_in_buffer() -> None:
    assert len(list((TOP / "buffer").glob("*.py"))) <= 8


def test_no_module_but_the_clock_asks_the_machine_for_time_or_chance() -> None:
    """The lint rule says it too; this holds where lint was not run, and for `from time import …`."""
    banned = {"time", "random", "secrets", "uuid"}
    for name, path in MODULES.items():
        if name in {"forebay.buffer.base.clock", "forebay.testing.servers"}:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not banned.intersection(names), f"{name} imports {names}"

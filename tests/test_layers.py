"""Each layer imports only from those before it: rfcs/0002."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
FOLDERS = ("forebay", "buffer", "runtime", "gc", "testing")

# From the bottom up; a module belongs to the longest name that it starts with.
LAYERS = [
    {
        "forebay.buffer.backoff",
        "forebay.buffer.checks",
        "forebay.buffer.clock",
        "forebay.buffer.closing",
        "forebay.buffer.errors",
        "forebay.buffer.metrics",
        "forebay.buffer.polling",
        "forebay.buffer.reread",
    },
    {"forebay.buffer.store"},
    {
        "forebay.buffer.batch",
        "forebay.buffer.checksum",
        "forebay.buffer.columns",
        "forebay.buffer.model",
        "forebay.buffer.names",
        "forebay.buffer.plain_page",
    },
    {"forebay.buffer.register"},
    {"forebay.buffer.manifest"},
    {"forebay.buffer.coordinator"},
    {"forebay.buffer.filling", "forebay.buffer.upload", "forebay.buffer.fetch", "forebay.buffer.groups"},
    {"forebay.buffer.producer", "forebay.buffer.consumer"},
    {"forebay.buffer"},
    {"forebay.buffer.eventlog"},
    {"forebay.runtime.catalog"},
    {"forebay.runtime", "forebay.gc"},
    {"forebay.runtime.spark"},
    {"forebay.ui"},
    {"forebay"},
    {"forebay.testing"},
]
CONVENIENCES = {("forebay.buffer.consumer", "forebay.gc")}
"""Imports upward: made when somebody asks for what they bring, and not before."""
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def module_name(path: Path) -> str:
    parts = path.relative_to(TOP).with_suffix("").parts
    if parts[0] != "forebay":
        parts = ("forebay", *parts)
    return ".".join(parts).removesuffix(".__init__")


def rank(module: str) -> int:
    name = module
    while name not in RANK:
        name = name.rpartition(".")[0]
    return RANK[name]


def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path} imports relatively"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(name if name in KNOWN else node.module for name in names)
    return {name for name in found if name.split(".")[0] == "forebay"}


MODULES = sorted(path for folder in FOLDERS for path in (TOP / folder).rglob("*.py"))
KNOWN = {module_name(path) for path in MODULES}


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_module_imports_only_from_layers_before_its_own(path: Path) -> None:
    own = rank(module_name(path))
    for imported in imported_modules(path):
        if (module_name(path), imported) not in CONVENIENCES:
            assert rank(imported) <= own, f"{module_name(path)} must not import {imported}"


def test_no_module_but_the_clock_asks_the_machine_for_time_or_chance() -> None:
    """The lint rule says it too; this holds where lint was not run, and for `from time import …`."""
    banned = {"time", "random", "secrets", "uuid"}
    for path in MODULES:
        if module_name(path) in {"forebay.buffer.clock", "forebay.testing.servers"}:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not banned.intersection(names), f"{module_name(path)} imports {names}"

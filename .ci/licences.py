"""Prints the licence of forebay and of every package that it and the given extras need: `licences.py EXTRA,EXTRA`."""

from __future__ import annotations

import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement

needed: dict[str, Distribution] = {}
seen: set[tuple[str, frozenset[str]]] = set()


def add(name: str, extras: frozenset[str]) -> None:
    """Add a package, and what it needs on this machine. What is not installed is left out."""
    if (name, extras) in seen:
        return
    seen.add((name, extras))
    try:
        found = needed[name] = distribution(name)
    except PackageNotFoundError:
        return
    for line in found.requires or ():
        requirement = Requirement(line)
        if any(not requirement.marker or requirement.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            add(requirement.name.lower().replace("_", "-"), frozenset(requirement.extras))


def licence(found: Distribution) -> str:
    """The licence as the package declares it: newest form first."""
    fields = found.metadata
    classifiers = [line for line in fields.get_all("Classifier", []) if line.startswith("License ::")]
    classified = [line.split(" :: ")[-1] for line in classifiers]
    stated = [fields.get("License-Expression"), fields.get("License"), *classified]
    return next((text.splitlines()[0] for text in stated if text), "not declared: see its files")


add("forebay", frozenset(sys.argv[1].split(",")))
for name, found in sorted(needed.items()):
    sys.stdout.write(f"{name:40} {found.version:15} {licence(found)}\n")

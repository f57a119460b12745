"""Prints the lowest versions that pyproject.toml allows, as requirements: `python tests/lowest.py NAMES`.

NAMES are extras and dependency groups, with commas between them.

`make test-matrix` installs them and runs tests on them, so that the lower bounds are tried and not only declared.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

SETTINGS = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]
CHOICES = {**PROJECT["optional-dependencies"], **SETTINGS["dependency-groups"]}
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?P<extras>\[[\w,-]+\])?>=(?P<lowest>[\w.]+)(,<[\w.]+)?")


def lowest(requirements: list[str]) -> Iterator[str]:
    """Each requirement at its lower bound; `forebay[a,b]` stands for what these extras need."""
    for requirement in requirements:
        if requirement.startswith("forebay["):
            for extra in requirement.removeprefix("forebay[").removesuffix("]").split(","):
                yield from lowest(CHOICES[extra])
        else:
            found = REQUIREMENT.fullmatch(requirement)
            assert found is not None, f"{requirement} has no lower bound"
            yield f"{found['name']}{found['extras'] or ''}=={found['lowest']}"


if __name__ == "__main__":
    chosen = [*PROJECT["dependencies"], *(needed for name in sys.argv[1].split(",") for needed in CHOICES[name])]
    sys.stdout.write("\n".join(sorted(set(lowest(chosen)))) + "\n")

"""Puts this folder and that of the event log's tests on the path, and a log at the tests' disposal."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "buffer" / "eventlog"))
sys.path.insert(0, str(Path(__file__).parent))

from catalog_rig import Rig


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    rig = Rig("catalog-" + re.sub(r"\W+", "-", request.node.name))
    yield rig
    rig.close()

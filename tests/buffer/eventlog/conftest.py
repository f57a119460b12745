"""Event logs in each of their homes: what follows must hold in all four."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.buffer.eventlog import EventLog

sys.path.insert(0, str(Path(__file__).parent))

from eventlog_homes import KINDS, Home


@pytest.fixture(params=KINDS)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    home = Home.make(request.param, re.sub(r"\W+", "-", request.node.nodeid), tmp_path)
    yield home
    home.close()


@pytest.fixture
def log(home: Home) -> EventLog:
    return home.open()

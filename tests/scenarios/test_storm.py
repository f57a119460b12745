"""Storms: producers, readers, a runtime and a collector as real processes, killed over and over (DESIGN, section 10).

Native buffers lose nothing, double nothing and leave nothing dangling, whatever happens. Version 1 loses nothing while
no process pauses for longer than the grace period, and may double what was in doubt and consumed (DESIGN, section 5).

The long forms (`-m slow`) are the same storms with more than 600 kills among them; killed drivers, executors and tasks
of Spark are in tests/runtime/spark. `FOREBAY_STORM_SEED` sets the seed.

Mutation notes: `BelowFloor` in `Head.append` (a batch is listed and gone) and the record of ranges in
`SourceReader._record` (rows are there twice), each removed fails the short form on files; `is_mine` in `Queue._append`
(what is said to have failed is there) the one on a server. What the long forms have found is told in
test_storm_findings.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bad_network import bad_network
from storm import Storm, Weather, rage, seed_of

from forebay.testing.proxy import FaultProxy
from forebay.testing.servers import SeaweedServer

Say = Callable[[str], None]

LONG = (pytest.mark.slow, pytest.mark.timeout(1200))
ROWS = pytest.mark.parametrize("rows", [False, True], ids=["bytes", "rows"])
"""A buffer of bytes, and one of rows whose schema evolves while old and new producers write."""


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Shows a storm's account, whether or not output is captured."""

    def show(account: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{account}\n")

    return show


@pytest.fixture
def own_weed() -> Iterator[SeaweedServer]:
    """A server that may be killed without anybody else noticing."""
    with SeaweedServer() as server:
        server.create_bucket("storms")
        yield server


@pytest.mark.parametrize("kills", [12, pytest.param(300, marks=LONG)])
@ROWS
def test_native_buffer_on_files_loses_doubles_and_dangles_nothing(
    tmp_path: Path, kills: int, rows: bool, say: Say
) -> None:
    weather = Weather(stops=0.12, full_disks=0.06, steps_clock=True)
    say(rage(Storm(f"file://{tmp_path}/buffer", tmp_path, seed_of(11), rows=rows, weather=weather), kills))


@pytest.mark.matrix
@pytest.mark.parametrize("kills", [4, pytest.param(200, marks=LONG)])
@ROWS
def test_native_buffer_on_a_server_that_is_killed_too_loses_doubles_and_dangles_nothing(
    tmp_path: Path, own_weed: SeaweedServer, kills: int, rows: bool, say: Say
) -> None:
    """Through a network that cuts, delays and loses answers, and on both client libraries."""
    seed = seed_of(12)
    with FaultProxy(own_weed.endpoint_url, bad_network(seed)) as proxy:
        through = {**own_weed.storage_options, "endpoint_url": proxy.endpoint_url, "read_timeout": 2.0}
        storm = Storm(
            "s3://storms/buffer",
            tmp_path,
            seed,
            rows=rows,
            weather=Weather(stops=0.1, server_kills=0.05, steps_clock=True),
            options=[{**through, "client": "s3fs"}, {**through, "client": "obstore"}],
            direct=own_weed.storage_options,
            pace=4.0,
            restart_server=own_weed.restart,
        )
        say(rage(storm, kills))


@pytest.mark.parametrize("kills", [6, pytest.param(120, marks=LONG)])
def test_version_1_buffer_loses_and_dangles_nothing(tmp_path: Path, kills: int, say: Say) -> None:
    storm = Storm(
        f"file://{tmp_path}/buffer", tmp_path, seed_of(13), profile="opendata", weather=Weather(full_disks=0.1)
    )
    say(rage(storm, kills))

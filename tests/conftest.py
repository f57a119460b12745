"""Servers for the tests that need one, started once, and how Hypothesis looks for examples."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from forebay.testing.servers import MotoServer, SeaweedServer

sys.path.insert(0, str(Path(__file__).parent))  # so that tests of any folder can import what lies beside this file
import azurite as azure
from kinds import BYTES, ROWS, Kind
from system import SYSTEM

# No deadline: a shared machine stalls now and then. In CI the same examples each time; elsewhere new ones.
hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")

# For every session of Spark that a test starts, in its own process or another: nothing of it may give up on a slow
# machine. `conf` says which limits are raised, and `conf/python` takes care of the one that has no setting.
_CONF = Path(__file__).parent / "runtime" / "spark" / "conf"
os.environ["SPARK_CONF_DIR"] = str(_CONF)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_CONF / "python"), os.environ.get("PYTHONPATH")]))
# Python's side of spark.python.authenticate.socketTimeout, in seconds.
os.environ["SPARK_AUTH_SOCKET_TIMEOUT"] = "600"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two workers more than there are processors: many tests wait for servers and other processes."""
    return (os.cpu_count() or 1) + 2


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import nothing of what `make test-fast` leaves out: Spark alone takes seconds."""
    return True if "not system" in config.option.markexpr and collection_path in SYSTEM else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that `make test-fast` leaves out, and run them first: no long file is left for the end."""
    listed = {path for path in {item.path for item in items} if not SYSTEM.isdisjoint((path, *path.parents))}
    for item in items:
        needs = {"weed", "moto", "spark"}.intersection(getattr(item, "fixturenames", ()))
        if needs or item.path in listed:
            item.add_marker("system")
    system = {item.path for item in items if item.get_closest_marker("system")}
    items.sort(key=lambda item: item.path not in system)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from looking through ten thousand tests again and again: none of them is garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(params=[BYTES, ROWS], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Buffers of bytes, and of rows: what follows must hold for both."""
    found: Kind = request.param
    return found


@pytest.fixture(scope="session")
def weed() -> Iterator[SeaweedServer]:
    """A real S3 server, with a bucket `tests`."""
    with SeaweedServer() as server:
        server.create_bucket("tests")
        yield server


@pytest.fixture(scope="session")
def moto() -> Iterator[MotoServer]:
    """The shape of S3's API, with a bucket `tests`."""
    with MotoServer() as server:
        server.create_bucket("tests")
        yield server


@pytest.fixture(scope="session")
def azurite() -> Iterator[azure.AzuriteServer]:
    """Azure's blob storage, with a container `tests`."""
    if not azure.PROGRAM.exists():
        pytest.skip("Azurite is not installed: make test-matrix installs it where npm is")
    with azure.AzuriteServer() as server:
        server.create_container("tests")
        yield server

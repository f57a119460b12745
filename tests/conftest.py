"""S3 servers for the tests that need one, started once, and how Hypothesis looks for examples."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest

from forebay.testing.servers import MotoServer, SeaweedServer

# No deadline: a shared machine stalls now and then. In CI the same examples each time; elsewhere new ones.
hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


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

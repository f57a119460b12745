"""S3 servers for the tests that need one, started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forebay.testing.servers import MotoServer, SeaweedServer


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

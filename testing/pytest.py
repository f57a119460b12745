"""Fixtures for pytest: an S3 bucket for each test, on a server in the test's own process. Needs `moto[s3,server]`.

In the topmost `conftest.py`:

    pytest_plugins = ["forebay.testing.pytest"]

Then a test takes `forebay_bucket`, and gives `forebay_bucket.url` and its options to whatever it tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from forebay.buffer.store import open_store
from forebay.testing.servers import MotoServer

if TYPE_CHECKING:
    from collections.abc import Iterator

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Bucket:
    """An empty bucket that is one test's own."""

    url: str
    """Such as `s3://test-1`; a buffer is at any folder of it: `f"{bucket.url}/clicks"`."""
    storage_options: dict[str, Any]
    """What `Producer`, `Consumer` and all others that take a URL need to reach it."""

    @property
    def spark_options(self) -> dict[str, str]:
        """The same for Spark: `spark.read.format("forebay").options(**bucket.spark_options)`."""
        return {f"storage.{name}": str(value) for name, value in self.storage_options.items()}


@pytest.fixture(scope="session")
def forebay_server() -> Iterator[MotoServer]:
    """An S3 server for the whole session, in memory and on loopback."""
    with MotoServer() as server:
        yield server


@pytest.fixture
def forebay_bucket(forebay_server: MotoServer) -> Iterator[Bucket]:
    """A bucket for one test; what is in it afterwards is deleted."""
    bucket = Bucket(forebay_server.create_bucket(f"test-{next(_numbers)}"), dict(forebay_server.storage_options))
    yield bucket
    store = open_store(bucket.url, bucket.storage_options)
    store.delete([found.key for found in store.list()])

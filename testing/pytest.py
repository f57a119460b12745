"""Fixtures for pytest: `forebay_bucket` is an S3 bucket for each test, `forebay_buffer` makes buffers in files.

pytest finds them once forebay is installed, and imports this module whenever it starts. So everything that only a test
with such a fixture needs is imported when the fixture is used. `forebay_bucket` needs the extra `testing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from forebay.testing.servers import MotoServer

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


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer that is one test's own."""

    url: str
    """Where it is: give it to what is tested."""

    def write(self, entries: Any) -> None:
        """Make entries durable: bytes, or rows of a typed buffer, in any form that `Producer.produce` takes.

        Raises:
            InvalidInput: a row does not fit the schema.
        """
        from forebay.buffer.producer import Producer  # noqa: PLC0415

        with Producer(self.url) as producer:
            handle = producer.produce(entries)
        handle.result()

    def read(self) -> list[Any]:
        """Return all entries in order, as bytes or, of a typed buffer, as dicts. No reader's position changes."""
        from forebay.buffer.base.errors import NotFound  # noqa: PLC0415
        from forebay.buffer.either.ranges import read_range  # noqa: PLC0415

        try:
            batches = read_range(self.url)
        except NotFound:  # nothing was written yet
            return []
        return [entry for batch in batches for entry in batch.entries]


@pytest.fixture(scope="session")
def forebay_server() -> Iterator[MotoServer]:
    """An S3 server for the whole session, in memory and on loopback."""
    from forebay.testing.servers import MotoServer  # noqa: PLC0415

    with MotoServer() as server:
        yield server


@pytest.fixture
def forebay_bucket(forebay_server: MotoServer) -> Iterator[Bucket]:
    """A bucket for one test; what is in it afterwards is deleted."""
    from forebay.buffer.store import open_store  # noqa: PLC0415

    bucket = Bucket(forebay_server.create_bucket(f"test-{next(_numbers)}"), dict(forebay_server.storage_options))
    yield bucket
    store = open_store(bucket.url, bucket.storage_options)
    store.delete([found.key for found in store.list()])


@pytest.fixture
def forebay_buffer(tmp_path: Path) -> Callable[..., Buffer]:
    """A function that makes an empty buffer below `tmp_path`: of bytes, or with `schema=…` of rows."""
    numbers = count(1)

    def make(schema: pa.Schema | type | None = None) -> Buffer:
        from forebay.buffer.producer import Producer  # noqa: PLC0415

        url = (tmp_path / f"buffer-{next(numbers)}").as_uri()
        with Producer(url, schema=schema):
            pass  # it makes a typed buffer
        return Buffer(url)

    return make

"""Fixtures for pytest: `forebay_bucket` is an S3 bucket for each test, `forebay_buffer` makes buffers in files.

pytest finds them once forebay is installed, and imports this module whenever it starts. So a fixture's own dependencies
are imported only when the fixture is used. `forebay_bucket` needs the extra `testing`.
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
    """An empty bucket for one test."""

    url: str
    """The bucket's URL, such as `s3://test-1`. A buffer may be in any folder of it: `f"{bucket.url}/clicks"`."""
    storage_options: dict[str, Any]
    """The `storage_options` to pass with the URL to `Producer`, `Consumer` and others."""

    @property
    def spark_options(self) -> dict[str, str]:
        """The storage options for Spark: `spark.read.format("forebay").options(**bucket.spark_options)`."""
        return {f"storage.{name}": str(value) for name, value in self.storage_options.items()}


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer for one test."""

    url: str
    """The buffer's URL. Pass it to the code under test."""

    def write(self, entries: Any) -> None:
        """Write entries and wait until they are durable: bytes, or rows in any form that `Producer.produce` takes.

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
    """An empty bucket for one test. Its objects are deleted after the test."""
    from forebay.buffer.store import open_store  # noqa: PLC0415

    bucket = Bucket(forebay_server.create_bucket(f"test-{next(_numbers)}"), dict(forebay_server.storage_options))
    yield bucket
    store = open_store(bucket.url, bucket.storage_options)
    store.delete([found.key for found in store.list()])


@pytest.fixture
def forebay_buffer(tmp_path: Path) -> Callable[..., Buffer]:
    """A function that returns an empty buffer in `tmp_path`: for bytes, or with `schema=…` for rows."""
    numbers = count(1)

    def make(schema: pa.Schema | type | None = None) -> Buffer:
        from forebay.buffer.producer import Producer  # noqa: PLC0415

        url = (tmp_path / f"buffer-{next(numbers)}").as_uri()
        with Producer(url, schema=schema):
            pass  # with a schema, opening the producer creates the typed buffer
        return Buffer(url)

    return make

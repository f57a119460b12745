"""Where the store benchmarks run: a folder and a real S3 server, each with forebay's store beside the bare client.

The bare client is what the ceilings use: no more than a program would write that has no forebay. And events as services
write them, the same ones in every run.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import obstore
import s3fs
from fsspec.asyn import sync
from obstore.store import S3Store

from forebay import open_store
from forebay.testing.servers import SeaweedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay.buffer.store import Data, ObjectStore


@dataclass(frozen=True, slots=True)
class Place:
    """One store under test."""

    name: str
    url: str
    options: dict[str, Any] | None
    store: ObjectStore
    """The place, opened by forebay."""
    put: Callable[[str, Data], object]
    """The bare client's put."""
    get: Callable[[str], Any]
    """The bare client's get, of a key that forebay's store has put."""

    def open(self, name: str) -> ObjectStore:
        """A folder of its own for one buffer; the connections are shared with `store`."""
        return open_store(f"{self.url}/{name}", self.options)


@contextmanager
def open_places() -> Iterator[list[Place]]:
    """A folder, and a SeaweedFS process reached by either client; gone again at the end."""
    folder = Path(tempfile.mkdtemp(prefix="forebay-bench-"))
    try:
        with SeaweedServer() as server:
            url = server.create_bucket("bench")
            yield [
                _folder_place(folder),
                _s3fs_place(url, dict(server.storage_options) | {"client": "s3fs"}),
                _obstore_place(url, dict(server.storage_options) | {"client": "obstore"}),
            ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _folder_place(folder: Path) -> Place:
    bare = folder / "bare"

    def put(key: str, data: Data) -> None:
        path = bare / key
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb", buffering=0) as file:
            file.write(data)
            os.fsync(file.fileno())
        temporary.replace(path)

    url = f"file://{folder}/buffers"
    return Place("file", url, None, open_store(url), put, lambda key: (folder / "buffers" / key).read_bytes())


def _s3fs_place(url: str, options: dict[str, Any]) -> Place:
    files = s3fs.S3FileSystem(
        key=options["key"],
        secret=options["secret"],
        endpoint_url=options["endpoint_url"],
        client_kwargs={"region_name": options["region"]},
        config_kwargs={"max_pool_connections": 64, "s3": {"addressing_style": "path"}},
        use_listings_cache=False,
    )
    bucket = url.removeprefix("s3://")

    async def read(key: str) -> bytes:
        # One request; `cat_file` would send a HEAD first.
        answer = await files._call_s3("get_object", Bucket=bucket, Key=f"s3fs/{key}")  # noqa: SLF001
        async with answer["Body"] as body:
            data: bytes = await body.read()
            return data

    where = f"{url}/s3fs"
    return Place(
        "S3 by s3fs",
        where,
        options,
        open_store(where, options),
        lambda key, data: files.pipe_file(f"{bucket}/s3fs-bare/{key}", bytes(data)),  # it takes no view of memory
        lambda key: sync(files.loop, read, key),
    )


def _obstore_place(url: str, options: dict[str, Any]) -> Place:
    client = S3Store(
        url.removeprefix("s3://"),
        config={
            "access_key_id": options["key"],
            "secret_access_key": options["secret"],
            "endpoint": options["endpoint_url"],
            "region": options["region"],
        },
        client_options={"allow_http": True},
    )
    where = f"{url}/obstore"
    return Place(
        "S3 by obstore",
        where,
        options,
        open_store(where, options),
        lambda key, data: obstore.put(client, f"obstore-bare/{key}", data, use_multipart=False),
        lambda key: memoryview(obstore.get(client, f"obstore/{key}").bytes()),
    )


def events(length: int, size: int) -> list[bytes]:
    """Return records of `length` bytes each and about `size` bytes in all, the same ones every time."""
    random = Random(20)
    return [_event(random, number, length) for number in range(size // (length + 4))]


def _event(random: Random, number: int, length: int) -> bytes:
    line = json.dumps(
        {
            "ts": 1_700_000_000_000 + 7 * number,
            "id": f"{random.getrandbits(64):016x}",
            "user": random.randrange(50_000),
            "event": random.choice(["view", "click", "buy", "scroll"]),
            "page": f"/p/{random.randrange(900)}",
            "ms": round(random.expovariate(0.02)),
        }
    )
    while len(line) < length:
        tag = random.choice(["referrer", "campaign", "agent", "region", "trace", "session"])
        line += f', "{tag}": "{random.choice(["web", "app", "mail"])}-{random.getrandbits(32):08x}"'
    return line[:length].encode()

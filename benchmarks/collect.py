"""How many requests and how much memory does a collection take, for ten and for a hundred thousand objects?

The floor is one request for each thousand names listed and one for each thousand deleted. The store is a list of names
that hands out pages of a thousand, as S3 does, and counts requests; what it allocates itself is not the collector's and
is made beforehand. The last case counts what a real S3 server is asked, by s3fs.
"""

from __future__ import annotations

import math
import tracemalloc
from bisect import bisect_right
from itertools import islice
from typing import TYPE_CHECKING, Any

from forebay.buffer.base import names
from forebay.buffer.base.clock import Random
from forebay.buffer.base.errors import NotFound
from forebay.buffer.manifest import Head
from forebay.buffer.store import Applied, NotApplied, ObjectInfo, ObjectStore, StoredObject, open_store
from forebay.buffer.store.remote import RemoteStore
from forebay.gc import Collector
from forebay.testing import ManualClock
from forebay.testing.servers import SeaweedServer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from harness import Bench

_PAGE = 1000


class PagedStore(ObjectStore):
    """A manifest, and as many batches as asked for, of which only the names exist."""

    def __init__(self, listed: list[str], clock: ManualClock) -> None:
        self.url = "paged://store"
        self.requests = 0
        self._clock = clock
        self._names = listed
        self._gone = 0
        self._head = Head(buffer_id="b" * 32).to_bytes()
        self._version = 0

    @property
    def left(self) -> int:
        return len(self._names) - self._gone

    def get(self, key: str) -> StoredObject:
        self.requests += 1
        if key != "manifest":
            raise NotFound(key)
        return StoredObject(self._head, str(self._version))

    def get_if_changed(self, key: str, version: str) -> StoredObject | None:
        found = self.get(key)
        return None if found.version == version else found

    def put(self, key: str, data: Any) -> str:
        raise NotImplementedError

    def create(self, key: str, data: Any) -> Any:
        raise NotImplementedError

    def replace(self, key: str, data: Any, version: str) -> Any:  # noqa: ARG002 - there is only the manifest
        self.requests += 1
        if version != str(self._version):
            return NotApplied("another version")
        self._head, self._version = bytes(data), self._version + 1
        return Applied(str(self._version))

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        if prefix == "manifest":
            self.requests += 1
            yield ObjectInfo("manifest", len(self._head), self._clock.now_ms())
            return
        after = start_after
        while True:
            self.requests += 1
            start = bisect_right(self._names, after) if after else self._gone
            page = [name for name in self._names[start : start + _PAGE] if name.startswith(prefix)]
            yield from (ObjectInfo(name, 100, 0) for name in page)
            if len(page) < _PAGE:
                return
            after = page[-1]

    def delete(self, keys: Iterable[str]) -> Mapping[str, Any]:
        keys = list(keys)
        self.requests += math.ceil(len(keys) / _PAGE)
        # Keys come in order and are the oldest left, so it is enough to remember how many are gone.
        assert self._names[self._gone : self._gone + len(keys)] == keys
        self._gone += len(keys)
        return {}


def _floor(count: int) -> int:
    return 2 * math.ceil(count / _PAGE)


def _mint(count: int) -> list[str]:
    clock, random = ManualClock(), Random(1)
    return sorted(f"data/{names.mint(clock, random)}.batch" for _ in range(count))


def _open(listed: list[str]) -> tuple[PagedStore, Collector]:
    clock = ManualClock()
    clock.advance(10_000)
    store = PagedStore(listed, clock)
    return store, Collector(store, clock=clock, random=Random(2))


def _measure(listed: list[str]) -> tuple[int, int]:
    """Requests made, and the most bytes allocated at a time."""
    store, collector = _open(listed)
    tracemalloc.start()
    report = collector.collect_once()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.deleted == len(listed)
    assert store.left == 0
    return store.requests, peak


def run(bench: Bench) -> None:
    few, many = _mint(10_000), _mint(100_000)
    _measure(few)  # imports and caches are paid for here
    (few_requests, few_bytes), (many_requests, many_bytes) = _measure(few), _measure(many)
    for listed, requests, peak in ((few, few_requests, few_bytes), (many, many_requests, many_bytes)):
        least = _floor(len(listed))
        bench.note(
            f"{len(listed):>7,} objects: {requests} requests, {requests / least:.3f} times the floor of {least}; "
            f"at most {peak / 1024:.0f} KiB allocated at a time"
        )
    bench.require("floor against requests, 100,000 objects", _floor(len(many)) / many_requests, least=1 / 1.1)
    bench.require("memory for 10,000 objects against that for 100,000", few_bytes / many_bytes, least=0.9)

    if not bench.quick:
        requests, least = _count_on_s3(10_000), _floor(10_000)
        bench.note(f"10,000 objects on a real S3 server: {requests} requests, {requests / least:.3f} times the floor")

    ceiling = "list and delete, no questions asked"
    bench.compare(
        f"collect {len(many):,} objects",
        {ceiling: lambda: _list_and_delete(many), "collector": lambda: _collect(many)},
        ceiling=ceiling,
        amount=len(many),
        unit="objects",
        clock="cpu",
    )


def _collect(listed: list[str]) -> None:
    _open(listed)[1].collect_once()


def _list_and_delete(listed: list[str]) -> None:
    store = PagedStore(listed, ManualClock())
    rows = store.list("data/")
    while chunk := [row.key for row in islice(rows, _PAGE)]:
        store.delete(chunk)


def _count_on_s3(count: int) -> int:
    """Requests that a collection sends to a real server."""
    with SeaweedServer() as server:
        store = open_store(server.create_bucket("collect") + "/clicks", server.storage_options | {"client": "s3fs"})
        assert isinstance(store, RemoteStore)
        random = Random(3)
        store.create("manifest", Head(buffer_id="b" * 32).to_bytes())
        for _ in range(count):
            store.put(f"data/{names.mint(ManualClock(), random)}.batch", b"x")
        counting = _Counting(store._client)  # noqa: SLF001 - requests are counted below the retries
        store._client = counting  # noqa: SLF001
        report = Collector(store).collect_once()
        assert report.deleted == count, report
        return counting.requests


class _Counting:
    """A client that counts its requests; listings make one for each page."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.requests = 0

    def list_pages(self, prefix: str, start_after: str) -> Iterator[Any]:
        for page in self._client.list_pages(prefix, start_after):
            self.requests += 1
            yield page

    def __getattr__(self, name: str) -> Any:
        self.requests += name in {"get", "put", "delete"}
        return getattr(self._client, name)

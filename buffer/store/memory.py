"""`memory://name`: objects in this process, shared by every handle of that name."""

from __future__ import annotations

import os
from threading import Lock
from typing import TYPE_CHECKING

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import NotFound
from forebay.buffer.store.base import (
    Applied,
    Data,
    NotApplied,
    ObjectInfo,
    ObjectStore,
    Outcome,
    StoredObject,
    check_key,
    check_prefix,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.base.errors import StoreError


class _Bucket:
    """What all handles of one name share."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.writes = 0
        self.objects: dict[str, tuple[StoredObject, int]] = {}

    def write(self, path: str, data: Data, now_ms: int) -> str:
        self.writes += 1
        version = str(self.writes)
        self.objects[path] = (StoredObject(bytes(data), version), now_ms)
        return version


# By name: `memory://events/a` and `memory://events` see the same objects, as two URLs into one bucket do.
_buckets: dict[str, _Bucket] = {}


def _renew_locks() -> None:
    """In a forked child: a lock that another thread of the parent held would never be released."""
    for bucket in _buckets.values():
        bucket.lock = Lock()


os.register_at_fork(after_in_child=_renew_locks)


class MemoryStore(ObjectStore):
    """Objects in this process. A child process, forked or spawned, has objects of its own."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self.url: str = url.rstrip("/")
        name, _, folder = url.removeprefix("memory://").strip("/").partition("/")
        self._folder = f"{folder}/" if folder else ""
        self._clock = clock or SystemClock()
        self._bucket = _buckets.setdefault(name, _Bucket())  # atomic, so it needs no lock

    def __reduce__(self) -> tuple[type[MemoryStore], tuple[str]]:
        return MemoryStore, (self.url,)

    def get(self, key: str) -> StoredObject:
        """Return the object and its version."""
        path = self._folder + check_key(key)
        with self._bucket.lock:
            held = self._bucket.objects.get(path)
        if held is None:
            raise NotFound(f"{self.url}/{key} does not exist; check the URL and the key")
        return held[0]

    def get_if_changed(self, key: str, version: str) -> StoredObject | None:
        """Return the object, or None while its version is still `version`."""
        found = self.get(key)
        return None if found.version == version else found

    def put(self, key: str, data: Data) -> str:
        """Write the object whatever was there."""
        path = self._folder + check_key(key)
        with self._bucket.lock:
            return self._bucket.write(path, data, self._clock.now_ms())

    def create(self, key: str, data: Data) -> Outcome:
        """Write the object only if there is none."""
        path = self._folder + check_key(key)
        with self._bucket.lock:
            if path in self._bucket.objects:
                return NotApplied("it exists")
            return Applied(self._bucket.write(path, data, self._clock.now_ms()))

    def replace(self, key: str, data: Data, version: str) -> Outcome:
        """Write the object only if its version is still `version`."""
        path = self._folder + check_key(key)
        with self._bucket.lock:
            held = self._bucket.objects.get(path)
            if held is None:
                return NotApplied("it does not exist")
            if held[0].version != version:
                return NotApplied("its version has changed")
            return Applied(self._bucket.write(path, data, self._clock.now_ms()))

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield what is there now, in the keys' UTF-8 order."""
        path_prefix = self._folder + check_prefix(prefix)
        with self._bucket.lock:
            held = [
                ObjectInfo(path.removeprefix(self._folder), len(found.data), modified_ms)
                for path, (found, modified_ms) in self._bucket.objects.items()
                if path.startswith(path_prefix)
            ]
        after = start_after.encode()
        return iter(sorted((i for i in held if i.key.encode() > after), key=lambda i: i.key.encode()))

    def delete(self, keys: Iterable[str]) -> Mapping[str, StoreError]:
        """Delete objects; nothing can fail here."""
        paths = [self._folder + check_key(key) for key in keys]
        with self._bucket.lock:
            for path in paths:
                self._bucket.objects.pop(path, None)
        return {}

"""A store that limits writes to one object and answers 429, as Google Cloud Storage and Cloudflare R2 do."""

from __future__ import annotations

from collections import Counter
from threading import Lock
from typing import TYPE_CHECKING

from forebay.buffer.base.clock import Clock, SystemClock
from forebay.buffer.base.errors import InvalidInput, Unavailable
from forebay.buffer.store.base import Applied, Data, NotApplied, ObjectInfo, ObjectStore, Outcome, StoredObject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from forebay.buffer.base.errors import StoreError

_ANSWER = "429 TooManyRequests"


class ThrottledStore(ObjectStore):
    """A wrapper that limits how often each object of any store may be written.

    A write that comes too soon after the last write of the same object is not applied. A conditional write then gives
    `NotApplied` with `throttled`; a plain one raises `Unavailable`. Reads, lists and deletes have no limit.

    Args:
        inner: the wrapped store.
        writes_per_second: maximum rate of writes to one object, evenly spread.
        retry_after: seconds to wait that the answer asks for, as a `Retry-After` header does; 0 for none.
        clock: measures the limit.
    """

    def __init__(
        self,
        inner: ObjectStore,
        writes_per_second: float = 1.0,
        *,
        retry_after: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        if not writes_per_second > 0:
            raise InvalidInput(f"writes_per_second must be more than 0, not {writes_per_second}")
        self.url: str = inner.url
        self.inner = inner
        self.applied: Counter[str] = Counter()
        """Number of applied writes, by key."""
        self.throttled: Counter[str] = Counter()
        """Number of throttled writes, by key."""
        self._seconds_apart = 1.0 / writes_per_second
        self._retry_after = retry_after
        self._clock = clock or SystemClock()
        self._lock = Lock()
        self._written_at: dict[str, float] = {}

    def get(self, key: str) -> StoredObject:
        """Read from the wrapped store."""
        return self.inner.get(key)

    def get_if_changed(self, key: str, version: str) -> StoredObject | None:
        """Read from the wrapped store."""
        return self.inner.get_if_changed(key, version)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """List the wrapped store."""
        return self.inner.list(prefix, start_after=start_after)

    def delete(self, keys: Iterable[str]) -> Mapping[str, StoreError]:
        """Delete from the wrapped store."""
        return self.inner.delete(keys)

    def put(self, key: str, data: Data) -> str:
        """Write to the wrapped store, unless the last write of the object was too recent."""
        outcome = self._write(key, lambda: Applied(self.inner.put(key, data)))
        if isinstance(outcome, Applied):
            return outcome.version
        raise Unavailable(f"{self.url}/{key}: the store would not serve ({outcome.reason}); try again later")

    def create(self, key: str, data: Data) -> Outcome:
        """Write to the wrapped store, unless the last write of the object was too recent."""
        return self._write(key, lambda: self.inner.create(key, data))

    def replace(self, key: str, data: Data, version: str) -> Outcome:
        """Write to the wrapped store, unless the last write of the object was too recent."""
        return self._write(key, lambda: self.inner.replace(key, data, version))

    def _write(self, key: str, write: Callable[[], Outcome]) -> Outcome:
        with self._lock:
            now = self._clock.monotonic()
            if now < self._written_at.get(key, float("-inf")) + self._seconds_apart:
                self.throttled[key] += 1
                return NotApplied(_ANSWER, condition_failed=False, throttled=True, retry_after=self._retry_after)
            outcome = write()
            if isinstance(outcome, Applied):
                self.applied[key] += 1
                self._written_at[key] = now
            return outcome

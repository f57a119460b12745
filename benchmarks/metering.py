"""What some bytes cost: processor time, bytes to and from the store, and requests."""

from __future__ import annotations

import gc
import statistics
import time
from collections import Counter
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from cost import dollars

from forebay.testing import FaultyStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from forebay.buffer.base.errors import StoreError
    from forebay.buffer.store import Data, ObjectStore, StoredObject
    from forebay.buffer.store.base import ObjectInfo, Outcome

_PAGE = 1000
_WRITES = frozenset({"put", "create", "replace", "list"})


class Metered(FaultyStore):
    """Counts requests, and the bytes that they carry either way."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._counting = Lock()
        self.carried: Counter[str] = Counter()

    def _carry(self, way: str, size: int) -> None:
        with self._counting:
            self.carried[way] += size

    def get(self, key: str) -> StoredObject:
        found = super().get(key)
        self._carry("read", len(found.data))
        return found

    def get_if_changed(self, key: str, version: str) -> StoredObject | None:
        found = super().get_if_changed(key, version)
        self._carry("read", 0 if found is None else len(found.data))
        return found

    def put(self, key: str, data: Data) -> str:
        self._carry("written", len(data))
        return super().put(key, data)

    def create(self, key: str, data: Data) -> Outcome:
        self._carry("written", len(data))
        return super().create(key, data)

    def replace(self, key: str, data: Data, version: str) -> Outcome:
        self._carry("written", len(data))
        return super().replace(key, data, version)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        for number, row in enumerate(super().list(prefix, start_after=start_after), 1):
            yield row
            if number % _PAGE == 0:
                self.calls["list"] += 1  # S3's next page

    def delete(self, keys: Iterable[str]) -> Mapping[str, StoreError]:
        keys = [*keys]
        assert len(keys) <= _PAGE, "more than S3 takes in one request"
        return super().delete(keys)


@dataclass(frozen=True, slots=True)
class Cost:
    """What some gigabytes took, for each of them."""

    cpu: float
    written: float
    read: float
    writes: float
    reads: float
    deletes: float

    @property
    def requests(self) -> float:
        return self.writes + self.reads + self.deletes

    @property
    def bytes(self) -> float:
        return self.written + self.read

    @property
    def dollars(self) -> float:
        return dollars(self.writes, self.reads)

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, name) + getattr(other, name) for name in Cost.__slots__))

    def __str__(self) -> str:
        return (
            f"{self.cpu:.2f} CPU s, {self.written / 1e6:.1f} MB written, {self.read / 1e6:.1f} MB read, "
            f"{self.writes:.1f} writes, {self.reads:.1f} reads, {self.deletes:.1f} deletes"
        )


class Meter:
    """Takes the cost from here on."""

    def __init__(self, stores: Sequence[Metered]) -> None:
        gc.collect()
        self._stores = stores
        self._before = self._count()
        self._began = time.process_time()

    def _count(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for store in self._stores:
            total += store.calls + store.carried
        return total

    def cost(self, raw_bytes: int) -> Cost:
        cpu = time.process_time() - self._began
        spent = self._count() - self._before
        each = 1e9 / raw_bytes
        writes = sum(spent[kind] for kind in _WRITES)
        reads = spent["get"] + spent["get_if_changed"]
        return Cost(*(each * n for n in (cpu, spent["written"], spent["read"], writes, reads, spent["delete"])))


def median_cost(costs: Sequence[Cost]) -> Cost:
    return Cost(*(statistics.median(getattr(cost, name) for cost in costs) for name in Cost.__slots__))

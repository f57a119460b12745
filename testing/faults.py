"""A store that injects faults: it wraps any store and, by a script or a seed, fails as networks and processes do.

`FaultSchedule` decides which call fails. `FaultyCatalog` uses it too.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from enum import Enum
from threading import Event, Lock
from typing import TYPE_CHECKING, TypeVar

from forebay.buffer.base.clock import Clock, Random, SystemClock
from forebay.buffer.base.errors import Unavailable, Unknown
from forebay.buffer.store.base import Applied, Data, InDoubt, NotApplied, ObjectInfo, ObjectStore, Outcome, StoredObject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from forebay.buffer.base.errors import StoreError


_T = TypeVar("_T")


class Fault(Enum):
    """A fault of one call.

    On a read, faults of writes are plain failures. `FALSIFY` has no effect on calls that return no object: writes,
    listings, deletions, and conditional reads of an unchanged object.
    """

    FAIL = "the request never reaches the store"
    LOSE_ANSWER = "the store does it, and the answer is lost"
    DROP = "the request is lost on the way, and nobody can tell"
    LATE = "the answer times out, and the request lands some calls later, if its condition still holds then"
    OWN_RETRY = "the store does it, the client library asks again, and reports the failed condition that it met"
    BUSY = "the store answers 409: try again"
    OVERLOADED = "the store answers 503 without having done it"
    THROTTLED = "the store answers 429 without having done it: one object is written too often"
    FALSIFY = "the answer to a read has one bit of the object wrong; what is stored is right"
    DELAY = "it is done, slowly"
    STALL = "it waits until `release()`, and is then done"
    CRASH = "the caller dies just before the call: `Crash` is raised"
    CRASH_AFTER = "the caller dies after the store has done it: `Crash` is raised"
    KILL = "this process is killed with SIGKILL just before the call"
    KILL_AFTER = "this process is killed with SIGKILL after the store has done it"


WRITE_FAULTS = (
    Fault.FAIL,
    Fault.LOSE_ANSWER,
    Fault.DROP,
    Fault.LATE,
    Fault.OWN_RETRY,
    Fault.BUSY,
    Fault.OVERLOADED,
    Fault.THROTTLED,
    Fault.DELAY,
)
"""The faults that a seeded schedule chooses from by default: those of writes that the caller survives."""

_DELAY_SECONDS = 0.05
_MAX_LATE_CALLS = 6


class Crash(BaseException):
    """Simulates the death of the process. A `BaseException`, so that code that handles errors does not catch it."""


class FaultSchedule:
    """Decides which call fails, and how. Calls are numbered from 0, and the script chooses faults by these numbers.

    Override `next_fault` to choose faults by another rule, or to do something between two calls.

    Args:
        script: the faults, by the number of the call.
        only: names of the calls that count and may fail, such as `{"replace"}`; all of them by default.
        clock: what `DELAY` sleeps on.
    """

    def __init__(
        self,
        script: Mapping[int, Fault] | None = None,
        *,
        only: Iterable[str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.calls: Counter[str] = Counter()
        """Number of requests of each kind, including those with a fault."""
        self.faults: Counter[Fault] = Counter()
        """Number of injected faults of each kind."""
        script = dict(script or {})
        self._choose: Callable[[int], Fault | None] = script.get
        self._only = None if only is None else frozenset(only)
        self._clock = clock or SystemClock()
        self._lock = Lock()
        self._numbered = 0
        self._random = Random(0)
        self._late: list[tuple[int, Callable[[], object]]] = []
        self._released = Event()

    def fail_at_random(self, seed: int, rate: float, faults: Iterable[Fault]) -> None:
        """Let a random share `rate` of the calls fail: the same ones for the same seed."""
        kinds = tuple(faults)
        random = Random(seed)
        self._choose = lambda _number: random.choice(kinds) if random.random() < rate else None
        self._random = random

    def release(self) -> None:
        """Let every stalled call continue. After this, no call stalls."""
        self._released.set()

    @property
    def has_late_requests(self) -> bool:
        """Whether a late request has not arrived yet."""
        return bool(self._late)

    def land_late_request(self) -> None:
        """Let the oldest late request arrive now."""
        with self._lock:
            _, request = self._late.pop(0)
        request()

    def land_late_requests(self) -> None:
        """Let every late request arrive now."""
        while self.has_late_requests:
            self.land_late_request()

    def next_fault(self, kind: str) -> Fault | None:
        """Return the fault of the next call, whose kind is a name such as `get`; None for no fault."""
        with self._lock:
            self.calls[kind] += 1
            if self._only is not None and kind not in self._only:
                return None
            number = self._numbered
            self._numbered += 1
            fault = self._choose(number)
            if fault is not None:
                self.faults[fault] += 1
            landing = [request for due, request in self._late if due <= number]
            self._late = [(due, request) for due, request in self._late if due > number]
        for request in landing:
            request()
        return fault

    def _send_late(self, request: Callable[[], object]) -> None:
        """Let a request arrive some calls later."""
        with self._lock:
            self._late.append((self._numbered + self._random.randrange(_MAX_LATE_CALLS), request))

    def _do(self, fault: Fault | None, do: Callable[[], _T]) -> _T:
        if fault is Fault.DELAY:
            self._clock.sleep(_DELAY_SECONDS)
        elif fault is Fault.STALL:
            self._released.wait()
        elif fault is Fault.CRASH:
            raise Crash(fault.value)
        elif fault is Fault.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return do()
        finally:  # also if the call raised: an error is an answer too
            if fault is Fault.CRASH_AFTER:
                raise Crash(fault.value)
            if fault is Fault.KILL_AFTER:
                os.kill(os.getpid(), signal.SIGKILL)


class FaultyStore(FaultSchedule, ObjectStore):
    """A wrapper that adds faults to any store. Calls are numbered from 0, and the script chooses faults by the numbers.

    Override `next_fault` to choose faults by another rule, or to do something between two calls.

    Args:
        inner: the wrapped store.
        script: the faults, by the number of the call.
        only: names of the calls that count and may fail, such as `{"replace"}`; all of them by default.
        clock: what `DELAY` sleeps on.
    """

    def __init__(
        self,
        inner: ObjectStore,
        script: Mapping[int, Fault] | None = None,
        *,
        only: Iterable[str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(script, only=only, clock=clock)
        self.url: str = inner.url
        self.inner = inner

    @classmethod
    def seeded(
        cls,
        inner: ObjectStore,
        seed: int,
        *,
        rate: float = 0.3,
        faults: Iterable[Fault] = WRITE_FAULTS,
        only: Iterable[str] | None = None,
        clock: Clock | None = None,
    ) -> FaultyStore:
        """Return a store in which a random share `rate` of the calls fail: the same ones for the same seed."""
        store = cls(inner, only=only, clock=clock)
        store.fail_at_random(seed, rate, faults)
        return store

    def get(self, key: str) -> StoredObject:
        """Read from the wrapped store, unless a fault is injected."""
        return self._call("get", key, lambda: self.inner.get(key), self._flip_a_bit)

    def get_if_changed(self, key: str, version: str) -> StoredObject | None:
        """Read from the wrapped store, unless a fault is injected."""
        return self._call(
            "get_if_changed",
            key,
            lambda: self.inner.get_if_changed(key, version),
            lambda found: None if found is None else self._flip_a_bit(found),
        )

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """List the wrapped store, unless a fault is injected."""
        return self._call("list", prefix, lambda: self.inner.list(prefix, start_after=start_after))

    def delete(self, keys: Iterable[str]) -> Mapping[str, StoreError]:
        """Delete from the wrapped store, unless a fault is injected."""
        keys = list(keys)
        return self._call("delete", ", ".join(keys[:3]), lambda: self.inner.delete(keys))

    def put(self, key: str, data: Data) -> str:
        """Write to the wrapped store. A lost answer raises `Unknown`."""
        outcome = self._write("put", key, lambda: Applied(self.inner.put(key, data)))
        if isinstance(outcome, Applied):
            return outcome.version
        raise Unknown(f"{self.url}/{key}: {outcome.reason}")

    def create(self, key: str, data: Data) -> Outcome:
        """Write to the wrapped store. A lost answer gives `InDoubt`."""
        return self._write("create", key, lambda: self.inner.create(key, data))

    def replace(self, key: str, data: Data, version: str) -> Outcome:
        """Write to the wrapped store. A lost answer gives `InDoubt`."""
        return self._write("replace", key, lambda: self.inner.replace(key, data, version))

    def _flip_a_bit(self, found: StoredObject) -> StoredObject:
        data = bytearray(found.data)
        if data:
            with self._lock:
                bit = self._random.randrange(8 * len(data))
            data[bit // 8] ^= 1 << bit % 8
        return StoredObject(bytes(data), found.version)

    def _call(
        self, kind: str, key: str, do: Callable[[], _T], falsify: Callable[[_T], _T] = lambda answer: answer
    ) -> _T:
        fault = self.next_fault(kind)
        match fault:
            case Fault.FALSIFY:
                return falsify(do())
            case None | Fault.DELAY | Fault.STALL | Fault.CRASH | Fault.CRASH_AFTER | Fault.KILL | Fault.KILL_AFTER:
                return self._do(fault, do)
            case _:
                raise Unavailable(f"{self.url}/{key}: injected into {kind}: {fault.value}")

    def _write(self, kind: str, key: str, do: Callable[[], Outcome]) -> Outcome:
        fault = self.next_fault(kind)
        match fault:
            case Fault.FAIL:
                raise Unavailable(f"{self.url}/{key}: injected into {kind}: {fault.value}")
            case Fault.LOSE_ANSWER:
                do()
                return InDoubt(fault.value)
            case Fault.DROP | Fault.OVERLOADED:
                return InDoubt(fault.value)
            case Fault.LATE:
                self._send_late(do)
                return InDoubt(fault.value)
            case Fault.OWN_RETRY:
                first = do()
                # A put has no condition that can fail, so the client library's retry succeeds.
                return first if kind == "put" or not isinstance(first, Applied) else NotApplied(fault.value)
            case Fault.BUSY | Fault.THROTTLED:
                if kind == "put":
                    raise Unavailable(f"{self.url}/{key}: injected into {kind}: {fault.value}")
                return NotApplied(fault.value, condition_failed=False, throttled=fault is Fault.THROTTLED)
            case _:
                return self._do(fault, do)

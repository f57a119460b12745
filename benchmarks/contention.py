"""One manifest and its producers: how many appends it takes, predicted by a model and found with the real code.

The model, in words. An append reads the head and replaces it, and fails if another append came between the moment the
store answered the read and the moment it judged the write: a window of half a read and half a write. So at most one
append succeeds in each window, however many try. What share of the tries succeed is the share of the time in which
nobody else has just succeeded. A loser waits as the register does (full jitter, doubling) and tries again. A producer
sends one append at a time, leaves room for those of others (`forebay.buffer.manifest.pace`), and lists with it all that
it has stored meanwhile (group commit): so with many producers, appends wait and do not fail.

The measurement is `Queue.append` itself, one thread for each producer, on a store in memory that answers as late as
told. Time is simulated, so that minutes of a large fleet take seconds and a busy machine changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from heapq import heappop, heappush
from itertools import accumulate, count
from random import Random
from statistics import mean, quantiles
from threading import Condition, Event, Thread
from typing import TYPE_CHECKING, TypeVar

from forebay.buffer.base import names
from forebay.buffer.base.errors import Timeout
from forebay.buffer.format.model import Facts, Metadata, NewBatch
from forebay.buffer.manifest import Queue
from forebay.buffer.manifest.head import MAX_WRITERS
from forebay.buffer.manifest.pace import _ATTEMPTS_APART, _MOST_SECONDS
from forebay.buffer.manifest.register import _BACKOFF_BASE, _BACKOFF_CAP, DEFAULT_LIMITS
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import FaultyStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.buffer.store import Data, Outcome, StoredObject

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Store:
    """How long a store takes to answer, in seconds."""

    put: float
    get: float

    @property
    def window(self) -> float:
        """From the moment a read is answered for until the write that follows it is judged."""
        return (self.get + self.put) / 2


@dataclass(frozen=True, slots=True)
class Appends:
    """What a manifest does for its producers."""

    rate: float
    """Appends a second, of all producers together."""
    tries: float
    """Writes of the manifest for each append: 1 where nobody ever meets another."""
    seconds: float
    """How long an append takes, on average."""
    seconds_p99: float
    failed: float
    """The share of appends that give up, after a minute of coming second."""


# The model


@cache
def predict(producers: int, interval: float, store: Store) -> Appends:
    """What to expect of one manifest whose producers each have something to list every `interval` seconds."""
    if producers == 1:
        seconds = store.put  # a sole writer knows what it left there, and reads nothing
        return Appends(1 / max(interval, seconds), 1.0, seconds, seconds, 0.0)

    # A writer that the manifest has forgotten has to be made known again: one more update before each append.
    updates = 2 if producers > MAX_WRITERS else 1

    def rate(success: float) -> float:
        seconds = _update_seconds(success, store)
        # A producer that sees others append leaves them room.
        pace = min(_MOST_SECONDS, _ATTEMPTS_APART * (producers - 1) * seconds * success)
        return producers / max(interval, pace, updates * seconds)

    low, high = 1e-3, 1.0
    for _ in range(60):
        success = (low + high) / 2
        # The share of the time in which nobody else has just succeeded, at the rate that this success would give.
        free = 1 - store.window * updates * rate(success) * (producers - 1) / producers
        low, high = (success, high) if success < free else (low, success)
    outcomes = _outcomes(high, store)
    passed = accumulate(chance for chance, _ in outcomes)
    p99 = next(seconds for so_far, (_, seconds) in zip(passed, outcomes, strict=True) if so_far >= _P99)
    failed = sum(chance for chance, seconds in outcomes if seconds >= DEFAULT_LIMITS.max_seconds)
    return Appends(rate(high), updates / high, updates * _update_seconds(high, store), updates * p99, failed)


_P99 = 0.99


def _update_seconds(success: float, store: Store) -> float:
    return sum(chance * seconds for chance, seconds in _outcomes(success, store))


def _outcomes(success: float, store: Store) -> list[tuple[float, float]]:
    """How likely an update is to end with its first, second … try, and after how many seconds on average."""
    found, left = [], 1.0
    for seconds in _times(store):
        found.append((left * success, seconds))
        left *= 1 - success
    return [*found, (left, DEFAULT_LIMITS.max_seconds)]  # and then it gives up


@cache
def _times(store: Store) -> list[float]:
    """After how many seconds the first, second … try of an update ends, on average."""
    pauses = (min(_BACKOFF_CAP, _BACKOFF_BASE * 2.0 ** min(n, 10)) / 2 for n in range(DEFAULT_LIMITS.max_attempts - 1))
    once = store.get + store.put
    return list(accumulate(pauses, lambda seconds, pause: seconds + pause + once, initial=once))


# The real code, in simulated time


def measure(producers: int, interval: float, store: Store, *, seconds: float, spread: float = 0.0) -> Appends:
    """What the manifest really does, over this many simulated seconds after all producers have started.

    With `spread` each answer takes its own time: log-normal, of that many deviations, with the mean as told.
    """
    turns, bucket = Turns(), MemoryStore(f"memory://contention-{next(_numbers)}")
    # Each has to be known to the manifest before its first append: as many more writes, which are not counted.
    begins = 5.0 + 2 * interval + 3 * producers * store.window
    fleet = [
        _Writer(_Distant(bucket, store, turns, Random(-1 - number), spread), turns, interval, Random(number))
        for number in range(producers)
    ]
    turns.run([partial(writer.work, begins, begins + seconds) for writer in fleet])
    took = [each for writer in fleet for each in writer.took]
    writes, failed = sum(writer.writes for writer in fleet), sum(writer.failed for writer in fleet)
    p99 = quantiles(took, n=100)[98]
    return Appends(len(took) / seconds, writes / len(took), mean(took), p99, failed / (failed + len(took)))


_numbers = count()


class _Writer:
    """One producer's side of the manifest."""

    def __init__(self, distant: _Distant, turns: Turns, interval: float, random: Random) -> None:
        self._distant = distant
        self._turns = turns
        self._interval = interval
        self._random = random
        self._queue = Queue(distant, role="producer", clock=turns, random=random)
        self.took: list[float] = []
        self.writes = self.failed = 0

    def work(self, begins: float, until: float) -> None:
        """Append for as long as told, and take down what happened from `begins` on."""
        turns = self._turns
        due = self._random.uniform(0, self._interval)
        self._queue.read()
        while (now := turns.monotonic()) < until:
            turns.sleep(max(0.0, due - now))
            began, before, failed = turns.monotonic(), self._distant.writes, False
            try:
                self._queue.append([self._new_batch()])
            except Timeout:
                failed = True
            if begins <= turns.monotonic() < until:
                self.writes += self._distant.writes - before
                self.failed += failed
                if not failed:
                    self.took.append(turns.monotonic() - began)
            # What came due meanwhile is stored, and listed together: the next append begins at once, or as the pace is.
            due = max(due + self._interval, turns.monotonic(), began + self._queue.pace.seconds())

    def _new_batch(self) -> NewBatch:
        now = self._turns.now_ms()
        location = f"data/{names.mint(self._turns, self._random)}.batch"
        return NewBatch(location, (Metadata(0, now, b""),), Facts(1, 1, 1, 0, now, now))


class _Distant(FaultyStore):
    """A store at the other end of a network: half of the time passes before it has done it, and half after."""

    def __init__(self, inner: MemoryStore, store: Store, turns: Turns, random: Random, spread: float) -> None:
        super().__init__(inner)
        self._store = store
        self._turns = turns
        self._random = random
        self._spread = spread
        self.writes = 0

    def get(self, key: str) -> StoredObject:
        return self._answer(self._store.get, lambda: super(_Distant, self).get(key))

    def get_if_changed(self, key: str, version: str) -> StoredObject | None:
        return self._answer(self._store.get, lambda: super(_Distant, self).get_if_changed(key, version))

    def create(self, key: str, data: Data) -> Outcome:
        self.writes += key == "manifest"
        return self._answer(self._store.put, lambda: super(_Distant, self).create(key, data))

    def replace(self, key: str, data: Data, version: str) -> Outcome:
        self.writes += key == "manifest"
        return self._answer(self._store.put, lambda: super(_Distant, self).replace(key, data, version))

    def _answer(self, seconds: float, do: Callable[[], T]) -> T:
        if self._spread:
            seconds *= self._random.lognormvariate(-(self._spread**2) / 2, self._spread)
        self._turns.sleep(seconds / 2)
        try:
            return do()
        finally:
            self._turns.sleep(seconds / 2)


class Turns:
    """A simulated clock for threads that run one at a time. When all sleep, the one that is due first wakes."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, int, Event]] = []
        self._numbers = count()
        self._ended = Event()
        self._failure: Exception | None = None

    def run(self, bodies: list[Callable[[], None]]) -> None:
        """Run all of them to their end."""
        threads = [Thread(target=self._live, args=(body, self._queue_up(0.0)), daemon=True) for body in bodies]
        for thread in threads:
            thread.start()
        self._wake_next()
        self._ended.wait()
        if self._failure is not None:
            raise self._failure

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self._now * 1000)

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        own = self._queue_up(seconds)
        self._wake_next()
        own.wait()

    def wait_until(self, condition: Condition, deadline: float | None) -> bool:
        raise NotImplementedError("nothing that is simulated here waits for another thread")

    def _queue_up(self, seconds: float) -> Event:
        own = Event()
        heappush(self._sleepers, (self._now + seconds, next(self._numbers), own))
        return own

    def _live(self, body: Callable[[], None], begin: Event) -> None:
        begin.wait()
        try:
            body()
        except Exception as error:  # noqa: BLE001 - `run` raises it to its caller
            self._failure = error
        self._wake_next()

    def _wake_next(self) -> None:
        if not self._sleepers:
            self._ended.set()
            return
        self._now, _, event = heappop(self._sleepers)
        event.set()

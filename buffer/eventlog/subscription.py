"""Following a topic: the one implementation, whatever the log's home is (rfcs/0009).

A subscription is, for each assigned partition, the next offset wanted. It reads from there, and waits where there is
nothing: history and live events come the same way, so none can be given twice, be skipped or overtake another.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from forebay.buffer.base import metrics
from forebay.buffer.base.checks import check_whole
from forebay.buffer.base.errors import Closed, ForebayError, InvalidInput
from forebay.buffer.base.lifecycle import Closing, shows_unopened
from forebay.buffer.base.waiting import POLL_FLOOR, deadline_in
from forebay.buffer.eventlog.model import Lagged, decode_record

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.eventlog.backend import Backend, Bounds
    from forebay.buffer.eventlog.model import Record

_log = logging.getLogger("forebay.eventlog")

READ_AHEAD: Final = 256
"""Maximum number of events of one partition in one read."""
_ASYNC_LOOK_SECONDS: Final = 1.0
"""Seconds after which the thread of a cancelled `async for` ends."""


class _Place:
    """Where a subscription is in one partition, from its assignment to its removal."""

    __slots__ = ("ahead", "history_end", "next")

    def __init__(self, start: int, history_end: int) -> None:
        self.next = start
        """The first offset that was not read yet."""
        self.history_end = history_end
        """The high-water mark when it was assigned."""
        self.ahead: deque[Record] = deque()
        """Events that were read and not returned yet."""

    @property
    def last_given(self) -> int:
        return (self.ahead[0].offset if self.ahead else self.next) - 1


class Following:
    """What the two halves of a subscription share; guarded by the condition of the log's changes."""

    def __init__(self, backend: Backend, topic: str) -> None:
        self.backend = backend
        self.topic = topic
        self.changes: Final = backend.changes
        self.places: dict[int, _Place] = {}
        self.ended = False


class Assignment:
    """Which partitions a subscription follows; it may be changed from any thread, also while another one waits."""

    def __init__(self, following: Following, partitions: int) -> None:
        self._following = following
        self._partitions = partitions

    def add(self, partition: int, start: int = 0) -> None:
        """Follow a partition from offset `start` on; if it is followed already, nothing happens.

        Raises:
            InvalidInput: the topic has no such partition.
            Closed: the subscription has ended.
            StoreError: the log could not be read; nothing was changed.
        """
        following = self._following
        check_partition(partition, self._partitions, following.backend.url, following.topic)
        check_whole(start, "a start")
        if partition in self.assigned():
            return
        mark = following.backend.bounds(following.topic, [partition])[0].next
        with following.changes.condition:
            if following.ended:
                raise Closed(
                    f"{following.backend.url}: this subscription to {following.topic} has ended; subscribe again"
                )
            following.places.setdefault(partition, _Place(start, mark))
        following.changes.notify()

    def remove(self, partition: int) -> None:
        """Follow a partition no more: nothing of it is given after that, not even what was read already."""
        with self._following.changes.condition:
            self._following.places.pop(partition, None)  # guard: forget the position in a removed partition

    def assigned(self) -> list[int]:
        """Return the partitions that are followed, in order."""
        with self._following.changes.condition:
            return sorted(self._following.places)


class Subscription(Closing):
    """The events of the assigned partitions, as they come: iterate over it, with `for` or `async for`, or `poll`.

    Within a partition they come in the order of their offsets. It ends when it or the log is closed; when it falls
    behind (`Lagged`); and with the error, if reading fails. One thread at a time reads from it.
    """

    def __init__(
        self,
        following: Following,
        *,
        depth: int,
        poll_interval: float,
        is_log_closed: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._following = following
        self._backend = following.backend
        self._topic = following.topic
        self._changes = following.changes
        self._depth = depth
        self._poll_interval = poll_interval
        self._is_log_closed = is_log_closed
        self._clock = clock
        self._reading = Lock()
        self.skipped: dict[int, int] = {}
        """How many events, by partition, were compacted away before they could be given."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._following.ended or self._is_log_closed()

    def poll(self, timeout: float | None = None) -> Record | None:
        """Return the next event, or None if there is none in `timeout` seconds, or if the subscription has ended.

        Raises:
            Lagged: more than `depth` events wait in one partition, beyond what was there when it was assigned.
            ForebayError: the log could not be read.
        """
        deadline = deadline_in(self._clock, timeout)
        while (record := self._pop()) is None and self._fill(deadline):
            pass
        return record

    def close(self) -> None:
        """End the subscription, and wake threads that wait for the next event."""
        with self._changes.condition:
            self._following.ended = True
            self._following.places.clear()  # guard: forget positions when a subscription closes
        self._changes.notify()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        record = self.poll()
        if record is None:
            raise StopIteration
        return record

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        # A thread reads ahead; the event is taken only here, so a cancelled call leaves it to the next one.
        while (record := self._pop()) is None:
            if self.ended:
                raise StopAsyncIteration
            await asyncio.to_thread(self._fill, self._clock.monotonic() + _ASYNC_LOOK_SECONDS)
        return record

    @shows_unopened
    def __repr__(self) -> str:
        return f"<Subscription to {self._topic} of {self._backend.url}, partitions {sorted(self._following.places)}>"

    def _pop(self) -> Record | None:
        with self._changes.condition:
            if self.ended:
                return None
            for place in self._following.places.values():
                if place.ahead:
                    return place.ahead.popleft()
        return None

    def _fill(self, deadline: float | None) -> bool:
        """Read ahead, waiting until there is something; False if it has ended or the time is over."""
        changes, clock = self._changes, self._clock
        delay = POLL_FLOOR
        with self._reading:
            while True:
                with changes.condition:
                    seen = changes.count
                    places = dict(self._following.places)
                if self.ended:
                    return False
                if any(place.ahead for place in places.values()) or self._read(places):
                    return True
                now = clock.monotonic()
                if deadline is not None and now >= deadline:
                    return False
                look = now + delay if self._backend.polls else None
                until = min((moment for moment in (look, deadline) if moment is not None), default=None)
                # Every change since the look above was counted: nobody waits for what is already there.
                # guard: do not wait if something changed since the last look
                has_changed = changes.wait_past(seen, clock, until)
                delay = POLL_FLOOR if has_changed else min(2 * delay, self._poll_interval)

    def _read(self, places: dict[int, _Place]) -> bool:
        """Read what there is for places that have nothing ahead, and return whether there was anything."""
        if not places:
            return False
        try:
            bounds = dict(zip(places, self._backend.bounds(self._topic, list(places)), strict=True))
            for partition, place in places.items():  # guard: skip what was compacted away before judging lag
                self._move_up(partition, place, bounds[partition].first)
            self._check_lag(places, bounds)
            found = False
            for partition, place in places.items():
                found |= self._read_partition(partition, place, bounds[partition])
        except BaseException as error:
            is_mine = not (isinstance(error, ForebayError) and self.ended)
            self.close()  # guard: close the subscription after any error
            if is_mine:
                raise
            return False  # the log was closed while we looked
        return found

    def _read_partition(self, partition: int, place: _Place, bounds: Bounds) -> bool:
        # guard: read to the end of history before judging lag
        end = bounds.next if place.next >= place.history_end else min(bounds.next, place.history_end)
        limit = min(end - place.next, self._depth, READ_AHEAD)
        if limit <= 0:
            return False
        records = [
            decode_record(data, self._backend.url, self._topic, partition, offset)
            for offset, data in self._backend.read(self._topic, partition, place.next, limit)
        ]
        if not records:
            return False  # compacted away since; the next look moves up
        self._move_up(partition, place, records[0].offset)
        with self._changes.condition:
            place.ahead.extend(records)
            place.next = records[-1].offset + 1
        return True

    def _move_up(self, partition: int, place: _Place, first: int) -> None:
        """Go on at the first event retained, and say so, if those before it are gone."""
        if place.next >= first:
            return
        warn_of_gap(self._backend.url, self._topic, partition, place.next, first)
        self.skipped[partition] = self.skipped.get(partition, 0) + first - place.next
        place.next = first

    def _check_lag(self, places: dict[int, _Place], bounds: dict[int, Bounds]) -> None:
        for partition, place in places.items():
            waiting = bounds[partition].next - place.next
            with self._changes.condition:
                is_removed = self._following.places.get(partition) is not place
            # guard: history does not count as lag
            # guard: judge lag only for assigned partitions
            if place.next >= place.history_end and waiting > self._depth and not is_removed:
                metrics.subscribers_lagged.add(1, {"buffer": self._backend.url})
                raise Lagged(
                    f"{self._backend.url}: {waiting} events of topic {self._topic}, partition {partition}, wait for "
                    f"this subscriber, and {self._depth} may: subscribe again after offset {place.last_given}",
                    last={number: known.last_given for number, known in places.items()},
                )


def check_partition(partition: Any, partitions: int, url: str, topic: str) -> int:
    """Return a partition's number, or raise `InvalidInput` if the topic has no such partition."""
    try:
        return check_whole(partition, "a partition", most=partitions - 1)
    except InvalidInput:
        raise InvalidInput(
            f"partition {partition!r} is not one of topic {topic} in {url}: it must be at least 0 and "
            f"below {partitions}"
        ) from None


def warn_of_gap(url: str, topic: str, partition: int, wanted: int, first: int) -> None:
    """Say that reading begins later than asked."""
    _log.warning(
        "%s: topic %s, partition %d: offsets %d to %d were compacted away; reading goes on at %d",
        url,
        topic,
        partition,
        wanted,
        first - 1,
        first,
    )

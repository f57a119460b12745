"""Subscriptions to a topic: one implementation for every kind of storage (rfcs/0009).

A subscription keeps the next offset to read of each assigned partition. It reads from there, and waits if there is
nothing. History and live events come the same way, so no event is returned twice, skipped or overtaken.
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
"""Maximum number of seconds for which the thread of a cancelled `async for` continues to wait."""


class _Place:
    """A subscription's position in one partition, from the partition's assignment to its removal."""

    __slots__ = ("ahead", "history_end", "next")

    def __init__(self, start: int, history_end: int) -> None:
        self.next = start
        """The first offset that was not read yet."""
        self.history_end = history_end
        """The partition's high-water mark when it was assigned: events before it do not count as lag."""
        self.ahead: deque[Record] = deque()
        """Events that were read and not returned yet."""

    @property
    def last_given(self) -> int:
        return (self.ahead[0].offset if self.ahead else self.next) - 1


class Following:
    """The state that a `Subscription` and its `Assignment` share. The condition of the log's `Changes` guards it."""

    def __init__(self, backend: Backend, topic: str) -> None:
        self.backend = backend
        self.topic = topic
        self.changes: Final = backend.changes
        self.places: dict[int, _Place] = {}
        self.ended = False


class Assignment:
    """The partitions that a subscription follows. Any thread may change them, even while another waits for events."""

    def __init__(self, following: Following, partitions: int) -> None:
        self._following = following
        self._partitions = partitions

    def add(self, partition: int, start: int = 0) -> None:
        """Follow a partition from offset `start` on. If it is followed already, nothing changes.

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
        """Stop following a partition. No event of it is returned after this, not even one that was read already."""
        with self._following.changes.condition:
            self._following.places.pop(partition, None)  # guard: forget the position in a removed partition

    def assigned(self) -> list[int]:
        """Return the partitions that are followed, in order."""
        with self._following.changes.condition:
            return sorted(self._following.places)


class Subscription(Closing):
    """An iterator over the events of the assigned partitions. Use `for`, `async for` or `poll`.

    Within a partition, events come in the order of their offsets. The subscription ends when it or the log is closed,
    when it falls behind (`Lagged`), or when reading fails. Only one thread at a time may read from it.
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
        """Number of events, by partition, that were compacted away before they could be returned."""

    @property
    def ended(self) -> bool:
        """Whether the subscription has ended."""
        return self._following.ended or self._is_log_closed()

    def poll(self, timeout: float | None = None) -> Record | None:
        """Return the next event, or None if there is none in `timeout` seconds, or if the subscription has ended.

        Raises:
            Lagged: more than `depth` events wait in one partition. Events from before its assignment do not count.
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
        # A thread reads ahead. The event is taken only here, so a cancelled call leaves it for the next call.
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
        """Wait for events and read them ahead. Return False if the subscription ended or the deadline was reached."""
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
                # `seen` was taken before the read above: a change since then ends the wait at once.
                # guard: do not wait if something changed since the last look
                has_changed = changes.wait_past(seen, clock, until)
                delay = POLL_FLOOR if has_changed else min(2 * delay, self._poll_interval)

    def _read(self, places: dict[int, _Place]) -> bool:
        """Read what there is for places that have nothing ahead, and return whether any event was found."""
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
            return False  # the log was closed while we read
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
            return False  # compacted away since; the next read starts later
        self._move_up(partition, place, records[0].offset)
        with self._changes.condition:
            place.ahead.extend(records)
            place.next = records[-1].offset + 1
        return True

    def _move_up(self, partition: int, place: _Place, first: int) -> None:
        """Continue at the first retained event, with a warning, if the events before it are gone."""
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
                    f"this subscriber; the maximum is {self._depth}. Subscribe again after offset {place.last_given}",
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
    """Log that events were compacted away, so that reading begins later than requested."""
    _log.warning(
        "%s: topic %s, partition %d: offsets %d to %d were compacted away; reading goes on at %d",
        url,
        topic,
        partition,
        wanted,
        first - 1,
        first,
    )

"""An event log: topics of events that any number of readers follow, each at its own pace (rfcs/0009)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.buffer.base import metrics
from forebay.buffer.base.checks import check_seconds, check_whole
from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import Closed, InvalidInput
from forebay.buffer.base.lifecycle import Closing, shows_unopened
from forebay.buffer.eventlog.model import CompactReport, Description, decode_record, encode_event
from forebay.buffer.eventlog.names import check_consumer, check_topic
from forebay.buffer.eventlog.subscription import Assignment, Following, Subscription, check_partition, warn_of_gap
from forebay.buffer.manifest.topic import MAX_PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.eventlog.backend import Backend
    from forebay.buffer.eventlog.model import Event, Record

_READ_AT_ONCE = 1000


class EventLog(Closing):
    """A log, wherever it is at home; `open_event_log` makes one. Safe to use from many threads.

    A topic that nobody has made reads as one empty partition, and reading never makes it.

    What `append` alone survives depends on the home: in memory, nothing; in files and SQLite, the end of the process,
    and a power cut only after `flush`; in object storage, everything.

    Args:
        backend: the log's home.
        depth: maximum number of events that wait for a subscriber in one partition, before it gets `Lagged`.
        poll_interval: how many seconds a subscriber waits at most before it looks for what other processes have
            appended; the first look is after 50 ms.
        clock: where time comes from.
    """

    def __init__(
        self, backend: Backend, *, depth: int = 1024, poll_interval: float = 1.0, clock: Clock | None = None
    ) -> None:
        self._backend = backend
        self._depth = check_whole(depth, "depth", least=1)
        self._poll_interval = check_seconds(poll_interval, "poll_interval")
        self._clock = clock or SystemClock()
        self._counts: dict[str, int] = {}
        self._closed = False

    @property
    def url(self) -> str:
        """Where the log is."""
        return self._backend.url

    # Topics

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Create a topic. Its number of partitions never changes. If it exists with this number, nothing changes.

        Raises:
            InvalidInput: it is there with another number of partitions.
        """
        self._check_open()
        check_whole(partitions, "partitions", least=1, most=MAX_PARTITIONS)
        found = self._counts[topic] = self._backend.create(check_topic(topic), partitions)
        if found != partitions:
            raise InvalidInput(
                f"partitions must be {found}, not {partitions}: {self.url} has topic {topic} already, and "
                "the number never changes"
            )

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        self._check_open()
        return self._count(check_topic(topic)) or 1

    # Writing

    def append(self, topic: str, event: Event, *, partition: int = 0) -> int:
        """Append an event, and return its offset. The topic is made, with one partition, if it is not there.

        Raises:
            InvalidInput: the topic, the partition or the event cannot be.
            Unavailable: the log could not be reached; nothing was appended.
            Unknown: it may have been appended, or may yet be.
        """
        return self.append_many(topic, [event], partition=partition).start

    def append_many(self, topic: str, events: Sequence[Event], *, partition: int = 0) -> range:
        """Append events as neighbours, in one go, and return their offsets. As `append` otherwise."""
        self._check_open()
        check_topic(topic)
        now_ms = self._clock.now_ms()
        encoded = [encode_event(event, now_ms) for event in events]
        # Before anything is made: a call that is refused leaves nothing behind.
        count = self._count(topic)
        check_partition(partition, count or 1, self.url, topic)
        if count is None and encoded:
            self._counts[topic] = self._backend.create(topic, 1)
        if not encoded:
            end = self._backend.bounds(topic, [partition])[0].next
            return range(end, end)
        first = self._backend.append(topic, partition, encoded)
        self._backend.changes.notify()
        metrics.events_appended.add(len(encoded), {"buffer": self.url})
        return range(first, first + len(encoded))

    def flush(self) -> None:
        """Let everything appended so far survive a power cut: sync files, checkpoint SQLite."""
        self._check_open()
        self._backend.flush()

    # Reading

    def read_range(
        self, topic: str, *, after: int | None = None, limit: int | None = None, partition: int = 0
    ) -> list[Record]:
        """Return the events after an offset, or from the first one there, in order; at most `limit` of them."""
        at = 0 if after is None else check_whole(after, "after", least=-1) + 1
        wanted = None if limit is None else check_whole(limit, "limit")
        self._check_place(topic, partition)
        end = self._backend.bounds(topic, [partition])[0].next
        records: list[Record] = []
        while at < end and (wanted is None or len(records) < wanted):
            limit_now = min(_READ_AT_ONCE, end - at, _READ_AT_ONCE if wanted is None else wanted - len(records))
            found = self._backend.read(topic, partition, at, limit_now)
            if not found:
                break
            records += [
                decode_record(data, self.url, topic, partition, offset) for offset, data in found if offset < end
            ]
            at = found[-1][0] + 1
        if after is not None and records and records[0].offset > after + 1:
            warn_of_gap(self.url, topic, partition, after + 1, records[0].offset)
        return records

    def subscribe(self, topic: str, assignment: Mapping[int, int] | None = None) -> tuple[Subscription, Assignment]:
        """Follow partitions, each from the first offset wanted on; the topic need not be there yet.

        Args:
            topic: the topic.
            assignment: the first offset wanted, by partition; none at first is as good as any.

        Returns:
            The events, as an iterator that waits for more until it is closed; and the handle that adds and removes
            partitions meanwhile. Dropping the handle changes nothing; dropping both leaves nothing behind.
        """
        partitions = self.partitions(topic)
        following = Following(self._backend, topic)
        handle = Assignment(following, partitions)
        # guard: keep no reference to a subscription
        records = Subscription(
            following,
            depth=self._depth,
            poll_interval=self._poll_interval,
            is_log_closed=lambda: self._closed,
            clock=self._clock,
        )
        for partition, start in (assignment or {}).items():
            handle.add(partition, start)
        return records, handle

    def latest(self, topic: str, *, partition: int = 0) -> int | None:
        """Return the offset of the last event ever appended; None if there was none."""
        self._check_place(topic, partition)
        end = self._backend.bounds(topic, [partition])[0].next
        return end - 1 if end else None

    def high_water_marks(self, topic: str) -> list[int]:
        """Return the offset of the next event to be appended, of every partition: 0 where there was none."""
        count = self.partitions(topic)
        return [bounds.next for bounds in self._backend.bounds(topic, range(count))]

    # Consumers

    def ack(self, topic: str, consumer: str, up_to: int, *, partition: int = 0) -> None:
        """Remember that a consumer is done with everything up to and including an offset. It only moves forward.

        Raises:
            InvalidInput: there is no such event yet.
        """
        self._move(topic, consumer, up_to, partition, back=False)

    def reset(self, topic: str, consumer: str, to: int | None, *, partition: int = 0) -> None:
        """Move a consumer's cursor anywhere: to an offset it is done with, or None, as if it had never been there."""
        self._move(topic, consumer, to, partition, back=True)

    def cursor(self, topic: str, consumer: str, *, partition: int = 0) -> int | None:
        """Return the last offset that a consumer is done with; None if it never said."""
        self._check_place(topic, partition)
        return self._backend.cursor(topic, partition, check_consumer(consumer))

    # Keeping it small

    def compact(self, topic: str, through: int, *, partition: int = 0) -> CompactReport:
        """Remove the events up to and including an offset, and say what was done. Cursors do not hold it back.

        In object storage the space comes back when the collector next runs on the topic.
        """
        check_whole(through, "through", least=-1)
        self._check_place(topic, partition)
        if self._count(topic) is None:
            return CompactReport()
        report = self._backend.compact(topic, partition, through)
        self._backend.changes.notify()
        return report

    def describe(self) -> Description:
        """Return what there is to know of the log without reading it."""
        self._check_open()
        location = None if self._backend.kind == "memory" else self.url
        return Description(self._backend.kind, location, self._backend.size_bytes(), self._depth)

    def close(self) -> None:
        """Let go of files and connections, and end every subscription. Closing again does nothing."""
        if not self._closed:
            self._closed = True
            self._backend.changes.notify()
            self._backend.close()

    @shows_unopened
    def __repr__(self) -> str:
        return f"<EventLog {self.url}{', closed' if self._closed else ''}>"

    def _move(self, topic: str, consumer: str, to: int | None, partition: int, *, back: bool) -> None:
        check_consumer(consumer)
        self._check_place(topic, partition)
        if to is not None:
            end = self._backend.bounds(topic, [partition])[0].next
            if check_whole(to, "an offset") >= end:
                raise InvalidInput(
                    f"{self.url}: topic {topic}, partition {partition}, has no event {to} yet; the next one is {end}"
                    "; give that one or an earlier one"
                )
        elif self._count(topic) is None:
            return
        self._backend.move_cursor(topic, partition, consumer, to, back=back)

    def _count(self, topic: str) -> int | None:
        """How many partitions a topic has; None if there is no such topic yet. What is known never changes."""
        if topic not in self._counts:
            found = self._backend.partitions(topic)
            if found is None:
                return None
            self._counts[topic] = found
        return self._counts[topic]

    def _check_place(self, topic: str, partition: int) -> None:
        check_partition(partition, self.partitions(topic), self.url, topic)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.url}: this event log was closed; open it again")

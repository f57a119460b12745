"""An event log: topics of events. Any number of readers follow them, each at its own pace (rfcs/0009)."""

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
    """An event log in any kind of storage. `open_event_log` opens one. Safe to use from many threads.

    A topic that was never created reads as one empty partition, and reading never creates it.

    Which failures an appended event survives depends on the storage. In memory, none. In files and SQLite, the end of
    the process, and after `flush` a power cut. In object storage, both.

    Args:
        backend: the log's storage.
        depth: maximum number of events that wait for a subscriber in one partition, before it gets `Lagged`.
        poll_interval: maximum seconds between two looks of a waiting subscriber for events of other processes; the
            first look is after 50 ms.
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
        """The log's URL."""
        return self._backend.url

    # Topics

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Create a topic. Its number of partitions never changes. If it exists with this number, nothing changes.

        Raises:
            InvalidInput: it exists with another number of partitions.
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
        """Append an event, and return its offset. A topic that does not exist is created with one partition.

        Raises:
            InvalidInput: the topic's name, the partition or the event is not valid.
            Unavailable: the log could not be reached; nothing was appended.
            Unknown: it may have been appended, or may be later.
        """
        return self.append_many(topic, [event], partition=partition).start

    def append_many(self, topic: str, events: Sequence[Event], *, partition: int = 0) -> range:
        """Append events in one step, and return their contiguous offsets. Raises as `append` does."""
        self._check_open()
        check_topic(topic)
        now_ms = self._clock.now_ms()
        encoded = [encode_event(event, now_ms) for event in events]
        # Check before the topic is created: a call that is refused leaves nothing behind.
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
        """Make everything appended so far survive a power cut: sync files, checkpoint SQLite."""
        self._check_open()
        self._backend.flush()

    # Reading

    def read_range(
        self, topic: str, *, after: int | None = None, limit: int | None = None, partition: int = 0
    ) -> list[Record]:
        """Return up to `limit` events in order, after the offset `after`, or from the first retained on."""
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
        """Follow partitions, each from a start offset on. The topic need not exist yet.

        Args:
            topic: the topic.
            assignment: the start offset of each partition. It may be empty: partitions can be added later.

        Returns:
            The events, as an iterator that waits for more until it is closed; and a handle that adds and removes
            partitions. Dropping the handle changes nothing; dropping both frees everything.
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
        """Return the offset of the next event to be appended, for each partition; 0 before the first event."""
        count = self.partitions(topic)
        return [bounds.next for bounds in self._backend.bounds(topic, range(count))]

    # Consumers

    def ack(self, topic: str, consumer: str, up_to: int, *, partition: int = 0) -> None:
        """Record that a consumer is done with all events up to and including an offset. The cursor only moves forward.

        Raises:
            InvalidInput: there is no such event yet.
        """
        self._move(topic, consumer, up_to, partition, back=False)

    def reset(self, topic: str, consumer: str, to: int | None, *, partition: int = 0) -> None:
        """Set a consumer's cursor to any offset, as the last one it is done with. None removes the cursor."""
        self._move(topic, consumer, to, partition, back=True)

    def cursor(self, topic: str, consumer: str, *, partition: int = 0) -> int | None:
        """Return the last offset that a consumer is done with; None if there is none."""
        self._check_place(topic, partition)
        return self._backend.cursor(topic, partition, check_consumer(consumer))

    # Keeping it small

    def compact(self, topic: str, through: int, *, partition: int = 0) -> CompactReport:
        """Remove the events up to and including an offset, and return a report. Consumers' cursors do not prevent it.

        In object storage the space is freed when the collector next runs on the topic.
        """
        check_whole(through, "through", least=-1)
        self._check_place(topic, partition)
        if self._count(topic) is None:
            return CompactReport()
        report = self._backend.compact(topic, partition, through)
        self._backend.changes.notify()
        return report

    def describe(self) -> Description:
        """Return the log's storage, location, size and depth, without reading events."""
        self._check_open()
        location = None if self._backend.kind == "memory" else self.url
        return Description(self._backend.kind, location, self._backend.size_bytes(), self._depth)

    def close(self) -> None:
        """Close files and connections, and end every subscription. Closing again does nothing."""
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
        """Return how many partitions a topic has; None if there is no such topic yet. The number is read only once."""
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

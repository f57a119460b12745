"""The read side of a topic: a consumer for each partition, asked in turn (rfcs/0005)."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from forebay.buffer.base.checks import check_seconds
from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import Fenced, ForebayError, InvalidInput, NotFound
from forebay.buffer.base.lifecycle import shows_unopened
from forebay.buffer.base.waiting import POLL_FLOOR
from forebay.buffer.consumer import Consumer
from forebay.buffer.read.acks import ACK_SECONDS
from forebay.buffer.read.iteration import MAX_SKIPS, RUN, BaseConsumer
from forebay.buffer.store.retry import RETRY_SECONDS
from forebay.buffer.topic.batches import PartitionBatch, PartitionDescriptor, TopicFetchHandle, TopicLag
from forebay.buffer.topic.topic import LOOK_SECONDS, Topic, check_place, close_all, in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime
    from typing import Any, Literal

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.read.ahead import ReadAhead
    from forebay.buffer.read.fetch import Batch, FetchHandle
    from forebay.buffer.read.typed import Columns
    from forebay.buffer.store import StoreUrl


class TopicConsumer(BaseConsumer[PartitionDescriptor, PartitionBatch]):
    """Reads a topic's batches: in order within each partition, and evenly over the partitions.

    Opening one takes over its partitions from the previous consumer, which gets `Fenced`. A consumer that is fenced in
    one partition stops in all of them. Two consumers that open at the same moment may fence each other: open one again.

    Args:
        url: the topic, such as `s3://lake/clicks`, or its store if it is open already.
        group: a named reader, with its own position in every partition. None is the unnamed consumer.
        from_: where a group starts that does not exist yet: `earliest`, `latest`, or a time (a datetime with a zone, or
            ISO 8601 text). In partitions that are added later it starts at their beginning.
        columns: for a typed topic: names of the columns to decode, or a schema in which to return rows; None is all
            columns of the newest schema that the batch's partition has.
        partitions: the partitions to read, so that several processes can share a topic. None is all of them. Partitions
            that are added later are then noticed within ten seconds.
        on_trimmed: what to do if retention has dropped the next batch: `raise` raises `Trimmed`, and `skip` continues
            with the first batch that is left, and counts the missed ones in `skipped`.
        storage_options: credentials, endpoint and client of the store.
        retry_timeout: maximum time in seconds for which a read is retried while the store fails; 0 for none. After an
            error, the next call reads the same batch again.
        max_poll_interval: maximum time in seconds between two reads of the manifest while there is nothing to read.
        read_ahead: how far iteration fetches ahead of the program, in all partitions together; None for the defaults
            of `ReadAhead`, and `ReadAhead(batches=0)` to turn it off.
        ack_interval: maximum time in seconds until an `ack` is written in the background.

    Safe to use from several threads. To fetch in parallel, let one thread call `next_descriptors` and `ack_through`,
    and give `fetch_handle()` to the workers.

    Raises:
        NotFound: there is no topic; `create_topic` makes one.
        InvalidInput: there is no such partition.
    """

    def __init__(
        self,
        url: StoreUrl,
        *,
        group: str | None = None,
        from_: str | datetime = "earliest",
        columns: Columns | None = None,
        partitions: Iterable[int] | None = None,
        on_trimmed: Literal["raise", "skip"] = "raise",
        storage_options: Mapping[str, Any] | None = None,
        retry_timeout: float = RETRY_SECONDS,
        max_poll_interval: float = 2.0,
        read_ahead: ReadAhead | None = None,
        ack_interval: float = ACK_SECONDS,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        check_seconds(max_poll_interval, "max_poll_interval", least=POLL_FLOOR)
        self._topic = Topic(url, storage_options=storage_options, clock=clock, random=random)
        super().__init__(
            self._topic.url, max_poll_interval=max_poll_interval, read_ahead=read_ahead, clock=clock or SystemClock()
        )
        assigned = range(self._topic.partitions) if partitions is None else sorted(set(partitions))
        wrong = [number for number in assigned if number not in range(self._topic.partitions)]
        if wrong or not assigned:
            raise InvalidInput(
                f"partitions must be some of 0 to {self._topic.partitions - 1} of {self.url}, each once; "
                f"asked for {wrong or 'none'}"
            )
        self._takes_all = partitions is None
        self._settings: dict[str, Any] = {
            "group": group,
            "columns": columns,
            "on_trimmed": on_trimmed,
            "retry_timeout": retry_timeout,
            "max_poll_interval": max_poll_interval,
            "ack_interval": ack_interval,
            "clock": clock,
            "random": random,
        }
        if group is not None:
            # Everywhere, also where another process reads: until then the collector may trim there.
            # guard: register the group in partitions read by others too
            self._settings["from_"] = self._topic.register_group(group, from_, apart_from=assigned)
        self._fetcher = TopicFetchHandle(self._topic.store, columns=columns, retry_timeout=retry_timeout, clock=clock)
        self._fenced: Fenced | None = None
        # The partitions' own positions move when what is in `_found` is taken. So an interrupt in the middle of a look
        # loses nothing.
        self._turn = 0
        self._looked_at = self._clock.monotonic()
        self._consumers: dict[int, Consumer] = {}
        try:
            self._claim(assigned)
        except BaseException:
            close_all(self._consumers.values())
            raise

    # Reading

    def next_descriptors(self, max_batches: int) -> list[PartitionDescriptor]:
        """Return up to `max_batches` descriptors, by one look at each partition: as many of each as there is room for.

        No object is touched. Each is handed out once by this consumer, fetched or not. With 0, nothing is read.

        If a look fails, that is raised, and what the others found is handed out by the next call. After an interrupt,
        the next call finds the same ones, as with `next_batch`.
        """
        if max_batches < 0:
            raise InvalidInput(f"max_batches must be at least 0, not {max_batches}")
        self._stop_ahead()
        taken: list[PartitionDescriptor] = []
        try:
            with self._reading:
                self._check_open()
                if max_batches and not self._found:
                    self._look(max_batches)
                taken = list(islice(self._found, max_batches))
                self._hand_out(taken)
            return taken
        except BaseException:
            self._undo(taken)
            raise

    def fetch_handle(self) -> TopicFetchHandle:
        """Return what fetches descriptors in workers: threads, processes or other machines."""
        return self._fetcher

    # Acknowledging

    def ack(self, partition: int, sequence: int) -> None:
        """Acknowledge the next batch of a partition in order. It is written soon, as `Consumer.ack` says.

        Raises:
            InvalidInput: it is not the next one, or was never handed out.
            Fenced: another consumer has taken over.
        """
        with self._stopping_if_fenced():
            self._of(partition).ack(sequence)

    def ack_through(self, partition: int, sequence: int) -> None:
        """Acknowledge every batch of a partition up to and including `sequence`, durably before this returns.

        Raises:
            InvalidInput: it was acknowledged before, or was never handed out.
            Fenced: another consumer has taken over, and nothing was changed.
        """
        with self._stopping_if_fenced():
            self._of(partition).ack_through(sequence)

    def flush(self) -> None:
        """Write acknowledgements that are not written yet."""
        self._each(Consumer.flush)

    def close(self) -> None:
        """Write pending acknowledgements and let go. Closing again does nothing; a fence or failure is raised once."""
        if not self._start_closing():
            return
        failures = close_all(self._consumers.values())
        # The caller who already got Fenced does not get it again.
        untold = [error for error in failures if self._fenced is None or not isinstance(error, Fenced)]
        if untold:
            raise untold[0]

    # Looking

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that this consumer reads."""
        return tuple(self._consumers)

    @property
    def skipped(self) -> int:
        """Batches that were trimmed before they could be read, with `on_trimmed="skip"`."""
        return sum(consumer.skipped for consumer in self._consumers.values())

    def __len__(self) -> int:
        """How many batches were not acknowledged when the partitions were last looked at here."""
        return sum(map(len, self._consumers.values()))

    def lag(self) -> TopicLag:
        """Return how far behind this consumer is, by a look at every partition's manifest."""
        return TopicLag(dict(zip(self.partitions, self._each(Consumer.lag), strict=True)))

    def seek(self, to: str | datetime) -> None:
        """Read on from a time, `earliest` or `latest` in every partition. What is acknowledged stays so.

        Acknowledging after a jump forward acknowledges what was jumped over. If this fails, repeat it: some partitions
        may have jumped already.
        """
        place = check_place(to)
        with self._reading:
            self._window.clear()
            self._found.clear()  # these were not handed out, so if the seek fails the next look finds them again
            self._each(lambda consumer: consumer.seek(place))

    @shows_unopened
    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._consumers)} of {self._topic.partitions} partitions"
        return f"<TopicConsumer of {self.url}, {state}>"

    # Inside

    def _claim(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            claimed = Consumer(self._topic.partition(number), **self._settings)
            self._consumers = {**self._consumers, number: claimed}  # a new one: other threads may go over the old one
            if self._closed:  # guard: let go of a partition that was claimed during the close
                claimed.close()

    def _look_for_partitions(self) -> None:
        now = self._clock.monotonic()
        if not self._takes_all or now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        added = range(len(self._consumers), self._topic.refresh().partitions)
        if added:
            # The consumer that took over has claimed them, or will: a fenced consumer must not take them back.
            # guard: check the first claim before taking new partitions
            self._consumers[0].look(1)
            self._claim(added)

    def _look(self, max_batches: int) -> None:
        """Find up to `max_batches` batches, evenly over the partitions, starting with another partition each time."""
        with self._stopping_if_fenced():
            self._look_for_partitions()
            numbers = list(self._consumers)
            self._turn = (self._turn + 1) % len(numbers)
            asking = numbers[self._turn :] + numbers[: self._turn]
            left = max_batches
            reached: dict[int, int] = {}
            while asking and left:
                share, more = divmod(left, len(asking))
                # With fewer to find than partitions, the first are asked for one each, the others if that was not all.
                asked = [(number, share + (place < more)) for place, number in enumerate(asking)]
                later = [number for number, limit in asked if limit == 0]
                asked = [(number, limit) for number, limit in asked if limit]
                answers = in_parallel(self._ask, [(number, limit, reached.get(number)) for number, limit in asked])
                found = [answer for answer in answers if not isinstance(answer, ForebayError)]
                self._found += _in_turns(found)
                left -= sum(len(descriptors) for _number, descriptors in found)
                reached |= {number: got[-1].sequence for number, got in found if got}
                _raise_failure(answers)
                full = {number for (number, limit), (_, got) in zip(asked, found, strict=True) if len(got) == limit}
                asking = later + [number for number, _limit in asked if number in full]

    def _look_ahead(self) -> None:
        with self._stopping_if_fenced():
            self._look_for_partitions()
            numbers = list(self._consumers)
            self._turn = (self._turn + 1) % len(numbers)
            # What is being fetched stays in front. The others take turns anew, so that no partition waits for another.
            fetched = list(islice(self._found, len(self._window)))
            listed: dict[int, list[BatchDescriptor]] = {n: [] for n in numbers[self._turn :] + numbers[: self._turn]}
            for number, descriptor in islice(self._found, len(self._window), None):
                listed[number].append(descriptor)
            reached = {number: descriptor.sequence for number, descriptor in self._found}
            # The number that there is room for. With 0 it is still a look.
            asked = [(number, max(0, RUN - len(waiting)), reached.get(number)) for number, waiting in listed.items()]
            answers = in_parallel(self._ask, asked)
            for answer in answers:
                if not isinstance(answer, ForebayError):
                    listed[answer[0]] += answer[1]
            self._found = deque(fetched + _in_turns(list(listed.items())))
            _raise_failure(answers)
            limits = {number: limit for number, limit, _after in asked}
            self._has_more = any(
                len(answer[1]) == limits[answer[0]] for answer in answers if not isinstance(answer, ForebayError)
            )

    def _ask(self, asked: tuple[int, int, int | None]) -> tuple[int, list[BatchDescriptor]] | ForebayError:
        number, limit, after = asked
        consumer = self._consumers[number]
        try:
            if after is not None:
                return number, consumer.look_beyond(after, limit)
            return number, consumer.look(limit).descriptors
        except ForebayError as error:
            # guard: keep what was found if another partition fails
            return error  # after what the others have found is kept

    def _peek(self) -> tuple[PartitionDescriptor, PartitionBatch] | None:
        for _ in range(MAX_SKIPS):
            with self._reading:
                self._check_open()
                if not self._found:
                    self._look(len(self._consumers))
                if not self._found:
                    return None
                found = self._found[0]
            try:
                batch = self._consumers[found.partition].fetch_descriptor(found.descriptor)
            except NotFound as error:
                self._look_for_missing(found, error)  # guard: look again for a batch that is missing
            else:
                return found, PartitionBatch(found.partition, batch)
        raise self._outpaced()

    def _look_for_missing(self, found: PartitionDescriptor, error: NotFound) -> None:
        """Replace what was found in a partition whose next batch is missing by what a second look finds.

        Raises:
            NotFound, Fenced, Trimmed: as `Consumer.look_again`.
        """
        with self._reading, self._stopping_if_fenced():
            if not self._found or self._found[0] is not found:
                return  # another thread has dealt with it
            instead = self._consumers[found.partition].look_again(found.descriptor, error).descriptors
            rest = [other for other in self._found if other.partition != found.partition]
            self._found = deque([PartitionDescriptor(found.partition, first) for first in instead] + rest)

    def _take(self, place: PartitionDescriptor) -> bool:
        """Take what was fetched off the list, unless another thread has."""
        with self._reading:
            if not self._found or self._found[0] is not place:
                return False
            self._hand_out([place])
            return True

    def _put_back(self, place: PartitionDescriptor) -> None:
        self._undo([place])

    def _discard(self) -> None:
        self._window.clear()
        # What an interrupt put back is behind its partition's position, so that no look finds it again.
        self._found = deque(
            found for found in self._found if self._consumers[found.partition].has_handed_out(found.descriptor.sequence)
        )

    def _follows(self, place: PartitionDescriptor) -> bool:  # noqa: ARG002 - every call that jumps empties the list
        return True

    def _last_look(self, place: PartitionDescriptor) -> float:
        return self._consumers[place.partition].looked_at

    def _to_fetch(self, place: PartitionDescriptor) -> tuple[FetchHandle, BatchDescriptor]:
        return self._consumers[place.partition].fetch_handle(), place.descriptor

    def _arrived(self, place: PartitionDescriptor, batch: Batch) -> PartitionBatch:
        self._consumers[place.partition].note_age(batch)
        return PartitionBatch(place.partition, batch)

    def _hand_out(self, taken: Sequence[PartitionDescriptor]) -> None:
        """Take the first ones off the list, and move their partitions' positions over them."""
        sequences: dict[int, list[int]] = {}
        for number, descriptor in taken:
            sequences.setdefault(number, []).append(descriptor.sequence)
        for number, of_partition in sequences.items():
            self._consumers[number].hand_out_through(of_partition[0], of_partition[-1])
        # Last, and in one step: after an interrupt before it, the next call hands the same ones out.
        if len(taken) == 1:
            self._found.popleft()
        else:
            self._found = deque(islice(self._found, len(taken), None))

    def _undo(self, taken: Sequence[PartitionDescriptor]) -> None:
        """Put batches that an interrupt kept from being returned back in front of the list, unless they are there."""
        with self._reading:
            if taken and not (self._found and self._found[0] is taken[0]):
                self._found.extendleft(reversed(taken))  # guard: put back batches whose return was interrupted

    def _of(self, partition: int) -> Consumer:
        self._check_open()
        try:
            return self._consumers[partition]
        except KeyError:
            raise InvalidInput(
                f"partition {partition} of {self.url} is not read by this consumer; name one of {list(self._consumers)}"
            ) from None

    def _each(self, do: Callable[[Consumer], Any]) -> list[Any]:
        with self._stopping_if_fenced():
            self._check_open()
            return in_parallel(do, self._consumers.values())

    @contextmanager
    def _stopping_if_fenced(self) -> Iterator[None]:
        try:
            yield
        except Fenced as error:
            self._fenced = error
            raise

    def _check_open(self) -> None:
        super()._check_open()
        if self._fenced is not None:
            raise Fenced(*self._fenced.args)
        for consumer in self._consumers.values():
            if consumer.fence is not None:  # met by a write in the background
                self._fenced = consumer.fence
                raise Fenced(*self._fenced.args)


def _in_turns(found: list[tuple[int, list[BatchDescriptor]]]) -> list[PartitionDescriptor]:
    """One batch of each partition, then a second of each, and so on."""
    longest = max((len(descriptors) for _number, descriptors in found), default=0)
    return [
        PartitionDescriptor(number, descriptors[place])
        for place in range(longest)
        for number, descriptors in found
        if place < len(descriptors)
    ]


def _raise_failure(answers: Iterable[object]) -> None:
    failures = [answer for answer in answers if isinstance(answer, ForebayError)]
    if failures:
        raise next((error for error in failures if isinstance(error, Fenced)), failures[0])

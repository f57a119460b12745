"""The read side of a buffer: one owner at a time, read-ahead for many workers, acknowledgement in order (rfcs/0004)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from threading import Condition, Lock, RLock
from typing import TYPE_CHECKING, Final, Protocol

from forebay.buffer.base import metrics
from forebay.buffer.base.checks import check_seconds, check_whole
from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.errors import Closed, InvalidInput, NotFound, Timeout, Trimmed
from forebay.buffer.base.lifecycle import Closing, shows_unopened
from forebay.buffer.base.waiting import POLL_FLOOR, Arrivals, count_race
from forebay.buffer.groups import GroupReader
from forebay.buffer.manifest import Queue, UnnamedReader
from forebay.buffer.manifest.head import trimmed
from forebay.buffer.manifest.topic import is_partition
from forebay.buffer.read.fetch import FetchHandle
from forebay.buffer.store import StoreUrl, open_store
from forebay.buffer.store.retry import RETRY_SECONDS, Patience

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime
    from typing import Any, Literal

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.format.model import BatchDescriptor, Reader
    from forebay.buffer.manifest import Claim, Profile
    from forebay.buffer.read.fetch import Batch
    from forebay.gc import Collector

_log = logging.getLogger("forebay.consumer")

DEQUEUE_EVERY = 100
"""`ack` writes the manifest once for so many batches."""
MAX_SKIPS: Final = 100
"""Maximum number of times in one call that retention may drop what comes next before it can be read."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a consumer is behind, as of the manifest just read."""

    batches: int
    """Batches appended and not acknowledged here."""
    seconds: float
    """The age of the oldest of them by its ingestion time; 0 if there is none, or none that tells its time."""


class ReadSide(Protocol):
    """Where a consumer's claim and frontier are kept: in the manifest for the unnamed one, in a cursor for a group."""

    def claim(self) -> Claim:
        """Take over from the consumer before."""

    def look(self, claim: Claim, after: int | None, limit: int) -> list[BatchDescriptor]:
        """Batches after a sequence, or after what is acknowledged."""

    def ack(self, claim: Claim, through: int) -> None:
        """Record durably that all up to a sequence is done."""

    def plan(self, claim: Claim, ends: Collection[int]) -> None:
        """Record durably where ranges end that are about to be worked on."""

    def planned(self) -> tuple[int, ...]:
        """The ends recorded and not acknowledged, as last seen."""

    @property
    def reader(self) -> Reader:
        """Who reads."""

    def release(self, claim: Claim) -> None:
        """Say that the consumer has closed."""

    def acked(self) -> int | None:
        """The last sequence acknowledged, as last seen."""

    def waiting(self) -> int:
        """How many batches were not acknowledged, as last seen."""

    @property
    def conflict_rate(self) -> float:
        """The share of writes that met another writer."""


class _Place:
    """Where in the manifest batches were found. Used to hand them out once, and to undo that."""

    __slots__ = ("cursor", "first", "last", "moved")

    def __init__(self, cursor: int | None, first: int, last: int) -> None:
        self.cursor = cursor
        """The cursor before them."""
        self.first = first
        self.last = last
        self.moved = False
        """Whether they were handed out."""


class Consumer(Closing):
    """Reads a buffer's batches in order. Opening one takes over from the consumer before, which gets `Fenced`.

    It may be opened before anything is written. Then it logs a warning, as the URL may be wrong. The first producer
    decides the buffer's format; a group needs a native buffer, and makes one.

    Args:
        url: the buffer, such as `s3://lake/clicks`, or its store if it is open already.
        last_acked: resume after this sequence: what is at or below it counts as acknowledged. It may lie beyond what
            exists yet; before the first write it is not stored, so pass it again. None starts after what is
            acknowledged.
        group: a named reader, with a frontier of its own that other groups do not see. None is the unnamed consumer.
        from_: where a group starts that does not exist yet: `earliest` (the default), `latest`, a sequence, or a time
            (a datetime with a zone, or ISO 8601 text).
        on_trimmed: what to do if retention has dropped what comes next: `raise` `Trimmed`, or `skip` to the first batch
            left and count what was missed in `skipped`.
        profile: `opendata` refuses to make a native buffer, which a group would need.
        manifest_path: the manifest's key below `url`.
        data_prefix: the folder below `url` that batches are stored in, which only a collector has to know.
        collect: whether to run a collector beside this consumer, until it is closed.
        collect_interval: seconds between its collections.
        collect_grace: seconds that an upload may take to be listed; see `forebay.gc.Collector`.
        storage_options: credentials, endpoint and client of the store.
        retry_timeout: maximum time in seconds for which a read is retried while the store fails; 0 for none. After an
            error the next call reads the same again.
        max_poll_interval: while there is nothing to read, `batches(wait=…)` looks again after at most so many seconds.

    Safe to use from several threads. To fetch in parallel, let one thread call `next_descriptors` and `ack_through`,
    and give `fetch_handle()` to the workers.
    """

    _INSTEAD = "pass on fetch_handle(), which can be pickled and only fetches, or the URL, and open another one there"

    def __init__(
        self,
        url: StoreUrl,
        *,
        last_acked: int | None = None,
        group: str | None = None,
        from_: str | int | datetime | None = None,
        on_trimmed: Literal["raise", "skip"] = "raise",
        profile: Profile = "native",
        manifest_path: str = "manifest",
        data_prefix: str = "data",
        collect: bool = False,
        collect_interval: float = 300.0,
        collect_grace: float = 600.0,
        storage_options: Mapping[str, Any] | None = None,
        retry_timeout: float = RETRY_SECONDS,
        max_poll_interval: float = 2.0,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        last_acked = None if last_acked is None else check_whole(last_acked, "last_acked")
        check_seconds(max_poll_interval, "max_poll_interval", least=POLL_FLOOR)
        check_seconds(collect_interval, "collect_interval")
        if not collect_grace >= 0:
            raise InvalidInput(f"collect_grace must be a number of seconds, 0 or more, not {collect_grace}")
        if on_trimmed not in ("raise", "skip"):
            raise InvalidInput(f"on_trimmed must be 'raise' or 'skip', not {on_trimmed!r}")
        if from_ is not None and group is None:
            raise InvalidInput("from_ says where a new group starts: name the group, or use seek()")
        self._store = open_store(url, storage_options)
        self.url = self._store.url
        self._clock = clock or SystemClock()
        self._max_poll_interval = max_poll_interval
        self._queue = Queue(self._store, manifest_path, profile=profile, role="consumer", clock=clock, random=random)
        self._side: ReadSide = UnnamedReader(self._queue)
        if group is not None:
            start = "earliest" if from_ is None else from_
            self._side = GroupReader(self._queue, group, start=start, clock=clock, random=random)
        self._skips = on_trimmed == "skip"
        self.skipped = 0
        """Batches that were trimmed before they could be read, with `on_trimmed="skip"`."""
        self._fetcher = FetchHandle(self._store, retry_timeout=retry_timeout, clock=self._clock)
        self._patience = Patience(self._clock, random or system_random(), retry_timeout)
        self._moving = RLock()
        self._acking = Lock()
        self._closing = Condition()
        self._closed = False
        self._cursor = last_acked
        self._first_handed_out: int | None = None
        self._lost: int | None = None
        self._frontier: int | None = None
        self._unwritten_acks = 0
        self._gaps: dict[int, int] = {}

        self._claim = self._side.claim()
        if last_acked is not None:
            acked = self._side.acked()
            if acked is None or acked < last_acked:
                self._side.ack(self._claim, last_acked)
            else:
                self._cursor = acked
        if self.unwritten or (self.end == 0 and not is_partition(self.url)):
            _log.warning("nothing was ever written to %s. Is the URL right?", self.url)
        self._collector: Collector | None = None
        if collect:
            self._collector = self._make_collector(data_prefix, collect_grace, random).start(collect_interval)

    def _make_collector(self, data_prefix: str, grace: float, random: Random | None) -> Collector:
        from forebay.gc import Collector  # noqa: PLC0415 -- it stands on this layer: only who asks for one needs it

        path = self._queue.manifest_path
        return Collector(
            self._store, grace=grace, manifest_path=path, data_prefix=data_prefix, clock=self._clock, random=random
        )

    # Reading

    def next_batch(self) -> Batch | None:
        """Return the next batch, or None if there is none yet.

        The cursor moves only once the batch is here: after an error or an interrupt, the next call reads the same one.
        An interrupt is any exception that Python raises between two instructions, such as `KeyboardInterrupt`. If it
        comes after the cursor has moved, the cursor is moved back. If another thread has already read further, this
        consumer cannot acknowledge the interrupted batch or later ones. A new consumer reads them again.

        A batch can still be lost in two cases: a second interrupt comes while the cursor is moved back, or an interrupt
        comes after this call has returned and before the caller has stored the result. The second cannot happen in
        `batch = consumer.next_batch()` unless a debugger or tracer is running, because CPython checks for signals only
        at a function's start, after a call of C code and at a loop's jump back. `ack` notices a lost batch, because it
        goes one by one. `ack_through` cannot.
        """
        races = 0
        while True:
            place, batch = self._peek()
            if batch is None:
                return None
            try:
                if self._take(place, batch):
                    return batch
            except BaseException:  # guard: put back a batch whose return was interrupted
                self._put_back(place, batch)
                raise
            races = count_race(races)

    def next_descriptors(self, max_batches: int) -> list[BatchDescriptor]:
        """Return up to `max_batches` descriptors after the last one handed out, by one look at the manifest.

        No object is touched. Each is handed out once by this consumer, fetched or not; the one that takes over starts
        again at the first that was not acknowledged. With 0, nothing is read. After an error or an interrupt, the next
        call finds the same ones, as with `next_batch`.
        """
        max_batches = check_whole(max_batches, "max_batches")
        if max_batches == 0:
            self._check_open()
            return []
        races = 0
        while True:
            place, found = self._look(max_batches)
            if place is None:
                return found
            try:
                if self._hand_out(place):
                    return found
            except BaseException:
                self._undo(place)
                raise
            races = count_race(races)

    def fetch_handle(self) -> FetchHandle:
        """Return what fetches descriptors in workers: threads, processes or other machines."""
        return self._fetcher

    def fetch_descriptor(self, descriptor: BatchDescriptor) -> Batch:
        """Return the batch that the descriptor names, and note how old its newest entry is."""
        batch = self._fetcher.fetch(descriptor)
        if batch.metadata:
            age = (self._clock.now_ms() - batch.metadata[-1].ingestion_time_ms) / 1000
            metrics.consumer_lag.set(max(0.0, age), self._attributes)  # guard: report the age of what was read
        return batch

    def check_missing(self, descriptor: BatchDescriptor) -> None:
        """Return if a batch that was handed out here, and is not there, is still this consumer's to deal with.

        Raises:
            Fenced: another consumer has taken over; once it had acknowledged the batch, the collector could sweep it.
            Trimmed: retention dropped it, and `on_trimmed` is not `skip`.
        """
        try:
            self._side.look(self._claim, descriptor.sequence - 1, 1)
        except Trimmed:
            if not self._skips:
                raise

    def batches(self, *, wait: bool | float = False) -> Arrivals[Batch]:
        """Iterate over what follows, with `for` or `async for`.

        Args:
            wait: what to do at the end of what is there: False stops, True waits for more until the consumer is
                closed, a number stops after so many seconds without a new batch.
        """
        self._check_open()
        return Arrivals(
            self._peek,
            self._take,
            self._put_back,
            self._wait,
            patience=wait,
            longest=self._max_poll_interval,
            clock=self._clock,
        )

    def __iter__(self) -> Arrivals[Batch]:
        return self.batches()

    def __aiter__(self) -> Arrivals[Batch]:
        return self.batches()

    # Acknowledging

    def ack(self, sequence: int) -> None:
        """Acknowledge the next batch in order. Every hundredth call writes the manifest; `flush` writes the rest.

        Raises:
            InvalidInput: it is not the next one, or was never handed out.
            Fenced: another consumer has taken over. Up to 99 acknowledgements before this one were not written.
        """
        sequence = check_whole(sequence, "sequence")
        with self._acking:
            first = self._check_handed_out(sequence)
            following = first if self._frontier is None else self._frontier + 1
            expected = following
            # guard: skip consecutive gaps when acknowledging in order
            while expected in self._gaps:  # one gap may begin where another ends
                expected = self._gaps[expected]
            if sequence != expected:  # guard: acknowledge in order
                raise InvalidInput(f"{self.url}: batch {expected} must be acknowledged next, not {sequence}")
            if self._unwritten_acks + 1 >= DEQUEUE_EVERY:
                # guard: write the ack before moving the local frontier
                self._write_acks(sequence)  # before the local state, so that a failed call can be repeated
            else:
                self._unwritten_acks += 1
            self._frontier = sequence
            metrics.acks.add(1, self._attributes)

    def ack_through(self, sequence: int) -> None:
        """Acknowledge every batch up to and including `sequence`, durably before this returns.

        Raises:
            InvalidInput: it was acknowledged before, or was never handed out.
            Fenced: another consumer has taken over, and nothing was changed.
        """
        sequence = check_whole(sequence, "sequence")
        with self._acking:
            first = self._check_handed_out(sequence)
            if self._frontier is not None and sequence <= self._frontier:
                raise InvalidInput(
                    f"{self.url}: batch {sequence} was acknowledged before; the last is {self._frontier}"
                )
            self._write_acks(sequence)  # guard: write ack_through before moving the frontier
            newly = sequence - first + 1 if self._frontier is None else sequence - self._frontier
            self._frontier = sequence
            metrics.acks.add(newly, self._attributes)

    def plan(self, ends: Collection[int]) -> None:
        """Record durably where ranges end that are about to be worked on as one, until they are acknowledged.

        Whoever takes over finds them in `planned`, and can do the same ranges again (rfcs/0007).

        Raises:
            InvalidInput: one of them was never handed out.
            Unsupported: this is the unnamed consumer; only groups have a place for it.
            Fenced: another consumer has taken over, and nothing was changed.
        """
        with self._acking:
            for end in ends:
                self._check_handed_out(end)
            if ends:
                self._side.plan(self._claim, ends)

    def flush(self) -> None:
        """Write acknowledgements that are not in the manifest yet."""
        with self._acking:
            self._check_open()
            self._flush()

    def close(self) -> None:
        """Write pending acknowledgements and let go. Closing again does nothing; a fence or failure is raised once."""
        with self._acking:
            with self._closing:
                if self._closed:
                    return
                self._closed = True
                self._closing.notify_all()
            try:  # guard: stop the collector even if the last write fails
                self._flush()
                self._side.release(self._claim)
            finally:
                if self._collector is not None:
                    self._collector.stop()

    # Looking

    def __len__(self) -> int:
        """How many batches were not acknowledged when the manifest was last read or written here."""
        return self._side.waiting()

    def __bool__(self) -> bool:
        return True  # an empty consumer is still a consumer

    @property
    def epoch(self) -> int:
        """The epoch that this consumer claimed."""
        return self._claim.epoch

    @property
    def reader(self) -> Reader:
        """Identity of this reader, by which sinks keep their positions. It lasts until the group is reset or deleted.

        Without a group it may change with the first write (see `unwritten`).
        """
        return self._side.reader

    @property
    def acked(self) -> int | None:
        """The last sequence that is acknowledged durably, by this consumer or the one before; None if there is none."""
        return self._side.acked()

    @property
    def planned(self) -> tuple[int, ...]:
        """Where ranges end that were recorded by `plan`, here or by the consumer before, and are not acknowledged."""
        acked = self._side.acked()
        return tuple(end for end in self._side.planned() if acked is None or end > acked)

    @property
    def end(self) -> int:
        """The sequence that the next batch appended will have, as of the last look at the manifest."""
        state = self._queue.last_seen()
        return 0 if state is None else state.next_sequence

    @property
    def unwritten(self) -> bool:
        """Whether nothing was written as of the last look at the manifest, so that its format is still undecided."""
        state = self._queue.last_seen()
        return state is not None and state.is_unwritten

    @property
    def conflict_rate(self) -> float:
        """The share of this consumer's writes, from 0 to 1, that met another writer."""
        return self._side.conflict_rate

    def lag(self) -> Lag:
        """Return how far behind this consumer is, by a look at the manifest."""
        self._check_open()
        state = self._queue.read()
        known = [acked for acked in (self._frontier, self._side.acked()) if acked is not None]
        frontier = max(known, default=None)
        first = max(state.first_sequence, 0 if frontier is None else frontier + 1)
        oldest = self._queue.descriptors(first, 1, state=state)
        if not oldest:
            return Lag(0, 0.0)
        now_ms, taken_in = self._clock.now_ms(), oldest[0].first_time_ms
        return Lag(state.next_sequence - first, 0.0 if taken_in is None else max(0.0, (now_ms - taken_in) / 1000))

    def seek(self, to: int | str | datetime) -> None:
        """Read on from a sequence, a time, `earliest` or `latest`. What is acknowledged stays so.

        Acknowledging after a jump forward acknowledges what was jumped over.

        Raises:
            Trimmed: it is gone.
            Unsupported: a time, in a buffer of version 1, which knows none.
        """
        with self._acking:
            self._check_open()
            self._flush()
            state = self._queue.read()
            first = self._queue.sequence_of(to, state=state)
            if first < state.first_sequence:
                raise trimmed(first, state.first_sequence)
            with self._moving:
                self._cursor = first - 1
                self._first_handed_out = None
                self._lost = None
                self._frontier = None
                self._gaps.clear()

    @shows_unopened
    def __repr__(self) -> str:
        state = "closed" if self._closed else f"epoch {self.epoch}"
        return f"<Consumer of {self.url}, {state}, acknowledged through {self._frontier}>"

    # Inside

    @property
    def _attributes(self) -> dict[str, str]:
        return {"buffer": self._store.url}

    def _look(self, max_batches: int) -> tuple[_Place | None, list[BatchDescriptor]]:
        """The batches after the cursor, and their place in the manifest; None if there are none."""
        for _ in range(MAX_SKIPS):
            self._check_open()
            cursor = self._cursor
            try:
                found = self._patience.call(partial(self._side.look, self._claim, cursor, max_batches))
            except Trimmed as error:
                if not self._skips:
                    raise
                self._skip(cursor, error.first)
            else:
                # guard: report the number of waiting batches
                metrics.queue_length.set(self._side.waiting(), self._attributes)
                return (_Place(cursor, found[0].sequence, found[-1].sequence) if found else None), found
        raise self._outpaced()

    def _look_beyond(self, after: int, max_batches: int) -> list[BatchDescriptor]:
        """The batches after `after`. Those up to `after` were found but not handed out; none if they were trimmed.

        The next look from the cursor then deals with the trimmed ones.
        """
        try:
            return self._side.look(self._claim, after, max_batches)
        except Trimmed:
            return []

    def _skip(self, cursor: int | None, first: int) -> None:
        """Go on at the first batch left, and count what was missed once."""
        last = self._side.acked() if cursor is None else cursor
        missing = 0 if last is None else last + 1
        with self._moving:
            if self._cursor != cursor:
                return
            # The cursor last: after an interrupt before it, the same gap is found again.
            self._gaps[missing] = first
            self.skipped += first - missing
            self._cursor = first - 1
        _log.warning("%s: %d batches were trimmed unread; going on at %d", self.url, first - missing, first)

    def _outpaced(self) -> Timeout:
        return Timeout(
            f"{self.url}: {MAX_SKIPS} times in a row, retention dropped the next batch before it could be read. Read "
            "again, and retain batches for longer than it takes to read them"
        )

    def _peek(self) -> tuple[_Place | None, Batch | None]:
        place, found = self._look(1)
        for _ in range(MAX_SKIPS):  # guard: move the cursor only after the fetch
            if not found:
                return None, None
            try:
                return place, self.fetch_descriptor(found[0])
            except NotFound as error:
                if error.bucket:
                    raise
                # Swept since the look? Then another took over, or retention dropped it, and a second look says so.
                missing, (place, found) = found[0], self._look(1)
                if found and found[0] == missing:
                    raise
        raise self._outpaced()

    def _take(self, place: _Place | None, _batch: Batch) -> bool:
        return place is not None and self._hand_out(place)

    def _put_back(self, place: _Place | None, _batch: Batch) -> None:
        if place is not None:
            self._undo(place)

    def _hand_out(self, place: _Place) -> bool:
        """Move the cursor over what was found after it, unless another thread has moved it since."""
        with self._moving:
            if self._cursor != place.cursor:  # guard: hand a batch out once across threads
                return False
            place.moved = True
            if self._first_handed_out is None:
                self._first_handed_out = place.first
            self._cursor = place.last
        metrics.descriptors_handed_out.add(place.last - place.first + 1, self._attributes)
        return True

    def _undo(self, place: _Place) -> None:
        """Move the cursor back over batches that an interrupt kept from being returned."""
        with self._moving:
            if not place.moved:
                return
            place.moved = False
            if self._cursor in (place.cursor, place.last):
                self._cursor = place.cursor
                if self._first_handed_out == place.first:
                    self._first_handed_out = None
            elif self._lost is None or self._lost > place.first:
                # Another thread has read further. No acknowledgement may pass a batch that no caller got.
                self._lost = place.first

    def _hand_out_through(self, first: int, last: int) -> None:
        """Move the cursor over batches that were found, unless it is beyond them. Repeating it does nothing."""
        with self._moving:
            if self._first_handed_out is None:
                self._first_handed_out = first
            if self._cursor is None or self._cursor < last:
                self._cursor = last
                metrics.descriptors_handed_out.add(last - first + 1, self._attributes)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.url}: this consumer was closed; open a new one")

    def _check_handed_out(self, sequence: int) -> int:
        """Return the first sequence that was handed out, if this one was too."""
        self._check_open()
        first, cursor = self._first_handed_out, self._cursor
        # guard: acknowledge only what was handed out
        if first is None or cursor is None or not first <= sequence <= cursor:
            raise InvalidInput(f"{self.url}: batch {sequence} was never handed out, so it cannot be acknowledged")
        if self._lost is not None and sequence >= self._lost:  # guard: refuse acks past a batch lost to an interrupt
            raise InvalidInput(
                f"{self.url}: batch {sequence} cannot be acknowledged, because the call that read batch {self._lost} "
                "was interrupted while another thread read on: open a new consumer, which reads it again"
            )
        return first

    def _write_acks(self, through: int) -> None:
        self._side.ack(self._claim, through)
        self._unwritten_acks = 0

    def _flush(self) -> None:
        if self._unwritten_acks and self._frontier is not None:
            self._write_acks(self._frontier)

    def _wait(self, seconds: float) -> bool:
        """Wait, and return whether the consumer is still open."""
        deadline = self._clock.monotonic() + seconds
        with self._closing:
            while not self._closed and self._clock.wait_until(self._closing, deadline):
                pass
            return not self._closed

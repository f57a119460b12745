"""The read side of a buffer: one owner at a time, read-ahead for many workers, acknowledgement in order (rfcs/0004)."""

from __future__ import annotations

import logging
import math
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

from forebay.buffer.base import metrics
from forebay.buffer.base.checks import check_seconds, check_whole
from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.errors import Fenced, InvalidInput, NotFound, Trimmed
from forebay.buffer.base.lifecycle import shows_unopened
from forebay.buffer.base.process import this_process
from forebay.buffer.base.waiting import POLL_FLOOR
from forebay.buffer.groups import GroupReader
from forebay.buffer.manifest import Queue, UnnamedReader
from forebay.buffer.manifest.head import trimmed
from forebay.buffer.manifest.topic import is_partition
from forebay.buffer.read.acks import ACK_SECONDS, Acks
from forebay.buffer.read.fetch import Batch, FetchHandle
from forebay.buffer.read.iteration import MAX_SKIPS, RUN, BaseConsumer, count_race
from forebay.buffer.read.position import Found, ReadPosition
from forebay.buffer.read.values import Collect, Lag
from forebay.buffer.store import StoreUrl, open_store
from forebay.buffer.store.retry import RETRY_SECONDS, Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from datetime import datetime
    from typing import Any, Literal

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.format.model import BatchDescriptor, Reader
    from forebay.buffer.groups import CursorState
    from forebay.buffer.manifest import Profile
    from forebay.buffer.read.ahead import ReadAhead
    from forebay.buffer.read.side import ReadSide
    from forebay.buffer.read.typed import Columns
    from forebay.gc import Collector

__all__ = ["Collect", "Consumer", "Lag"]

_log = logging.getLogger("forebay.consumer")


class Consumer(BaseConsumer[Found, Batch]):
    """Reads a buffer's batches in order. Opening one takes over from the previous consumer, which gets `Fenced`.

    It may be opened before anything is written. Then it logs a warning, as the URL may be wrong. The first producer
    decides the buffer's format, unless `group` is given: a group needs a native buffer, and creates one.

    Args:
        url: the buffer, such as `s3://lake/clicks`, or its store if it is open already.
        last_acked: resume after this sequence: everything up to it counts as acknowledged. It may be higher than any
            existing sequence. Before the first write it is not stored, so pass it again. None starts after the last
            acknowledged batch.
        group: a named reader, whose position is independent of other groups. None is the unnamed consumer.
        from_: where a group starts that does not exist yet: `earliest` (the default), `latest`, a sequence, or a time
            (a datetime with a zone, or ISO 8601 text).
        columns: for a typed buffer: names of the columns to decode, or a schema in which to return rows; None is all
            columns of the newest schema.
        on_trimmed: what to do if retention has dropped the next batch: `raise` raises `Trimmed`, and `skip` continues
            with the first batch that is left, and counts the missed ones in `skipped`.
        profile: `opendata` refuses to make a native buffer, which a group would need.
        manifest_path: the manifest's key below `url`.
        data_prefix: the folder below `url` that batches are stored in, which only a collector has to know.
        collect: whether to run a collector beside this consumer, until it is closed. `Collect` has its settings.
        storage_options: credentials, endpoint and client of the store.
        retry_timeout: maximum time in seconds for which a read is retried while the store fails; 0 for none. After an
            error, the next call reads the same batch again.
        max_poll_interval: maximum time in seconds between two reads of the manifest while there is nothing to read.
        check_claim: called with the group's state before this consumer takes over, and may refuse by raising an error.
            A runtime uses it to take over only from an owner that has stopped or died (rfcs/0005).
        read_ahead: how far iteration fetches ahead of the program; None for the defaults of `ReadAhead`, and
            `ReadAhead(batches=0)` to turn it off.
        ack_interval: maximum time in seconds until an `ack` is written in the background.

    Safe to use from several threads. Iteration fetches in parallel. To work in parallel too, let one thread call
    `next_descriptors` and `ack_through`, and give `fetch_handle()` to the workers.
    """

    def __init__(
        self,
        url: StoreUrl,
        *,
        last_acked: int | None = None,
        group: str | None = None,
        from_: str | int | datetime | None = None,
        columns: Columns | None = None,
        on_trimmed: Literal["raise", "skip"] = "raise",
        profile: Profile = "native",
        manifest_path: str = "manifest",
        data_prefix: str = "data",
        collect: bool | Collect = False,
        storage_options: Mapping[str, Any] | None = None,
        retry_timeout: float = RETRY_SECONDS,
        max_poll_interval: float = 2.0,
        check_claim: Callable[[CursorState], None] | None = None,
        read_ahead: ReadAhead | None = None,
        ack_interval: float = ACK_SECONDS,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        last_acked = None if last_acked is None else check_whole(last_acked, "last_acked")
        check_seconds(max_poll_interval, "max_poll_interval", least=POLL_FLOOR)
        check_seconds(ack_interval, "ack_interval")
        if not isinstance(collect, bool | Collect):
            raise InvalidInput(f"collect must be True, False or Collect(interval=…, grace=…), not {collect!r}")
        if on_trimmed not in ("raise", "skip"):
            raise InvalidInput(f"on_trimmed must be 'raise' or 'skip', not {on_trimmed!r}")
        if from_ is not None and group is None:
            raise InvalidInput(
                "from_ needs a group, since it says where a new one starts: name the group, or use seek()"
            )
        self._store = open_store(url, storage_options)
        super().__init__(
            self._store.url, max_poll_interval=max_poll_interval, read_ahead=read_ahead, clock=clock or SystemClock()
        )
        self._queue = Queue(self._store, manifest_path, profile=profile, role="consumer", clock=clock, random=random)
        self._side: ReadSide = UnnamedReader(self._queue)
        if group is not None:
            start = "earliest" if from_ is None else from_
            self._side = GroupReader(
                self._queue, group, start=start, check_claim=check_claim, clock=clock, random=random
            )
        self._skips = on_trimmed == "skip"
        self._fetcher = FetchHandle(self._store, columns=columns, retry_timeout=retry_timeout, clock=self._clock)
        self._patience = Patience(self._clock, random or system_random(), retry_timeout)
        self._attributes = {"buffer": self.url}
        self._acking = Lock()
        self._claim = self._side.claim(this_process(self._clock))
        acked = self._side.acked()
        if last_acked is not None and (acked is None or acked < last_acked):
            self._side.ack(self._claim, last_acked)
            acked = last_acked
        self._position = ReadPosition(self.url, None if last_acked is None else acked)
        self._looked_at = -math.inf
        self._acks = Acks(self.url, self._side, self._claim, self._position, interval=ack_interval, clock=self._clock)
        if self.unwritten or (self.end == 0 and not is_partition(self.url)):
            _log.warning("nothing was ever written to %s. Is the URL right?", self.url)
        self._collector: Collector | None = None
        if collect:
            settings = collect if isinstance(collect, Collect) else Collect()
            self._collector = self._make_collector(data_prefix, settings.grace, random).start(settings.interval)

    def _make_collector(self, data_prefix: str, grace: float, random: Random | None) -> Collector:
        from forebay.gc import Collector  # noqa: PLC0415 - it stands on this layer, and only some consumers need it

        path = self._queue.manifest_path
        return Collector(
            self._store, grace=grace, manifest_path=path, data_prefix=data_prefix, clock=self._clock, random=random
        )

    # Reading

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
        self._stop_ahead()
        races = 0
        while True:
            found = self.look(max_batches)
            if not found.descriptors:
                return []
            try:
                if self._position.hand_out(found):
                    return found.descriptors
            except BaseException:
                self._position.undo(found)
                raise
            races = count_race(races)

    def fetch_handle(self) -> FetchHandle:
        """Return what fetches descriptors in workers: threads, processes or other machines."""
        return self._fetcher

    def fetch_descriptor(self, descriptor: BatchDescriptor) -> Batch:
        """Return the batch that the descriptor names, and note how old its newest entry is."""
        batch = self._fetcher.fetch(descriptor)
        self.note_age(batch)
        return batch

    def note_age(self, batch: Batch) -> None:
        """Report how old the newest entry of a batch is that was fetched."""
        if batch.metadata:
            age = (self._clock.now_ms() - batch.metadata[-1].ingestion_time_ms) / 1000
            metrics.consumer_lag.set(max(0.0, age), self._attributes)  # guard: report the age of what was read

    def check_missing(self, descriptor: BatchDescriptor, error: NotFound) -> None:
        """Return if a batch that was handed out here, and is missing, is still this consumer's to deal with.

        Raises:
            NotFound: `error`, as the bucket is missing.
            Fenced: another consumer has taken over; once it had acknowledged the batch, the collector could delete it.
            Trimmed: retention dropped it, and `on_trimmed` is not `skip`.
        """
        if error.bucket:
            raise error
        try:
            self._side.look(self._claim, descriptor.sequence - 1, 1)
        except Trimmed:
            if not self._skips:
                raise

    # The steps of reading, for who hands out the batches of several consumers in turn, as `TopicConsumer` does

    def look(self, max_batches: int) -> Found:
        """Find up to `max_batches` batches after this consumer's position, and hand none of them out.

        Raises:
            Fenced: another consumer has taken over.
            Trimmed: retention dropped the first of them, and `on_trimmed` is not `skip`.
        """
        for _ in range(MAX_SKIPS):
            self._check_open()
            after = self._position.last
            try:
                found = self._patience.call(partial(self._look_at, after, max_batches))
            except Trimmed as error:
                if not self._skips:
                    raise
                acked = self._side.acked() if after is None else after
                self._position.skip(after, 0 if acked is None else acked + 1, error.first)
            else:
                # guard: report the number of waiting batches
                metrics.queue_length.set(self._side.waiting(), self._attributes)
                return Found(after, found)
        raise self._outpaced()

    def look_beyond(self, after: int, max_batches: int) -> list[BatchDescriptor]:
        """Find batches after `after`, up to which they were found but not handed out. Empty if those were trimmed.

        The next `look` then deals with the trimmed ones.
        """
        self._check_open()
        after = max(after, -1 if self._position.last is None else self._position.last)
        try:
            return self._patience.call(partial(self._look_at, after, max_batches))
        except Trimmed:
            return []

    def _look_at(self, after: int | None, limit: int) -> list[BatchDescriptor]:
        began = self._clock.monotonic()
        try:
            found = self._side.look(self._claim, after, limit)
        except Trimmed:
            self._looked_at = began  # it was asked first whether this consumer was fenced
            raise
        self._looked_at = began
        return found

    @property
    def looked_at(self) -> float:
        """When the last look at the manifest or cursor began, or write to it, by the monotonic clock."""
        return max(self._looked_at, self._acks.written_at)

    @property
    def fence(self) -> Fenced | None:
        """The error of a write in the background that found another consumer in place of this one."""
        return self._acks.fenced

    def has_handed_out(self, sequence: int) -> bool:
        """Whether the position is at or beyond a sequence."""
        return self._position.last is not None and sequence <= self._position.last

    def look_again(self, missing: BatchDescriptor, error: NotFound) -> Found:
        """Return what a second look finds in place of the next batch, if its object is missing.

        Raises:
            NotFound: `error`, as the batch should be there, or the bucket is missing.
            Fenced: another consumer has taken over.
            Trimmed: retention dropped the batch, and `on_trimmed` is not `skip`.
        """
        if error.bucket:
            raise error
        found = self.look(1)
        if found.descriptors and found.descriptors[0] == missing:
            raise error
        return found

    def hand_out_through(self, first: int, last: int) -> None:
        """Move the position over the batches from `first` to `last`, which were found. Repeating it does nothing."""
        self._position.hand_out_through(first, last)

    # Acknowledging

    def ack(self, sequence: int) -> None:
        """Acknowledge the next batch in order. It is recorded here, and soon written for many batches at once.

        Every hundredth call writes. What is not written after `ack_interval` is written in the background, and `flush`
        and `close` write the rest. If a write in the background fails, it is tried again, and nothing is lost. If it
        finds that another consumer has taken over, the next call of this consumer raises `Fenced`.

        Raises:
            InvalidInput: it is not the next one, or was never handed out.
            Fenced: another consumer has taken over. Up to 99 acknowledgements before this one were not written.
        """
        sequence = check_whole(sequence, "sequence")
        self._check_open()
        with self._acking:
            self._check_open()
            self._acks.ack(sequence)

    def ack_through(self, sequence: int) -> None:
        """Acknowledge every batch up to and including `sequence`, durably before this returns.

        Raises:
            InvalidInput: it was acknowledged before, or was never handed out.
            Fenced: another consumer has taken over, and nothing was changed.
        """
        sequence = check_whole(sequence, "sequence")
        self._check_open()
        with self._acking:
            self._check_open()
            self._acks.ack_through(sequence)

    def plan(self, ends: Collection[int]) -> None:
        """Record durably where ranges end that are about to be worked on as one, until they are acknowledged.

        The consumer that takes over finds them in `planned`, and can repeat the same ranges (rfcs/0007).

        Raises:
            InvalidInput: the last of them was never handed out.
            Unsupported: this is the unnamed consumer; only groups have a place for it.
            Fenced: another consumer has taken over, and nothing was changed.
        """
        self._check_open()
        with self._acking:
            self._check_open()
            self._acks.plan(ends)

    def flush(self) -> None:
        """Write acknowledgements that are not in the manifest yet."""
        self._check_open()
        with self._acking:
            self._check_open()
            self._acks.flush()

    def check_owned(self) -> None:
        """Raise `Fenced` if another consumer has taken over the group."""
        if isinstance(self._side, GroupReader):
            self._side.check(self._claim)

    def show_alive(self, interval: float) -> float | None:
        """Write the group's cursor if that was not done for `interval` seconds, so that standbys see this consumer.

        Returns when to call it again, by the monotonic clock; None if there is no need: it is closed, or has no group.

        Raises:
            Fenced: another consumer has taken over, and nothing was changed.
        """
        with self._acking:
            if self._closed or not isinstance(self._side, GroupReader):
                return None
            # guard: no heartbeat while acknowledgements move the number
            if self._clock.monotonic() >= self._side.written_at + interval:
                self._side.renew(self._claim)
            return self._side.written_at + interval

    def close(self) -> None:
        """Write pending acknowledgements and let go. Closing again does nothing; a fence or failure is raised once."""
        if self.inherited:
            return
        with self._acking:
            if not self._start_closing():
                return
            try:  # guard: stop the collector even if the last write fails
                self._acks.flush()
                self._side.release(self._claim)
            finally:
                self._acks.stop()
                if self._collector is not None:
                    self._collector.stop()

    # Looking

    def __len__(self) -> int:
        """How many batches were not acknowledged when the manifest was last read or written here."""
        return self._side.waiting()

    @property
    def skipped(self) -> int:
        """Number of batches that were trimmed before they could be read, with `on_trimmed="skip"`."""
        return self._position.skipped

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
        known = [acked for acked in (self._acks.frontier, self._side.acked()) if acked is not None]
        frontier = max(known, default=None)
        first = max(state.first_sequence, 0 if frontier is None else frontier + 1)
        oldest = self._queue.descriptors(first, 1, state=state)
        if not oldest:
            return Lag(0, 0.0)
        now_ms, taken_in = self._clock.now_ms(), oldest[0].first_time_ms
        return Lag(state.next_sequence - first, 0.0 if taken_in is None else max(0.0, (now_ms - taken_in) / 1000))

    def seek(self, to: int | str | datetime) -> None:
        """Read on from a sequence, a time, `earliest` or `latest`. What is acknowledged stays so.

        What was fetched ahead is discarded. Acknowledging after a jump forward acknowledges what was jumped over.

        Raises:
            Trimmed: it is gone.
            Unsupported: a time, in a buffer of version 1, which knows none.
        """
        self._check_open()
        with self._acking:
            self._check_open()
            self._acks.flush()
            state = self._queue.read()
            first = self._queue.sequence_of(to, state=state)
            if first < state.first_sequence:
                raise trimmed(first, state.first_sequence)
            self._stop_ahead()
            self._position.seek(first)
            self._acks.forget()

    @shows_unopened
    def __repr__(self) -> str:
        state = "closed" if self._closed else f"epoch {self.epoch}"
        return f"<Consumer of {self.url}, {state}, acknowledged through {self._acks.frontier}>"

    # Inside

    def _peek(self) -> tuple[Found, Batch] | None:
        found = self.look(1)
        for _ in range(MAX_SKIPS):  # guard: move the position only after the fetch
            if not found.descriptors:
                return None
            try:
                return found, self.fetch_descriptor(found.descriptors[0])
            except NotFound as error:
                found = self.look_again(found.descriptors[0], error)
        raise self._outpaced()

    def _take(self, place: Found) -> bool:
        if not self._position.hand_out(place):
            return False
        if self._found and self._found[0] is place:
            self._found.popleft()
        return True

    def _put_back(self, place: Found) -> None:
        self._position.undo(place)

    def _look_ahead(self) -> None:
        if not self._found:
            found = self.look(RUN)
            after, listed, wanted = found.after, found.descriptors, RUN
        else:
            # As many as there is room for, which may be none.
            after, wanted = self._found[-1].descriptors[0].sequence, max(0, RUN - len(self._found))
            listed = self.look_beyond(after, wanted)
            if listed and listed[0].sequence != after + 1:
                return  # another thread has jumped, so the next call discards what is listed here
        for descriptor in listed:
            self._found.append(Found(after, [descriptor]))
            after = descriptor.sequence
        self._has_more = len(listed) == wanted

    def _follows(self, place: Found) -> bool:
        return place.after == self._position.last

    def _last_look(self, place: Found) -> float:  # noqa: ARG002 - a topic has several
        return self.looked_at

    def _to_fetch(self, place: Found) -> tuple[FetchHandle, BatchDescriptor]:
        return self._fetcher, place.descriptors[0]

    def _arrived(self, place: Found, batch: Batch) -> Batch:  # noqa: ARG002 - as a topic's
        self.note_age(batch)
        return batch

    def _look_for_missing(self, place: Found, error: NotFound) -> None:
        self.look_again(place.descriptors[0], error)

    def _check_open(self) -> None:
        super()._check_open()
        if self.fence is not None:
            raise Fenced(*self.fence.args)

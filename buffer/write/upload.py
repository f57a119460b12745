"""Storing a producer's batches: encode and upload in parallel, then list them in the manifest in order (rfcs/0004)."""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass, replace
from threading import Semaphore
from typing import TYPE_CHECKING, TypeAlias

from msgspec import structs

from forebay.buffer.base import metrics, names
from forebay.buffer.base.errors import Closed, ForebayError, InvalidInput, Unavailable, Unknown
from forebay.buffer.coordinator import DeltaRejected
from forebay.buffer.format.batch import DEFAULT_LEVEL, DEFAULT_MAX_RAW_BYTES
from forebay.buffer.format.checksum import crc32c
from forebay.buffer.format.model import Facts, NewBatch
from forebay.buffer.manifest import BelowFloor, PlaceConsumed
from forebay.buffer.store.base import Applied, NotApplied
from forebay.buffer.store.retry import RETRY_SECONDS, Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.coordinator import Stamped
    from forebay.buffer.format.batch import Compression, Version
    from forebay.buffer.manifest import Queue
    from forebay.buffer.store.base import Data, ObjectStore
    from forebay.buffer.write.accumulator import FilledBatch
    from forebay.buffer.write.rows import FilledRows

_log = logging.getLogger("forebay.producer")

Filled: TypeAlias = "FilledBatch | FilledRows"
"""The content of one batch object, before it is encoded."""

_MOST_REPEATS = 5
_MOST_UPLOADS = 10
"""Maximum number of uploads of one batch, each under a new name because the collector's floor passed the last one."""
_MOST_ROOM_MS = 24 * 3600 * 1000


def floor_of(queue: Queue) -> str:
    """Return the lowest name that the manifest, as last seen, would list."""
    state = queue.last_seen()
    return names.LOWEST if state is None else state.lowest_new_name


@dataclass(slots=True)
class Uploaded:
    """A batch object in the store that the manifest does not list yet."""

    batch: NewBatch
    version: Version
    """The format it is stored in."""
    number: int | None
    """Of its last call, where the caller numbers them."""
    data: Data
    """Kept until the batch is listed, as it may have to be stored again; then empty, since views keep the receipt."""
    at: float
    """When the upload began, by the monotonic clock."""
    at_ms: int
    """The same by the wall clock, which goes on while a machine sleeps."""
    gap: ForebayError | None = None
    """Why a numbered call after this batch was left out; then nothing may be listed after it."""


class BatchStorage:
    """Encodes batches and stores them under new names, from any number of threads. Listing them is up to the caller."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        data_prefix: str = "data",
        compression: Compression = "zstd",
        compression_level: int = DEFAULT_LEVEL,
        retry_timeout: float = RETRY_SECONDS,
        clock: Clock,
        random: Random,
    ) -> None:
        self._store = store
        self._retry_timeout = retry_timeout
        self._patience = Patience(clock, random, retry_timeout)
        self._give_up_at = math.inf
        self._lead_ms = 0
        self._data_prefix = data_prefix
        self._compression = compression
        self._compression_level = compression_level
        self._clock = clock
        self._random = random
        self._attributes = {"buffer": store.url}
        # More at once than there are processors would take memory, and be no faster.
        self._encoding = Semaphore(os.cpu_count() or 1)

    def begin_close(self) -> None:
        """Limit all uploads together, including queued ones, to the time that one may take: a caller waits for them."""
        self._give_up_at = min(self._give_up_at, self._clock.monotonic() + self._retry_timeout)

    def prepare(self, filled: Filled) -> None:
        """Do what has to be done before it is known whether a batch has anything to store.

        Raises:
            InvalidInput: nothing of it can be stored.
        """
        with self._encoding:
            filled.prepare()

    def put(
        self, filled: Filled, *, above: str = names.LOWEST, encoded: Callable[[int], None] = lambda _: None
    ) -> Uploaded:
        """Store a prepared batch under a name above a floor. Its entries are taken out of `filled` on the way.

        `encoded` is called with the size of the object and its metadata once they are all that is in memory.

        Raises:
            Unavailable: the store did not take it in time. Whatever is there, no manifest lists it or ever will.
        """
        if filled.raw_bytes > DEFAULT_MAX_RAW_BYTES:  # guard: never store a batch that readers would refuse
            raise InvalidInput(
                f"a batch of {filled.raw_bytes} bytes is larger than any reader takes: at most {DEFAULT_MAX_RAW_BYTES}"
            )
        began = self._clock.monotonic()
        with self._encoding:
            data = filled.encode(self._compression, self._compression_level)
        encoded(len(data) + filled.metadata_bytes)
        times = [item.ingestion_time_ms for item in filled.metadata]
        facts = Facts(len(data), filled.raw_bytes, filled.count, crc32c(data), min(times), max(times))
        location, at, at_ms = self._put(data, above, filled.ending)
        metrics.flush_duration.record(self._clock.monotonic() - began, self._attributes)
        metrics.batches_flushed.add(1, self._attributes)
        metrics.entries_flushed.add(filled.count, self._attributes)
        metrics.bytes_flushed.add(filled.raw_bytes, self._attributes)
        batch = NewBatch(location, tuple(filled.metadata), facts, filled.schema)
        return Uploaded(batch, filled.version, filled.number, data, at, at_ms, filled.gap)

    def put_again(self, uploaded: Uploaded, *, above: str = names.LOWEST) -> Uploaded:
        """Store a batch once more, under another name; the data goes over to what is returned."""
        _, dot, ending = uploaded.batch.location.rpartition(".")
        location, at, at_ms = self._put(uploaded.data, above, dot + ending)
        again = replace(uploaded, batch=structs.replace(uploaded.batch, location=location), at=at, at_ms=at_ms)
        uploaded.data = b""
        return again

    def append(self, batches: Sequence[Uploaded], append: Callable[[Sequence[Uploaded]], object]) -> Sequence[Uploaded]:
        """Append batches by `append`, and upload those again whose names the collector's floor has passed.

        Returns what was appended.

        Raises:
            Unavailable: the floor passed every name, or the batches could not be uploaded again. Nothing was appended.
        """
        for upload in range(1, _MOST_UPLOADS + 1):
            try:
                append(batches)
            except BelowFloor as error:
                seconds = max(self.age(uploaded) for uploaded in batches)
                if upload == _MOST_UPLOADS:
                    raise Unavailable(
                        f"{self._store.url}: the collector's floor passed the names of {upload} uploads of a batch, "
                        f"the last of which took {seconds:.1f} s: nothing of this batch was stored; raise the "
                        "collector's grace, then produce it again"
                    ) from error
                self._note_passed(error.floor, seconds, upload, len(batches))
                # guard: upload again above the floor
                batches = [self.put_again(uploaded, above=error.floor) for uploaded in batches]
            else:
                return batches
        raise AssertionError("unreachable")

    def age(self, uploaded: Uploaded) -> float:
        """Seconds since the upload began, by the wall clock or the monotonic clock, whichever shows more."""
        return max(self._clock.monotonic() - uploaded.at, (self._clock.now_ms() - uploaded.at_ms) / 1000)

    def _note_passed(self, floor: str, seconds: float, upload: int, batches: int) -> None:
        """Name later uploads far enough ahead of the clock that the floor does not pass them again."""
        behind_ms = max(0, names.time_ms(floor) - self._clock.now_ms())
        # Room for an upload that takes twice as long as this one, and for twice as much again after each failure.
        room_ms = min(int(1000 * seconds * 2**upload), _MOST_ROOM_MS)
        self._lead_ms = max(self._lead_ms, behind_ms + room_ms)
        _log.warning(
            "%s: %d batches are uploaded again: the collector's floor passed their names within %.1f s of their "
            "upload. If uploads take that long, set the collector's grace to more than that; if not, this machine's "
            "clock is behind: set it",
            self._store.url,
            batches,
            seconds,
        )

    def _put(self, data: Data, above: str, ending: str) -> tuple[str, float, int]:
        """Store an object, and return its name and the times `at` and `at_ms` of `Uploaded`."""
        at, at_ms = self._clock.monotonic(), self._clock.now_ms()
        if self._lead_ms:  # guard: name uploads ahead of time after the floor passed one
            above = max(above, names.at_time(at_ms + self._lead_ms))
        location = f"{self._data_prefix}/{names.mint(self._clock, self._random, above=above)}{ending}"
        try:
            # guard: retry uploads while the store is unavailable
            self._patience.call(lambda: self._store.put(location, data), latest=lambda: self._give_up_at)
        except (Unavailable, Unknown) as error:
            # guard: a failed upload means not stored
            raise Unavailable(
                f"{self._store.url}/{location}: the upload failed, and was retried for "
                f"{self._clock.monotonic() - at:.0f} s ({error}): nothing of this batch was stored; produce it again"
            ) from error
        metrics.bytes_written.add(len(data), self._attributes)
        return location, at, at_ms


class BatchUploader:
    """The coordinator's flusher of a producer.

    *Written* is the object in the store; *durable* is the manifest that lists it. A batch that cannot be stored or
    listed fails its own calls and no others.

    If the process dies: before the upload, nothing is there; between upload and append, an object that nobody lists,
    which the collector sweeps; after the append, all is done. If an answer is lost: an upload is repeated under its own
    name; an append is looked for in the manifest (`Queue.append`).
    """

    def __init__(
        self,
        queue: Queue,
        storage: BatchStorage,
        *,
        grace: float,
        numbered: bool,
        schemas: tuple[str, ...] = (),
        clock: Clock,
    ) -> None:
        """Upload by `storage` and list in `queue`.

        Args:
            queue: the buffer's manifest.
            storage: stores the batches.
            grace: the collector's grace period in seconds, which version 1 needs to know.
            numbered: whether the calls are those of a lasting writer.
            schemas: ids of all versions up to the one that rows are stored in; empty for bytes.
            clock: measures how long uploads take.
        """
        self._store = queue.store
        self._queue = queue
        self._storage = storage
        self._grace = grace
        self._numbered = numbered
        self._schemas = schemas
        self._clock = clock
        self._attributes = {"buffer": self._store.url}
        self._gap: ForebayError | None = None

    def flush_delta(self, filled: Filled, _epochs: range, shrink: Callable[[int], None]) -> Uploaded | None:
        """Encode and upload one batch; None if no call is left: all are repeats of what is durable, or do not fit."""
        if filled.count == 0:
            return None
        try:
            self._storage.prepare(filled)
            if filled.count == 0:
                self._gap = self._gap or filled.gap
                return None
            # guard: name uploads above the last seen floor
            return self._storage.put(filled, above=floor_of(self._queue), encoded=shrink)
        except ForebayError as error:
            self._gap = error
            raise DeltaRejected(error) from error
        except MemoryError as error:  # guard: a MemoryError fails only its own batch
            short = Unavailable(f"memory ran short while this batch was made ({error}): produce its entries again")
            self._gap = short
            raise DeltaRejected(short) from error

    def flush_storage(self, written: Sequence[Stamped[Uploaded | None]]) -> Mapping[range, Exception]:
        """List every batch written so far in one append, in order."""
        written, after_gap = _split_at_gap(written)
        batches = [stamped.value for stamped in written if stamped.value is not None]
        if not batches:
            return {}
        began = self._clock.monotonic()
        try:
            self._check_no_gap()
            self._append(batches)
            self._gap = self._gap or batches[-1].gap
        except ForebayError as error:
            self._gap = error
            return {stamped.epochs: error for stamped in (*written, *after_gap)}
        finally:
            for batch in batches:
                batch.data = b""
        metrics.commit_duration.record(self._clock.monotonic() - began, self._attributes)
        try:
            self._check_no_gap()
        except Closed as error:
            return {stamped.epochs: error for stamped in after_gap}
        return {}

    def _check_no_gap(self) -> None:
        # A later number in the manifest says that everything before it is durable.
        if self._numbered and self._gap is not None:  # guard: list no numbered call after a gap
            raise Closed(
                f"{self._store.url}: an earlier call could not be stored, so none after it may be listed: open a new "
                f"producer and repeat from that call on ({self._gap})"
            )

    def _append(self, batches: Sequence[Uploaded]) -> None:
        try:
            batches = self._append_above_floor(batches)
        except PlaceConsumed as doubt:
            batches = self._append_again(batches, doubt)
        if self._queue.last_head() is None:  # version 1 has no floor
            for uploaded in batches:
                self._put_back_if_overtaken(uploaded)

    def _append_again(self, batches: Sequence[Uploaded], doubt: Unknown) -> Sequence[Uploaded]:
        """Append batches again if forebay cannot find out whether they were appended.

        Being read twice is the lesser evil; and under new names, since by the old ones a reader could meet an object
        that was swept. Whatever goes wrong here, they may be there already.
        """
        for _ in range(_MOST_REPEATS):
            _log.warning("%s; %d batches are appended again and may be read twice", doubt, len(batches))
            metrics.appends_repeated.add(len(batches), self._attributes)
            try:
                batches = [self._storage.put_again(uploaded) for uploaded in batches]
                return self._append_above_floor(batches)
            except PlaceConsumed as error:
                doubt = error
            except ForebayError as failure:
                # guard: an append in doubt that cannot be repeated is unknown
                raise Unknown(
                    f"{doubt}; appending it again failed: {failure}. Read before you produce it again"
                ) from failure
        raise doubt

    def _append_above_floor(self, batches: Sequence[Uploaded]) -> Sequence[Uploaded]:
        """Append, and return what was appended: under new names if the collector has passed the old ones by."""

        def append(batches: Sequence[Uploaded]) -> None:
            newest = max(uploaded.version for uploaded in batches)
            self._queue.append(
                [uploaded.batch for uploaded in batches],
                number=batches[-1].number,
                version=newest,
                schemas=self._schemas,
            )

        return self._storage.append(batches, append)

    def _put_back_if_overtaken(self, uploaded: Uploaded) -> None:
        """Store an object again that a version 1 collector may have swept because its listing took so long."""
        age = self._storage.age(uploaded)
        if age <= self._grace / 2:  # guard: verify a batch that was slow to be listed
            return
        where = f"{self._store.url}/{uploaded.batch.location}"
        trouble = ""
        for _ in range(_MOST_REPEATS):
            try:
                outcome = self._store.create(uploaded.batch.location, uploaded.data)
            except ForebayError as error:  # guard: a listed batch that cannot be verified is unknown
                trouble = str(error)  # it is listed, so this is no failure of its calls
                continue
            if isinstance(outcome, Applied):
                _log.warning("%s was swept before it was listed; stored again", where)
                return
            if isinstance(outcome, NotApplied) and outcome.condition_failed:
                return  # it is still there
            trouble = outcome.reason
        raise Unknown(
            f"{where} is listed, but was listed {age:.0f} s after its upload and may have been swept before; storing "
            f"it again failed: {trouble}"
            ". Run `forebay verify`, and produce it again if it is missing"
        )


def _split_at_gap(
    written: Sequence[Stamped[Uploaded | None]],
) -> tuple[Sequence[Stamped[Uploaded | None]], Sequence[Stamped[Uploaded | None]]]:
    """What may be listed, up to the first batch that ends with a gap, and what comes after it."""
    for at, stamped in enumerate(written):
        if stamped.value is not None and stamped.value.gap is not None:
            return written[: at + 1], written[at + 1 :]
    return written, ()

"""Fetches, decodes and commits the portions of all sources, and moves their frontiers (rfcs/0007)."""

from __future__ import annotations

import logging
from threading import Condition, RLock
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from forebay.buffer.base import metrics
from forebay.buffer.base.backoff import full_jitter
from forebay.buffer.base.errors import (
    Corrupt,
    Fenced,
    InvalidInput,
    NotFound,
    Timeout,
    Unavailable,
    Unknown,
    Unsupported,
)
from forebay.buffer.base.tracing import configured_tracer
from forebay.runtime import dead_letter
from forebay.runtime.bad_entries import describe_entries
from forebay.runtime.contract import Fatal, MaybeCommitted, NotCommitted
from forebay.runtime.dead_letter import Halted
from forebay.runtime.stages import spans
from forebay.runtime.stages.admission import Admission, held_bytes
from forebay.runtime.stages.isolation import NOT_THE_DATA, describe, isolate
from forebay.runtime.stages.sink_answers import Raised, check_committed, commit
from forebay.runtime.stages.worker_pool import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.eventlog import AuditTrail
    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.producer import Producer
    from forebay.buffer.read.fetch import Batch
    from forebay.runtime.config import RuntimeConfig
    from forebay.runtime.contract import Answer, Decoder, Sink
    from forebay.runtime.dead_letter import DeadLetter
    from forebay.runtime.stages.active_source import ActiveSource
    from forebay.runtime.stages.portions import Portion

_log = logging.getLogger("forebay.runtime")

TRANSIENT: Final = (Unavailable, Unknown, Timeout)
"""Errors after which a read, a record or an ack is repeated."""
RETRY_BASE: Final = 0.1
RETRY_CAP: Final = 30.0
_MEND: Final = "Remove the cause, and start the runtime again: nothing of this was acknowledged"

Task: TypeAlias = tuple["ActiveSource", "Portion", int]
"""A batch to fetch: its source, its portion and the batch's index in the portion."""


class Pipeline:
    """The stages between reading a source and acknowledging it, shared by all sources, under one lock."""

    def __init__(
        self,
        sink: Sink,
        config: RuntimeConfig,
        decoder: Decoder,
        dead_letters: Producer | None,
        events: AuditTrail | None,
        *,
        clock: Clock,
        random: Random,
    ) -> None:
        self.sink = sink
        self.config = config
        self.clock = clock
        self.random = random
        self.lock: Final = RLock()
        self.changed: Final = Condition(self.lock)
        """Notified of events that `run` may wait for: a failure, or the end of a source."""
        self.failure: BaseException | None = None
        self.sources: list[ActiveSource] = []
        self.admission: Admission[ActiveSource] = Admission(config.max_batches, config.max_bytes)
        self._decoder = decoder
        self._dead_letters = dead_letters
        self._events = events
        self._tracer = configured_tracer()
        self.fetching: WorkerPool[Task] = WorkerPool(
            "fetch", config.fetch_workers, self._fetch, self.fail, lock=self.lock, clock=clock
        )
        self.committing: WorkerPool[tuple[ActiveSource, Portion]] = WorkerPool(
            "commit", config.commit_workers, self._commit, self.fail, lock=self.lock, clock=clock
        )

    def start(self) -> None:
        """Start the threads."""
        self.fetching.start()
        self.committing.start()

    def fail(self, error: BaseException) -> None:
        """Stop everything because of an error. Only the first error is kept; later ones are logged."""
        with self.lock:
            if self.failure is not None:
                _log.warning("another error after the runtime had failed: %s", error)
                return
            self.failure = error
            self.fetching.stop()
            self.committing.stop()
            # After a fence, another process decides. A BaseException, except Ctrl-C, means that this process is ending.
            # guard: no ack after a fence
            may_ack = isinstance(error, Exception | KeyboardInterrupt) and not isinstance(error, Fenced)
            for source in self.sources:
                source.may_ack &= may_ack
                source.leave()
            self.changed.notify_all()

    # Sources

    def join(self, source: ActiveSource) -> None:
        """Add a source. The caller holds the lock."""
        self.sources.append(source)
        self.admission.join(source)

    def forget(self, source: ActiveSource) -> None:
        """End and remove a source."""
        with self.lock:
            source.over = True
            spans.end_unfinished(source, self.failure)
            self.sources.remove(source)
            self.admission.leave(source)
            self.admit()
            self.changed.notify_all()

    def admit(self) -> None:
        """Start to fetch the portions that fit into the budget. The caller holds the lock."""
        if self.failure is not None:
            return
        for source, portion in self.admission.admit():
            if self._tracer is not None:
                spans.start_span(self._tracer, source, portion)
            source.frontier.add(portion)
            if self.sink.in_order:
                source.in_order.append(portion)
            for index in range(len(portion.descriptors)):
                self.fetching.put((source, portion, index))
            if not source.ready:
                source.wake.notify()  # so that it looks for more batches
        metrics.runtime_batches_in_flight.set(self.admission.batches)
        metrics.runtime_bytes_in_flight.set(self.admission.bytes)

    # Fetching and decoding

    def _fetch(self, task: Task) -> None:
        source, portion, index = task
        if source.over:
            return
        try:
            with spans.use(portion):
                self._prepare(source, portion, index)
        except MemoryError as error:  # this machine's fault, not the batch's
            sequence = portion.descriptors[index].sequence
            raise MemoryError(f"{source.url}: batch {sequence}: {error}. Lower fetch_workers or max_bytes") from error
        except TRANSIENT as error:
            pause = self._pause(portion, f"the store: {error}")
            sequence = portion.descriptors[index].sequence
            _log.warning("%s: fetching batch %d again in %.1f s: %s", source.url, sequence, pause, error)
            self.fetching.put(task, after=pause)
            return
        self.arrive(source, portion)

    def _prepare(self, source: ActiveSource, portion: Portion, index: int) -> None:
        """Fetch and decode one batch, or keep it as a dead letter."""
        descriptor = portion.descriptors[index]
        try:
            batch = source.fetcher.fetch(descriptor)
        except (Corrupt, NotFound) as error:
            if isinstance(error, NotFound):
                # It is no dead letter if another runtime has committed it meanwhile and the collector deleted it.
                source.consumer.check_missing(descriptor, error)
            self._bury_object(source, descriptor, describe(error))
            return
        try:
            table = self._decoder(batch)
        except NOT_THE_DATA:  # guard: decode again after an error that says nothing about the data
            raise
        except Exception as error:
            if isinstance(error, Unsupported) and batch.schema is not None:
                raise  # a decoder for bytes got rows of a typed buffer: every batch would become a dead letter
            _check_same_again(source, batch)  # guard: fetch a batch without checksum again before poisoning it
            if not len(batch):
                self._bury_object(source, descriptor, describe(error))
                return
            decoded = isolate(self._decoder, batch, error)
            self._bury(source, batch, decoded.reasons)  # guard: keep bad entries before the good ones are committed
            if decoded.batch is None:
                return
            batch, table = decoded.batch, decoded.table
        if not isinstance(table, pa.Table):
            raise InvalidInput(
                f"{source.url}: a decoder must return a pyarrow.Table, not {type(table).__name__}, as of batch "
                f"{descriptor.sequence}"
            )
        held = held_bytes(batch, table)
        with self.lock:
            source.sizes.learn(batch, held)
            source.bytes_read += batch.decoded.raw_bytes
            source.fetched_rows += table.num_rows
            portion.fill(index, batch, table)
            if not source.over:
                self.admission.correct(source, portion, index, held)
                self.admit()  # the batch usually takes less than expected, so there may be room

    def arrive(self, source: ActiveSource, portion: Portion) -> None:
        """Count one batch of a portion, or its record, as done. Once all are, the portion is committed in its turn."""
        with self.lock:
            portion.missing -= 1
            if portion.missing:
                return
            portion.attempts, portion.trouble = 0, ""
            if self.sink.in_order:
                self._give_turn(source)
            else:
                self._submit(source, portion)

    def _give_turn(self, source: ActiveSource) -> None:
        # guard: one commit at a time for ordered sinks
        while source.in_order and not source.committing and not source.in_order[0].missing:
            portion = source.in_order.popleft()
            source.committing = bool(portion.rows)
            self._submit(source, portion)

    def _submit(self, source: ActiveSource, portion: Portion) -> None:
        if portion.rows:
            self.committing.put((source, portion))
        else:
            self._finish(source, portion)

    # Committing

    def _commit(self, item: tuple[ActiveSource, Portion]) -> None:
        source, portion = item
        if source.over:
            return
        with spans.use(portion):
            self._commit_in_span(source, portion)

    def _commit_in_span(self, source: ActiveSource, portion: Portion) -> None:
        began = self.clock.monotonic()
        answer: Answer | None = check_committed(self.sink, portion.identity) if portion.asks else None
        if answer is None:
            _refuse_rest(source, portion)  # guard: never commit the rest of a recorded range
            answer = self._send(source, portion)
            metrics.runtime_commit_duration.record(self.clock.monotonic() - began, source.attributes)
        metrics.runtime_commits.add(1, {**source.attributes, "answer": type(answer).__name__})
        if isinstance(answer, NotCommitted | MaybeCommitted):
            self._commit_again(source, portion, answer)
            return
        if isinstance(answer, Fatal):
            if not answer.poison:
                raise Halted(f"{_name(source, portion)}: the sink refused: {answer.reason}. {_MEND}")
            try:
                entries = portion.find_entries(answer, self._decoder)
                for batch, reasons in zip(portion.batches, entries, strict=True):
                    if reasons:
                        # guard: keep rows that the sink refuses before the others are committed
                        self._bury(source, batch, reasons)
            except TRANSIENT as error:
                self._commit_again(source, portion, NotCommitted(f"rows that it refused: {error}"))
                return
            portion.take_out(entries)
            if portion.rows:
                self.committing.put((source, portion))  # the other rows
                return
        with self.lock:
            source.committing = False
            self._finish(source, portion)
            self._give_turn(source)

    def _send(self, source: ActiveSource, portion: Portion) -> Answer:
        try:
            whole = portion.commit(source.url)
        except MemoryError as error:
            return Fatal(describe(error))
        except pa.ArrowException as error:
            return Fatal(f"its batches do not make one table: {error}", poison=True)
        return commit(self.sink, whole)

    def _commit_again(self, source: ActiveSource, portion: Portion, answer: NotCommitted | MaybeCommitted) -> None:
        with self.lock:
            portion.failures = portion.failures + 1 if isinstance(answer, Raised) else 0
            portion.asks = isinstance(answer, MaybeCommitted)  # guard: check after a commit that may have happened
        if portion.failures >= self.config.max_failures:
            raise Halted(
                f"{_name(source, portion)}: the sink failed {portion.failures} times in a row, at last with "
                f"{answer.reason}. {_MEND}"
            )
        pause = self._pause(portion, f"the sink: {answer.reason}")
        _log.warning("%s: committing again in %.1f s: %s", _name(source, portion), pause, answer.reason)
        self.committing.put((source, portion), after=pause)

    def _finish(self, source: ActiveSource, portion: Portion) -> None:
        """Mark a portion as done, and advance the frontier. The caller holds the lock."""
        if source.over:
            return
        metrics.runtime_rows.add(portion.rows, source.attributes)
        source.rows += portion.rows
        source.commits += bool(portion.rows)
        portion.done = True
        spans.end(portion)
        portion.empty()
        self.admission.free_bytes(source, portion)
        self.admission.free_batches(source, source.frontier.advance(self.clock.monotonic()))
        source.measure()
        source.wake.notify()
        self.admit()

    def _pause(self, portion: Portion, trouble: str) -> float:
        """Record why a portion must be tried again, and return the pause before that in seconds."""
        with self.lock:
            pause = full_jitter(self.random, portion.attempts, RETRY_BASE, RETRY_CAP)
            portion.attempts += 1
            portion.trouble = trouble
        portion.span.add_event("retry", {"reason": trouble, "seconds": pause})
        return pause

    # Poison

    def _bury(self, source: ActiveSource, batch: Batch, reasons: Mapping[int, str]) -> None:
        """Keep entries or rows of a batch as dead letters. If a letter cannot hold one of the rows, keep the object."""
        stored = dead_letter.stored_indexes(batch)
        where = f"batch {batch.sequence}, {describe_entries([stored[index] for index in sorted(reasons)])},"
        reason = next(iter(reasons.values()))
        producer = self._check_letters(source, where, reason)
        try:
            letters = dead_letter.keep_entries(producer, batch, reasons, reader=source.reader, url=source.url)
        except InvalidInput as error:
            if batch.schema is None:
                raise
            self._bury_object(source, batch.descriptor, f"{reason} ({where} and a letter cannot hold it: {error})")
            return
        self._tell(source, batch.descriptor, letters)

    def _bury_object(self, source: ActiveSource, descriptor: BatchDescriptor, reason: str) -> None:
        """Keep a batch that cannot be read as a dead letter."""
        producer = self._check_letters(source, f"batch {descriptor.sequence}", reason)
        letter = dead_letter.keep_object(producer, descriptor, reason, reader=source.reader, fetcher=source.fetcher)
        self._tell(source, descriptor, [letter])

    def _check_letters(self, source: ActiveSource, where: str, reason: str) -> Producer:
        """Return the producer of dead letters.

        Raises:
            Halted: none is configured.
        """
        if self._dead_letters is None:
            raise Halted(
                f"{source.url}: {where} cannot be used: {reason}. Remove the cause, or have the runtime put such "
                'entries aside and continue: add [dead_letters] with url = "…" to the job file, or give Runtime '
                "dead_letters, a Producer. Then start it again"
            )
        return self._dead_letters

    def _tell(self, source: ActiveSource, descriptor: BatchDescriptor, letters: list[DeadLetter]) -> None:
        """Log and count dead letters that are durable, and record them in the audit trail."""
        for letter in letters:
            _log.error(
                "%s: %s of batch %d became a dead letter: %s",
                source.url, letter.place, letter.sequence, letter.error,
            )  # fmt: skip
            if self._events is not None:
                self._events.record(
                    "dead_letter",
                    source.url,
                    objects=[descriptor.location],
                    group=source.reader.group,
                    sequence=letter.sequence,
                    entries=letter.place,
                    error=letter.error,
                )
        metrics.runtime_dead_letters.add(len(letters), source.attributes)
        with self.lock:
            source.dead_letters += len(letters)


def _name(source: ActiveSource, portion: Portion) -> str:
    """Return a portion's name in messages: its buffer, batches and group."""
    first, last = portion.identity.first, portion.identity.last
    batches = f"batch {first}" if first == last else f"batches {first} to {last}"
    group = f", group {source.reader.group}" if source.reader.group else ""
    return f"{source.url}: {batches}{group}"


def _refuse_rest(source: ActiveSource, portion: Portion) -> None:
    """Raise `Halted` if only the rest of a portion is left of what was recorded."""
    first, last, left = portion.identity.first, portion.identity.last, portion.descriptors[0].sequence
    if portion.is_partial:
        raise Halted(
            f"{_name(source, portion)}: retention has dropped those before {left}, and an earlier process may have "
            "committed all as one. The sink does not have that commit, or cannot tell, so the rest could be lost or "
            f"doubled. Look for rows of batches {first} to {last} in the target. If there are none, open the Consumer "
            f"once with last_acked={left - 1}: the rest is then committed. If all are there, open it with "
            f'last_acked={last}. If some are there, see "Retention dropped something" in docs/operations.md'
        )


def _check_same_again(source: ActiveSource, batch: Batch) -> None:
    """Raise `Unavailable` if a batch without a checksum (version 1) is not the same when it is fetched again."""
    if batch.descriptor.facts is not None:
        return
    try:
        again = source.fetcher.fetch(batch.descriptor)
    except (Corrupt, NotFound):
        return
    if not again.arrow.equals(batch.arrow):
        raise Unavailable(
            f"{source.url}: batch {batch.sequence} was not the same when it was fetched again"
            "; it is fetched once more later. If this repeats, check the network and the store"
        )

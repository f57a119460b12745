"""How the driver commits a writing job: it appends the batches that the tasks stored to the manifests (rfcs/0008).

Each buffer gets one append. A batch job appends once. A stream records each epoch before it appends it. So a replay
appends the same batches, and only where they are missing.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, NoReturn

from msgspec import Struct

from forebay.buffer.base.checks import Whole  # noqa: TC001 - msgspec looks it up
from forebay.buffer.base.errors import Fenced, ForebayError, InvalidInput, Unknown
from forebay.buffer.format.model import NewBatch  # noqa: TC001 - msgspec looks it up
from forebay.buffer.manifest import BelowFloor
from forebay.buffer.manifest.envelope import pack, unpack
from forebay.buffer.manifest.register import Register
from forebay.buffer.topic.topic import in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from forebay.buffer.manifest import Queue
    from forebay.runtime.spark.writing.write_job import WriteJob


class EpochRecord(Struct, frozen=True, array_like=True, tag="epoch"):
    """The last epoch of a stream that wrote anything, and the objects that it consists of."""

    query_id: str | None
    """Spark's name for the query, which its checkpoint keeps: another one has another checkpoint."""
    epoch: Whole
    batches: tuple[tuple[Whole, NewBatch], ...]
    """Each with its partition, in order."""


def commit_job(job: WriteJob, batches: Sequence[tuple[int, NewBatch]]) -> None:
    """Append a batch job's objects to the buffers they lie in, and let go of them.

    Raises:
        Fenced: the lease ran out, and the collector may have swept some of them. Nothing was appended.
        Unknown: some of them, or all, may be there, as the message says.
    """

    def append(number: int, found: list[NewBatch]) -> None:
        queue = job.open_queue(number)
        queue.register_writer()  # an append that finds it missing reads the manifest once more
        queue.append(found, let_go=job.hold_id, schemas=job.save_schemas(queue, found))

    failed = _append_all(batches, append)
    if not failed:
        return
    first = min(failed.values(), key=lambda error: not isinstance(error, Unknown))  # guard: report doubt before refusal
    listed = sorted({number for number, _ in batches} - set(failed))
    if listed:
        raise Unknown(
            f"{job.store.url}: this job's entries are in partitions {listed}, and not, or perhaps not, in "
            f"{sorted(failed)}: read them before you run it again ({first})"
        ) from first
    if isinstance(first, Unknown):
        raise Unknown(
            f"{job.store.url}: this job's entries may or may not have been appended: read before you run it again "
            f"({first})"
        ) from first
    if isinstance(first, BelowFloor):
        raise _lease_over(job) from first
    raise first


class EpochCommitter:
    """Commits the epochs of one lasting stream writer, each exactly once, however often Spark repeats it."""

    def __init__(self, job: WriteJob, writer_id: str) -> None:
        self._job = job
        self._writer_id = writer_id
        self._register: Register[EpochRecord] = Register(
            job.store,
            f"streams/{writer_id}",
            decode=lambda data: unpack(data, EpochRecord, f"{job.store.url}/streams/{writer_id}"),
            encode=pack,
            clock=job.clock,
        )
        self._open = cache(partial(job.open_queue, writer_id=f"spark.{writer_id}"))

    def commit(self, mine: EpochRecord) -> None:
        """Record an epoch unless it is recorded, and append what is recorded wherever it is not listed yet.

        Raises:
            InvalidInput: this writer has come further, or belongs to another query: its checkpoint was deleted.
            Fenced: the lease ran out, and the collector may have swept some of it.
            Unknown: it is not listed everywhere, or may not be; a replay finds out and goes on from there.
        """
        record = self._record(mine)
        failed = self._append(record)
        if record != mine and _is_swept(record, failed):  # guard: record an epoch again if all of it was swept
            # Recorded so long ago that all of it was swept before any was listed; it never will be.
            record = self._record(mine, instead_of=record)
            failed = self._append(record)
        if failed:
            self._raise_failure(record, failed)

    def is_recorded(self, epoch: int, query_ids: Collection[str | None]) -> bool:
        """Return whether an epoch has objects that a replay of it will list; the query's id if it is known."""
        found = self._register.read().value
        return found is not None and found.epoch == epoch and (not query_ids or found.query_id in query_ids)

    def _record(self, mine: EpochRecord, *, instead_of: EpochRecord | None = None) -> EpochRecord:
        """Return what is recorded for the epoch: what an attempt before this one has recorded, or else `mine`."""

        def is_settled(found: EpochRecord) -> bool:
            return found.epoch == mine.epoch and found != instead_of

        def change(found: EpochRecord | None) -> EpochRecord | None:
            if found is not None:
                self._check_order(mine, found)
                if is_settled(found):  # guard: record an epoch only once
                    return None
            return mine if mine.batches else None

        known = self._register.read()
        # guard: register the writer in the partitions of a replay too
        if known.value is None or not is_settled(known.value):
            # Before the record is written: a manifest that does not know the writer then has forgotten it since.
            in_parallel(self._register_writer, _partitions(mine))
        recorded = self._register.update(change, is_settled, known=known).value
        # guard: continue with the recorded epoch
        return recorded if recorded is not None and is_settled(recorded) else mine

    def _check_order(self, mine: EpochRecord, found: EpochRecord) -> None:
        # guard: refuse a record of another query
        # guard: refuse an epoch lower than the recorded one
        if mine.query_id != found.query_id or mine.epoch < found.epoch:
            raise InvalidInput(
                f"{self._register.url}: the stream writer {self._writer_id!r} has come to epoch {found.epoch} of query "
                f"{found.query_id}, and is asked for epoch {mine.epoch} of query {mine.query_id}. Its checkpoint was "
                "deleted or put back, or two queries share the name: give this one a writerId of its own"
            )

    def _append(self, record: EpochRecord) -> dict[int, ForebayError]:
        def append(number: int, batches: list[NewBatch]) -> None:
            queue = self._open(number)
            if queue.resume() > record.epoch:  # guard: skip an epoch that is already listed
                self._job.let_go(number)  # it is listed, and the replay has stored it again for nothing
                return
            if not _knows_writer(queue):  # guard: refuse if the manifest has forgotten the writer
                raise Unknown(
                    f"{queue.url} does not know the stream writer {self._writer_id!r} any more, so it is not "
                    f"known whether epoch {record.epoch} is listed. Read before you repeat it: under a new "
                    "writerId it is written again"
                )
            # The number is all that tells whether it is listed: a request of a process that died may come in before
            # this one, and a rival may list the same record. Then it was applied, no matter by whom.
            schemas = self._job.save_schemas(queue, batches)
            # guard: number the append after its epoch
            queue.append(batches, number=record.epoch + 1, let_go=self._job.hold_id, schemas=schemas)

        return _append_all(record.batches, append)

    def _register_writer(self, number: int) -> None:
        queue = self._open(number)
        queue.resume()
        if not _knows_writer(queue):
            queue.register_writer()

    def _raise_failure(self, record: EpochRecord, failed: dict[int, ForebayError]) -> NoReturn:
        if _is_swept(record, failed):
            raise _lease_over(self._job)
        listed = [number for number in _partitions(record) if number not in failed]
        what = f"{self._register.url}: epoch {record.epoch} is listed in partitions {listed}, and not in"
        swept = [number for number, error in failed.items() if isinstance(error, BelowFloor)]
        if swept:
            raise Fenced(
                f"{what} {swept}, where the lease of {self._job.lease:g} s ran out and the floor has "
                f"passed its batches. Use a new writerId to write the epoch again; it is then in {listed} "
                "twice"
            )
        first = next(iter(failed.values()))
        raise Unknown(
            f"{what}, or perhaps not in, {list(failed)}: start the query again, and it goes on ({first})"
        ) from first


def _append_all(
    batches: Sequence[tuple[int, NewBatch]], append: Callable[[int, list[NewBatch]], None]
) -> dict[int, ForebayError]:
    """Append to every partition concerned, some at once, and return what failed."""
    found: dict[int, list[NewBatch]] = {}
    for number, batch in batches:
        found.setdefault(number, []).append(batch)

    def attempt(number: int) -> ForebayError | None:
        try:
            append(number, found[number])
        except ForebayError as error:
            return error
        return None

    numbers = sorted(found)
    errors = zip(numbers, in_parallel(attempt, numbers), strict=True)
    return {number: error for number, error in errors if error is not None}


def _knows_writer(queue: Queue) -> bool:
    """Whether the manifest, as last seen, knows the queue's writer."""
    state = queue.last_seen()
    return state is not None and queue.find_writer(state) is not None


def _partitions(record: EpochRecord) -> list[int]:
    return sorted({number for number, _ in record.batches})


def _is_swept(record: EpochRecord, failed: dict[int, ForebayError]) -> bool:
    """Whether nothing of it is listed, and nothing can be any more: a floor never goes down."""
    # guard: record an epoch again only if none of it is listed
    return len(failed) == len(_partitions(record)) and all(isinstance(error, BelowFloor) for error in failed.values())


def _lease_over(job: WriteJob) -> Fenced:
    return Fenced(
        f"{job.store.url}: the lease of {job.lease:g} s on what this job stored ran out, and the "
        "floor has passed its batches; nothing was appended. Run it again with a longer "
        "leaseSeconds"
    )

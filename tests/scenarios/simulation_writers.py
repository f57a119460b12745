"""Those who write in the simulation: producers, a writer with a lasting name, and a job that lists all at its end."""

from __future__ import annotations

from collections.abc import Callable

from evolving import VERSIONS, make_row, schema_of
from machine_processes import GRACE, TTL
from simulation_world import EXPECTED, Process, Simulation

from forebay.buffer.base.errors import Unknown
from forebay.buffer.coordinator import DeltaRejected, Stamped
from forebay.buffer.format.rows import RowConverter
from forebay.buffer.holds import HeldUploads
from forebay.buffer.manifest import BelowFloor, Head, Queue
from forebay.buffer.manifest.register import Limits
from forebay.buffer.write.accumulator import Accumulator, check_call
from forebay.buffer.write.formats import open_format
from forebay.buffer.write.rows import RowAccumulator, RowFormat, check_rows
from forebay.buffer.write.upload import BatchStorage, BatchUploader, Filled, Uploaded

Answer = Callable[..., None]
Stored = Stamped[Uploaded | None] | Exception
LIMITS = Limits(max_attempts=6)


class Writing(Process):
    """What producers have in common: batches of numbered values."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name)
        self.made = 0

    def next_value(self) -> str:
        self.made += 1
        return f"{self.who}-{self.made}"

    def open_rows(self, queue: Queue) -> RowFormat | None:
        """Which schema it writes in, an old or a new one, which may have to evolve; None for bytes."""
        if not self.simulation.rows:
            return None
        self.version = self.random.randrange(VERSIONS)
        return open_format(queue, queue.read(), schema=schema_of(self.version), evolve=True)

    def fill(self, rows: RowFormat | None, *calls: tuple[str, int | None]) -> Filled:
        """A batch of values, each the entry of one call with its number."""
        if rows is not None:
            return self.fill_rows(rows, *calls)
        accumulator = Accumulator(1 << 20, version=1 if self.simulation.migrating else 2)
        for value, number in calls:
            call = check_call(value.encode(), b"", self.line.clock.now_ms())
            call.number = number
            accumulator.apply(call)
        return accumulator.freeze()[0]

    def fill_rows(self, rows: RowFormat, *calls: tuple[str, int | None]) -> Filled:
        accumulator, converter = RowAccumulator(1 << 20, rows), RowConverter(rows.schema)
        for value, number in calls:
            row = make_row(value.encode(), self.version)
            call = check_rows(row, b"", self.line.clock.now_ms(), converter=converter)
            call.number = number
            accumulator.apply(call)
        return accumulator.freeze()[0]

    def open_queue(self, writer_id: str | None = None) -> Queue:
        return Queue(
            self.line, role="producer", writer_id=writer_id, limits=LIMITS, clock=self.line.clock, random=self.random
        )

    def open_uploader(self, queue: Queue, rows: RowFormat | None) -> BatchUploader:
        numbered, schemas = queue.writer_id.startswith("="), rows.ids if rows else ()
        return BatchUploader(
            queue, self.open_storage(), grace=GRACE, numbered=numbered, schemas=schemas, clock=self.line.clock
        )

    def open_storage(self) -> BatchStorage:
        return BatchStorage(self.line, compression="none", clock=self.line.clock, random=self.random)

    def upload(self, uploader: BatchUploader, batches: list[Filled]) -> list[Stored]:
        """What became of each batch; a rest between any two, as uploads take their time."""
        stored: list[Stored] = []
        for number, filled in enumerate(batches):
            epochs = range(number, number + 1)
            try:
                stored.append(Stamped(epochs, uploader.flush_delta(filled, epochs, lambda _bytes: None)))
            except DeltaRejected as rejected:
                stored.append(rejected.reason)
        return stored

    def list_stored(self, uploader: BatchUploader, stored: list[Stored]) -> list[Exception | None]:
        """What went wrong with each, listed together as far as they were stored."""
        whole = [batch for batch in stored if isinstance(batch, Stamped)]
        failures = uploader.flush_storage(whole) if whole else {}
        errors = [failures.get(batch.epochs) if isinstance(batch, Stamped) else batch for batch in stored]
        foul = [error for error in errors if error is not None and not isinstance(error, EXPECTED)]
        assert not foul, foul
        return errors


class Producing(Writing):
    """Stores a few batches and lists them with one append."""

    def begin(self) -> None:
        self.uploader: BatchUploader | None = None

    def open(self) -> BatchUploader:
        queue = self.open_queue()
        self.rows = self.open_rows(queue)
        self.uploader = self.open_uploader(queue, self.rows)
        return self.uploader

    def work(self) -> None:
        try:
            uploader = self.uploader or self.open()
        except EXPECTED:
            return
        calls = [
            [self.next_value() for _ in range(self.random.choice((1, 1, 2)))]
            for _ in range(self.random.choice((1, 1, 2)))
        ]
        answers = [[self.simulation.journal.call("append", self.who, value=v) for v in values] for values in calls]
        batches = [self.fill(self.rows, *((value, None) for value in values)) for values in calls]
        stored = self.upload(uploader, batches)
        errors = self.list_stored(uploader, stored)
        for batch, error, of_batch in zip(stored, errors, answers, strict=True):
            in_doubt = isinstance(error, Unknown) and isinstance(batch, Stamped)  # what was not stored is not listed
            outcome = "ok" if error is None else "unknown" if in_doubt else "failed"
            self.simulation.seen[f"appends {outcome}"] += 1
            for answer in of_batch:
                answer(outcome)


class Input:
    """What writers of one name have to write, in order; it stays, wherever their processes are."""

    def __init__(self, writer: str) -> None:
        self.writer = writer
        self.read = 0
        self.pending: dict[int, tuple[str, Answer]] = {}
        """By number, what is not known to be durable."""


class Lasting(Writing):
    """A writer with a name and numbered calls: its successor repeats what it does not know to be durable.

    Another of the same name may be at work, though nobody wants it to: a process that was taken for dead.
    """

    def __init__(self, simulation: Simulation, name: str, input_: Input) -> None:
        super().__init__(simulation, name)
        self.input = input_

    def begin(self) -> None:
        self.uploader: BatchUploader | None = None

    def work(self) -> None:
        if self.uploader is None:
            self.open()
            return
        for _ in range(self.random.choice((1, 1, 2))):
            self.input.read += 1
            value = f"{self.input.writer}-{self.input.read}"
            self.input.pending[self.input.read] = (
                value,
                self.simulation.journal.call("append", self.input.writer, value=value),
            )
        last = self.input.read
        batches = [self.fill(self.rows, (value, number)) for number, (value, _) in self.input.pending.items()]
        if any(self.list_stored(self.uploader, self.upload(self.uploader, batches))):
            self.uploader = None  # it may be there or not: a new one finds out
        else:
            self.answer_through(last)

    def open(self) -> None:
        queue = self.open_queue(self.input.writer)
        try:
            self.answer_through(queue.resume())
            head = queue.last_seen()
            was_sealed = isinstance(head, Head) and queue.writer_id not in head.writers and queue.find_writer(head)
            self.simulation.seen["lasting writers found in a bucket"] += bool(was_sealed)
            self.rows = self.open_rows(queue)
        except EXPECTED:
            return
        self.uploader = self.open_uploader(queue, self.rows)

    def answer_through(self, last: int) -> None:
        for number in [number for number in self.input.pending if number <= last]:
            self.input.pending.pop(number)[1]("ok")
            self.simulation.seen["appends of a lasting writer"] += 1


class Loading(Writing):
    """A job whose tasks store batches under a pinned floor, which it lists all at once (rfcs/0008)."""

    def work(self) -> None:
        journal = self.simulation.journal
        try:
            queue = self.open_queue()
            hold_id = queue.new_id()
            rows = self.open_rows(queue)
            floor = HeldUploads(queue, hold_id, ttl=TTL, clock=self.line.clock).floor()
        except EXPECTED:
            return
        storage = self.open_storage()
        uploaded, answers = [], []
        for _ in range(self.random.choice((1, 2, 3))):
            value = self.next_value()
            answer = journal.call("append", self.who, value=value)
            try:
                filled = self.fill(rows, (value, None))
                storage.prepare(filled)
                uploaded.append(storage.put(filled, above=floor))
                answers.append(answer)
            except EXPECTED:
                answer("failed")
        if uploaded:
            self.list_all(hold_id, uploaded, answers, rows.ids if rows else ())

    def list_all(self, hold_id: str, uploaded: list[Uploaded], answers: list[Answer], schemas: tuple[str, ...]) -> None:
        try:
            self.open_queue().append([stored.batch for stored in uploaded], let_go=hold_id, schemas=schemas)
            outcome = "ok"
        except BelowFloor:
            outcome = "failed"
            head = self.simulation.store.head
            assert head is not None
            assert hold_id not in head.holds, "the floor went past a hold"
        except Unknown:
            outcome = "unknown"
        except EXPECTED:
            outcome = "failed"
        self.simulation.seen[f"loads {outcome}"] += 1
        for answer in answers:
            answer(outcome)

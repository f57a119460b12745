"""What `verify` checks in one buffer."""

from __future__ import annotations

from collections import Counter, deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import Corrupt, NotFound, Trimmed
from forebay.buffer.base.names import ulid_in
from forebay.buffer.groups import open_cursor, parse_cursor_key
from forebay.buffer.inspect.findings import REPORTED_FINDINGS, Finding, Kind, VerifyReport
from forebay.buffer.inspect.inventory import Inventory
from forebay.buffer.manifest.schemas import Schemas, schema_key
from forebay.buffer.manifest.segments import FOLDER as SEGMENTS
from forebay.buffer.manifest.segments import node_key, ref_at
from forebay.buffer.manifest.state import CURSORS
from forebay.buffer.manifest.writers import FOLDER as WRITERS
from forebay.buffer.manifest.writers import bucket_key
from forebay.buffer.read.descriptors import descriptors_between
from forebay.buffer.read.fetch import FetchHandle
from forebay.buffer.read.missing import check_still_listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.manifest import Queue, State
    from forebay.buffer.manifest.nodes import Ref
    from forebay.buffer.store import ObjectInfo, ObjectStore


class BufferVerification:
    """One verification of one buffer, in the order of its methods."""

    def __init__(self, queue: Queue, data_prefix: str, *, deep: bool, fetches: int, clock: Clock | None) -> None:
        self._store = queue.store
        self._queue = queue
        self._data_prefix = data_prefix
        self._deep = deep
        self._fetches = fetches
        self._clock = clock
        self._fetcher = FetchHandle(self._store, clock=clock)
        self._counts: Counter[str] = Counter()
        self._findings: list[Finding] = []
        self._nodes: set[str] = set()

    def run(self) -> VerifyReport:
        """Check everything that the manifest reaches, and return what was found."""
        # Before the manifest is read: what was listed by then, and is not in the manifest now, is not on its way in.
        self._inventory = Inventory(self._list_objects())
        try:
            state = self._queue.read_existing()
        except Corrupt as error:
            self._add_finding("corrupt", self._queue.manifest_path, str(error))
            return self._sum_up(None)
        with ThreadPoolExecutor(self._fetches, thread_name_prefix="forebay-verify") as pool:
            try:
                self._check_batches(self._listed_batches(state), state.gc_floor, pool)
            except Corrupt as error:
                self._add_finding("corrupt", self._queue.manifest_path, str(error))
        self._check_cursors(state)
        self._check_writer_buckets(state)
        self._check_schemas(state)
        self._report_orphans(state)
        return self._sum_up(state)

    def _sum_up(self, state: State | None) -> VerifyReport:
        counts: dict[str, Any] = dict(self._counts)
        return VerifyReport(
            self._store.url,
            self._deep,
            None if state is None else state.version,
            segments=len(self._nodes),
            findings=tuple(self._findings),
            **counts,
        )

    def _add_finding(self, kind: Kind, key: str, what: str) -> None:
        self._counts[kind] += 1
        self._keep_finding(kind, key, what)

    def _keep_finding(self, kind: Kind, key: str, what: str) -> None:
        if len(self._findings) < REPORTED_FINDINGS:
            self._findings.append(Finding(kind, key, what))

    def _list_objects(self) -> Iterator[ObjectInfo]:
        """Everything that forebay may have put there, by its name."""
        for folder in (self._data_prefix, SEGMENTS, WRITERS):
            for found in self._store.list(f"{folder}/"):
                name = found.key.removeprefix(f"{folder}/")
                if "/" not in name and ulid_in(name) is not None:
                    yield found
        yield from (found for found in self._store.list(f"{CURSORS}/") if parse_cursor_key(found.key))

    # From the manifest to the batches

    def _listed_batches(self, state: State) -> Iterator[BatchDescriptor]:
        at, end = state.first_sequence, state.next_sequence
        missing = ""
        while at < end:
            if at >= state.tail_start:
                yield from descriptors_between(self._queue, at, end, state=state)
                return
            ref, found = self._load_segment(state, at)
            if found is not None:
                yield from found
            # guard: report a missing segment even if the head keeps changing
            elif ref.name != missing and (fresh := self._queue.read()) != state:
                # The head that refers to it is old: a collector may have trimmed through it since. If a newer head
                # refers to it, too, it is missing, however often writers change the head meanwhile.
                missing, state = ref.name, fresh
                at = max(at, state.first_sequence)
                continue
            else:
                lost = f"batches {max(at, ref.first_sequence)} to {ref.end - 1} cannot be reached"
                self._add_finding("missing", node_key(ref.name), f"the segment is not there, so {lost}")
            at = ref.end

    def _load_segment(self, state: State, at: int) -> tuple[Ref, list[BatchDescriptor] | None]:
        """The segment that holds a sequence and its descriptors from there on; None if a node is missing.

        Where a node is damaged there is nothing to go on with but what follows it.
        """
        refs = state.refs
        while True:
            ref = ref_at(refs, at)
            self._inventory.mark(node_key(ref.name))
            try:
                node = self._queue.segments.load(ref, state.buffer_id)
                self._nodes.add(ref.name)
                if node.level == 0:
                    return ref, self._queue.segments.descriptors(state, at, ref.end - at)
            except NotFound:
                return ref, None
            except Corrupt as error:
                self._add_finding("corrupt", node_key(ref.name), str(error))
                return ref, []
            refs = node.refs

    # Checking

    def _check_batches(self, batches: Iterator[BatchDescriptor], floor: str, pool: ThreadPoolExecutor) -> None:
        fetching: deque[tuple[BatchDescriptor, Future[int]]] = deque()
        before: BatchDescriptor | None = None
        for batch in batches:
            self._counts["batches"] += 1
            self._check_listing(batch, before, floor)
            before = batch
            if self._deep:
                fetching.append((batch, pool.submit(self._fetch_and_count, batch)))
                if len(fetching) > 2 * self._fetches:
                    self._check_fetched(*fetching.popleft())
            else:
                self._check_stored(batch)
        while fetching:
            self._check_fetched(*fetching.popleft())

    def _check_listing(self, batch: BatchDescriptor, before: BatchDescriptor | None, floor: str) -> None:
        if self._inventory.mark(batch.location):
            self._add_finding(
                "contradictory", batch.location, f"batch {batch.sequence} is an object that is listed before"
            )
        if (ulid_in(batch.location) or floor) < floor:
            self._add_finding(
                "contradictory", batch.location, f"batch {batch.sequence} is named below the floor {floor}"
            )
        if before is None or before.base_record is None or before.facts is None or batch.base_record is None:
            return
        expected = before.base_record + before.facts.records
        if before.sequence + 1 == batch.sequence and batch.base_record != expected:
            what = f"batch {batch.sequence} begins at record {batch.base_record}; expected {expected}"
            self._add_finding("contradictory", batch.location, what)

    def _fetch_and_count(self, batch: BatchDescriptor) -> int:
        """Fetch and decode a batch, and return how many entries it has."""
        found = self._fetcher.fetch(batch)
        if batch.facts is not None and len(found) != batch.facts.records:
            raise Corrupt(f"it holds {len(found)} entries; the manifest says {batch.facts.records}")
        return len(found)

    def _check_fetched(self, batch: BatchDescriptor, fetching: Future[int]) -> None:
        try:
            self._counts["entries"] += fetching.result()
        except NotFound as error:
            self._missing(batch, error)
        except Corrupt as error:
            self._add_finding("corrupt", batch.location, f"batch {batch.sequence}: {error}")

    def _check_stored(self, batch: BatchDescriptor) -> None:
        size = self._inventory.size_of(batch.location)
        if size is None:  # put there since the listing, or kept in another folder, or really missing
            found = next(iter(self._store.list(batch.location)), None)
            size = found.size if found is not None and found.key == batch.location else None
        if size is None:
            self._missing(batch, NotFound(f"batch {batch.sequence} is not there"))
        elif batch.facts is not None and size != batch.facts.object_bytes:
            what = f"batch {batch.sequence} has {size} bytes; expected {batch.facts.object_bytes}"
            self._add_finding("corrupt", batch.location, what)

    def _missing(self, batch: BatchDescriptor, error: NotFound) -> None:
        with suppress(Trimmed):  # then it was deleted meanwhile
            check_still_listed(batch, error, self._queue)
            self._add_finding("missing", batch.location, f"batch {batch.sequence} is not there")

    def _check_cursors(self, state: State) -> None:
        for name, group in sorted(state.groups.items()):
            self._counts["groups"] += 1
            register = open_cursor(self._store, name, group.generation, clock=self._clock)
            self._inventory.mark(register.key)
            try:
                cursor = register.read().value
            except Corrupt as error:
                self._add_finding("corrupt", register.key, str(error))
                continue
            if cursor is None:
                continue
            if cursor.buffer_id != state.buffer_id:
                what = f"it belongs to buffer {cursor.buffer_id}; this one is {state.buffer_id}"
                self._add_finding("contradictory", register.key, what)
            elif cursor.acked is not None:
                # A consumer may have gone back before the group's start, and acknowledged there.
                self._check_acked(state, register.key, max(cursor.acked, group.start - 1))
        if state.acked is not None:
            self._check_acked(state, self._queue.manifest_path, state.acked)

    def _check_writer_buckets(self, state: State) -> None:
        for number, bucket in sorted(state.writer_buckets.items()):
            key = bucket_key(bucket.name)
            self._inventory.mark(key)
            try:
                self._queue.buckets.load(state, number)
            except NotFound:
                if self._queue.read().writer_buckets.get(number) == bucket:
                    self._add_finding(
                        "missing", key, "the writers in it are forgotten: their repeats would be stored again"
                    )
            except Corrupt as error:
                self._add_finding("corrupt", key, str(error))

    def _check_schemas(self, state: State) -> None:
        for finding in damaged_schemas(self._store, state.schemas, self._clock):
            self._add_finding(finding.kind, finding.key, finding.what)

    def _check_acked(self, state: State, key: str, acked: int) -> None:
        if acked + 1 < state.first_sequence and not state.dropped:
            what = f"acknowledged through {acked}, but trimmed up to {state.first_sequence} without retention"
            self._add_finding("contradictory", key, what)

    def _report_orphans(self, state: State) -> None:
        floor = state.lowest_new_name
        self._counts["orphaned"] = left = self._inventory.unmarked
        if not left:
            return
        for found in self._list_objects():
            if len(self._findings) >= REPORTED_FINDINGS or not left:
                return
            if self._inventory.is_unmarked(found.key):
                left -= 1
                below = (ulid_in(found.key) or floor) < floor
                fate = (
                    "the next collection deletes it"
                    if below
                    else "it is being uploaded, or a later collection deletes it"
                )
                self._keep_finding("orphaned", found.key, f"the manifest does not list it: {fate}")


def damaged_schemas(store: ObjectStore, ids: Iterable[str], clock: Clock | None) -> list[Finding]:
    """Return a finding for each schema of a history that is missing or damaged."""
    schemas, found = Schemas(store, clock=clock or SystemClock()), []
    for schema_id in ids:
        try:
            schemas.load(schema_id)
        except Corrupt as error:
            found.append(Finding("corrupt", schema_key(schema_id), str(error)))
    return found

"""From a manifest of version 1 to one of version 2, by one compare-and-swap, while producers run (rfcs/0005)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from forebay.buffer.base import names
from forebay.buffer.base.checks import MOST, check_seconds
from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import InvalidInput, Unsupported
from forebay.buffer.either.dispatch import buffer_or_topic
from forebay.buffer.format.model import NewBatch
from forebay.buffer.manifest import Head, Manifest, Queue
from forebay.buffer.manifest.head import FANOUT, KEPT_LISTINGS, MAX_SEGMENT_LISTINGS
from forebay.buffer.manifest.head_fields import Owner
from forebay.buffer.manifest.nodes import Node
from forebay.buffer.store import StoreUrl, open_store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.manifest.nodes import Ref


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What a migration did, or found done."""

    migrated: bool
    """False if the manifest was of version 2 already, and nothing was written."""
    buffer_id: str
    batches: int
    """Retained, from `first_sequence` on."""
    first_sequence: int
    epoch: int
    """One more than before: a consumer of version 1 is fenced. 0 if none was ever opened."""
    gc_floor: str
    """Nothing named below it may be listed any more."""
    segments_stored: int
    """Segments and index nodes that older entries were sealed into."""


def migrate(
    url: StoreUrl,
    *,
    others_stopped: bool = False,
    grace: float = 600.0,
    manifest_path: str = "manifest",
    storage_options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
    random: Random | None = None,
) -> MigrationReport:
    """Make a version 1 buffer a version 2 one: same batches, same sequences, same metadata.

    forebay producers may stay running. The consumer is fenced and has to be opened again. It may be repeated, and
    interrupted anywhere: the manifest is of version 1 until the one write that makes it version 2, and what was stored
    before it is garbage that the collector takes.

    Args:
        url: the buffer, or its store if it is open already.
        others_stopped: says that no OpenData Buffer producer, consumer or collector and no collector of version 1 is at
            work on this buffer, nor will be.
        grace: the grace period in seconds that its collector had.
        manifest_path: the manifest's key below `url`.
        storage_options: credentials, endpoint and client of the store.
        clock: what `grace` is counted back from.
        random: what ids and names are drawn from.

    Raises:
        InvalidInput: `others_stopped` is not set, or it is a topic, whose partitions are of version 2 from the start.
        NotFound: there is no such buffer.
        Unsupported: it is a typed buffer, which is of version 2 from the start.
    """
    grace = check_seconds(grace, "grace", zero=True)
    store = open_store(url, storage_options)
    queue = Queue(store, manifest_path, role="migration", clock=clock, random=random)
    state = buffer_or_topic(queue.read_existing, lambda: None)
    if state is None:
        raise InvalidInput(
            f"{store.url} is a topic: its partitions are of version 2 since they were made"
            "; there is nothing to migrate. Leave it as it is"
        )
    if state.schemas:
        raise Unsupported(
            f"{store.url} is a typed buffer: it holds rows of a schema, which only version 2 does, so it has been of "
            "version 2 from the start and there is nothing to migrate"
        )
    if isinstance(state, Head):
        return _report(state, migrated=False, segments_stored=0)
    if not others_stopped:  # guard: require confirmation that the others are stopped
        raise InvalidInput(
            f"{queue.url}: a version 2 manifest is refused by OpenData Buffer's programs, and a version 1 collector "
            "would sweep batches that it cannot see listed. Stop them all (forebay producers may run on), then pass "
            "others_stopped=True"
        )
    return _Migration(queue, grace, clock or SystemClock()).run(state)


class _Migration:
    """One run: entries are sealed first, as far as they are there, and then the manifest is replaced."""

    def __init__(self, queue: Queue, grace: float, clock: Clock) -> None:
        self._queue = queue
        self._buffer_id = queue.new_id()
        self._horizon = names.at_time(clock.now_ms() - int(grace * 1000))
        self._refs: tuple[Ref, ...] = ()
        self._nodes: dict[str, Node] = {}
        self._stored = 0
        self._last_sealed: BatchDescriptor | None = None

    def run(self, state: Manifest) -> MigrationReport:
        self._seal(state)
        head = self._queue.migrate(self._convert, self._buffer_id)
        mine = head.buffer_id == self._buffer_id
        return _report(head, migrated=mine, segments_stored=self._stored if mine else 0)

    def _seal(self, state: Manifest) -> None:
        """Store all but the newest entries as segments, and these under index nodes."""
        at, end = state.first_sequence, state.next_sequence - KEPT_LISTINGS
        if end - at < KEPT_LISTINGS:
            return
        refs: list[Ref] = []
        while at < end:
            found = state.tail_descriptors(at, min(MAX_SEGMENT_LISTINGS, end - at))
            refs.append(self._store(Node(self._buffer_id, 0, at, None, _entries(found), ())))
            self._last_sealed = found[-1]
            at += len(found)
        self._refs = self._index(refs)

    def _index(self, refs: list[Ref]) -> tuple[Ref, ...]:
        left: tuple[Ref, ...] = ()
        while len(refs) >= FANOUT:
            whole = len(refs) // FANOUT * FANOUT
            left = (*refs[whole:], *left)
            refs = [
                self._store(
                    Node(self._buffer_id, refs[i].level + 1, refs[i].first_sequence, None, (), tuple(refs[i:][:FANOUT]))
                )
                for i in range(0, whole, FANOUT)
            ]
        return (*refs, *left)

    def _store(self, node: Node) -> Ref:
        ref = self._queue.segments.store_node(node, above=names.LOWEST)
        self._stored += 1
        if node.level:
            self._nodes[ref.name] = node
        return ref

    def _convert(self, manifest: Manifest) -> Head:
        """The head that takes the place of a manifest, which may have grown and been consumed since it was sealed."""
        if max(manifest.epoch, manifest.next_sequence) >= MOST:
            raise Unsupported(
                f"the epoch or the sequence of {self._queue.url} is too large for version 2; start a new buffer"
            )
        first = manifest.first_sequence
        refs = self._refs if self._is_sealed_part_of(manifest) else ()
        sealed_to = refs[-1].end if refs else first
        owner = None
        if manifest.epoch:
            owner = Owner(manifest.epoch + 1, self._queue.new_id(), first - 1 if first else None)
        whole = Head(
            buffer_id=self._buffer_id,
            first_sequence=refs[0].first_sequence if refs else first,
            next_sequence=manifest.next_sequence,
            owner=owner,
            refs=refs,
            tail=_entries(manifest.tail_descriptors(sealed_to, manifest.next_sequence - sealed_to)),
        )
        head = whole.trim(first, self._nodes)
        # guard: keep the floor at or below every listed name
        return replace(head, gc_floor=min(self._horizon, head.lowest or self._horizon))

    def _is_sealed_part_of(self, manifest: Manifest) -> bool:
        """Whether what was sealed is, or was, what this manifest lists at those sequences.

        Sequences are not used twice, so it is; unless the manifest was deleted and begun again.
        """
        last = self._last_sealed
        if last is None or last.sequence < manifest.first_sequence:
            return False
        # guard: what was sealed must still be in the manifest
        return manifest.tail_descriptors(last.sequence, 1) == [last]


def _entries(found: list[BatchDescriptor]) -> tuple[NewBatch, ...]:
    return tuple(NewBatch(batch.location, batch.metadata) for batch in found)


def _report(head: Head, *, migrated: bool, segments_stored: int) -> MigrationReport:
    return MigrationReport(
        migrated=migrated,
        buffer_id=head.buffer_id,
        batches=head.count,
        first_sequence=head.first_sequence,
        epoch=head.epoch,
        gc_floor=head.gc_floor,
        segments_stored=segments_stored,
    )

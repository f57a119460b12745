"""A store that checks the invariants of the buffer in it after every write.

It sees each state of the manifest and of the cursors, and each deletion, in the order in which the store applied them,
including late requests. It keeps its own model of what the log should be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.buffer.base.names import ulid_in
from forebay.buffer.groups import Cursor, cursor_key
from forebay.buffer.manifest.decode import read_node, read_writer_node
from forebay.buffer.manifest.envelope import unpack
from forebay.buffer.manifest.head import COUNTED_HOLDS, LASTING, Head
from forebay.buffer.manifest.schemas import schema_key
from forebay.buffer.manifest.state import CURSORS, read_state
from forebay.buffer.manifest.v1 import Manifest
from forebay.buffer.manifest.writers import bucket_key
from forebay.buffer.store.base import Applied, Data, ObjectInfo, ObjectStore, Outcome, StoredObject

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from forebay.buffer.base.errors import StoreError
    from forebay.buffer.format.model import NewBatch
    from forebay.buffer.manifest.head_fields import Group
    from forebay.buffer.manifest.nodes import Node, Ref


class WatchedStore(ObjectStore):
    """A wrapper of a store with one buffer, which may be of version 1. Breaking an invariant raises `AssertionError`.

    Args:
        inner: the wrapped store, which must be empty at first.
        manifest_path: the key of the manifest.
        retention: whether batches that were not read may be dropped.
    """

    def __init__(self, inner: ObjectStore, *, manifest_path: str = "manifest", retention: bool = False) -> None:
        self.url: str = inner.url
        self.inner = inner
        self.head: Head | None = None
        """The current manifest; None if there is none yet or it has version 1."""
        self.listed: list[str] = []
        """The locations ever listed, by sequence."""
        self.deleted: set[str] = set()
        """The batches and segments ever deleted."""
        self.claims: set[str] = set()
        """The ids of all claims ever made."""
        self.epochs: set[int] = set()
        """The epochs of all claims ever made in version 1, which keeps no ids."""
        self.violations: list[str] = []
        """The violations that were found, for callers whose threads swallow errors."""
        self._manifest_path = manifest_path
        self._retention = retention
        self._places: dict[str, int] = {}
        self._generations: set[str] = set()
        self._cursors: dict[str, Cursor] = {}
        self._nodes: dict[str, Node] = {}
        self._reachable: set[str] = set()
        self._writer_numbers: dict[str, int] = {}

    # The store

    def get(self, key: str) -> StoredObject:
        """Read from the wrapped store."""
        return self.inner.get(key)

    def get_if_changed(self, key: str, version: str) -> StoredObject | None:
        """Read from the wrapped store."""
        return self.inner.get_if_changed(key, version)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """List the wrapped store."""
        return self.inner.list(prefix, start_after=start_after)

    def put(self, key: str, data: Data) -> str:
        """Write to the wrapped store, then check the invariants."""
        # A repeated upload may arrive late. It has the same bytes, so it does no harm.
        repeated = key in self._reachable and self.inner.get(key).data == bytes(data)
        version = self.inner.put(key, data)
        if not repeated:
            self._look_at(key, data)
        return version

    def create(self, key: str, data: Data) -> Outcome:
        """Write to the wrapped store, then check the invariants."""
        outcome = self.inner.create(key, data)
        if isinstance(outcome, Applied):
            self._look_at(key, data)
        return outcome

    def replace(self, key: str, data: Data, version: str) -> Outcome:
        """Write to the wrapped store, then check the invariants."""
        outcome = self.inner.replace(key, data, version)
        if isinstance(outcome, Applied):
            self._look_at(key, data)
        return outcome

    def delete(self, keys: Iterable[str]) -> Mapping[str, StoreError]:
        """Check the invariants, then delete from the wrapped store."""
        keys = list(keys)
        for key in keys:
            self._check(key not in self._reachable, f"{key} was deleted and is reachable")
            self._check(key != self._manifest_path, "the manifest was deleted")
            if key.startswith(f"{CURSORS}/"):
                self._check(key not in self._live_cursors(), f"{key} was deleted and its group is there")
                self._cursors.pop(key, None)
            else:
                self._check_free_to_delete(key)
                self.deleted.add(key)
        return self.inner.delete(keys)

    def _check_free_to_delete(self, key: str) -> None:
        name = ulid_in(key)
        if name is not None and self.head is not None:
            floor = self.head.lowest_new_name
            self._check(name < floor, f"{key} was deleted, and it may yet be listed: the floor is {floor}")

    # What a test may ask

    def frontier(self, name: str) -> int:
        """Return the first sequence that a group has not acknowledged, by its current cursor."""
        group = self._groups()[name]
        cursor = self._cursors.get(cursor_key(name, group.generation))
        return group.start if cursor is None or cursor.acked is None else cursor.acked + 1

    def cursor(self, key: str) -> Cursor | None:
        """Return a cursor by its key; None if there is none."""
        return self._cursors.get(key)

    def is_owner(self, epoch: int, claim_id: str) -> bool:
        """Whether this is the last claim of the unnamed consumer. A claim of version 1 is identified by its epoch."""
        if self.head is None:
            return epoch == max(self.epochs, default=None)
        owner = self.head.owner
        return owner is not None and owner.epoch == epoch and owner.claim_id in ("", claim_id)

    def place_of(self, location: str) -> int | None:
        """Return the sequence under which a batch was listed; None if it never was."""
        return self._places.get(location)

    # Looking

    def _look_at(self, key: str, data: Data) -> None:
        if key == self._manifest_path:
            state = read_state(bytes(data), key)
            if isinstance(state, Manifest):
                self._look_at_manifest(state)
            else:
                self._look_at_head(state)
        elif key.startswith(f"{CURSORS}/"):
            self._look_at_cursor(key, unpack(bytes(data), Cursor, key))
        else:
            self._check(key not in self._reachable, f"{key} was written again while it is reachable")

    def _look_at_manifest(self, new: Manifest) -> None:
        """Check a manifest of version 1. If the buffer is migrated later, what it lists is the log's beginning."""
        self._check(self.head is None, "version 1 came back")
        self._check(
            new.epoch >= max(self.epochs, default=0), f"epoch {new.epoch} follows {max(self.epochs, default=0)}"
        )
        self.epochs.add(new.epoch)
        self._reachable = set()
        for entry in new.tail_descriptors(new.first_sequence, new.count):
            self._note_listed(entry.sequence, entry.location)
            self._reachable.add(entry.location)

    def _look_at_head(self, new: Head) -> None:
        old, self.head = self.head, new
        if old is not None:
            self._check(new.buffer_id == old.buffer_id, "the buffer's id changed")
            self._check(new.revision > old.revision, f"revision {new.revision} follows {old.revision}")
            self._check(new.next_sequence >= old.next_sequence, f"sequences went back to {new.next_sequence}")
            self._check(new.first_sequence >= old.first_sequence, f"what was trimmed at {old.first_sequence} came back")
            self._check(new.gc_floor >= old.gc_floor, f"the floor went down from {old.gc_floor} to {new.gc_floor}")
            floors = (old.reference_floor, new.reference_floor)
            self._check(floors[1] >= floors[0], f"the reference floor went down from {floors[0]} to {floors[1]}")
            self._check(
                new.schemas[: len(old.schemas)] == old.schemas, f"the schemas {old.schemas} became {new.schemas}"
            )
            self._check_owner(old, new)
            self._check_writers(old, new)
            self._check_trim(old, new)
            self._check_holds(old, new)
        elif self.epochs:
            # A conversion keeps the claim; a migration fences it.
            expected = max(self.epochs)
            self._check(
                new.epoch in (expected, expected + 1), f"version 1 had epoch {expected}, and now it is {new.epoch}"
            )
        if new.owner is not None and new.owner.claim_id:
            self.claims.add(new.owner.claim_id)
        self._check_groups(old, new)
        self._check_entries(new)

    def _check_entries(self, new: Head) -> None:
        """Check the list: contiguous, each location always at one sequence, nothing missing or below the floor."""
        before, self._reachable = self._reachable, set(map(schema_key, new.schemas))
        at = new.refs[0].first_sequence if new.refs else new.tail_start
        self._check(at <= new.first_sequence, f"{new.first_sequence} is retained, but the lists begin at {at}")
        listings = [listing for ref in new.refs for listing in self._below(ref, new)] + list(new.tail)
        self._check(at + len(listings) == new.next_sequence, "the sequences are not contiguous")
        for sequence, listing in enumerate(listings, at):
            location, version = listing.location, listing.schema
            self._note_listed(sequence, location)
            known = version in range(len(new.schemas)) if new.schemas else version is None
            self._check(known, f"{location} is in schema version {version}, and the head has {len(new.schemas)}")
            name = ulid_in(location)
            self._check(name is None or name >= new.gc_floor, f"{location} is listed below the floor {new.gc_floor}")
            if sequence >= new.first_sequence:
                self._reachable.add(location)
        self._check_lasting(new)
        for key in self._reachable - before:
            name = ulid_in(key)
            floor = new.lowest_new_name
            self._check(name is None or name >= floor, f"{key} is newly listed below the reference floor {floor}")
        present = {found.key for found in self.inner.list()}
        self._check(self._reachable <= present, f"reachable and missing: {sorted(self._reachable - present)}")

    def _note_listed(self, sequence: int, location: str) -> None:
        if sequence == len(self.listed):
            self._check(location not in self._places, f"{location} is listed twice")
            self._check(location not in self.deleted, f"{location} is listed and was deleted before")
            self._places[location] = sequence
            self.listed.append(location)
        known = self.listed[sequence]
        self._check(known == location, f"sequence {sequence} was {known} and is {location}")

    def _below(self, ref: Ref, head: Head) -> Iterator[NewBatch]:
        key = f"segments/{ref.name}.segment"
        self._check(ref.name >= head.gc_floor, f"{key} is listed below the floor {head.gc_floor}")
        self._check(key not in self.deleted, f"{key} is listed and was deleted before")
        self._reachable.add(key)
        if key not in self._nodes:
            self._nodes[key] = read_node(self.inner.get(key).data, key)
        node = self._nodes[key]
        self._check(node.is_behind(ref), f"{key} is not what the reference says")
        for child in node.refs:
            yield from self._below(child, head)
        yield from node.entries

    def _check_owner(self, old: Head, new: Head) -> None:
        if old.owner is None or new.owner is None:
            self._check(old.owner is None or new.owner is not None, "the owner vanished")
        else:
            self._check_claim((old.owner.epoch, old.owner.claim_id), (new.owner.epoch, new.owner.claim_id), "the owner")
            self._check_frontier(old.owner.acked, new.owner.acked, "the owner")

    def _look_at_cursor(self, key: str, new: Cursor) -> None:
        old = self._cursors.get(key)
        self._cursors[key] = new
        self.claims.add(new.claim_id)
        if old is not None:
            self._check(new.number > old.number, f"{key}: number {new.number} follows {old.number}")
            self._check_claim((old.epoch, old.claim_id), (new.epoch, new.claim_id), key)
            self._check_frontier(old.acked, new.acked, key)

    def _check_claim(self, old: tuple[int, str], new: tuple[int, str], whose: str) -> None:
        if new[1] not in {old[1], ""}:
            self._check(new[0] == old[0] + 1, f"{whose}: a claim made epoch {new[0]} of {old[0]}")
        else:
            self._check(new[0] == old[0], f"{whose}: the epoch changed without a claim")

    def _check_frontier(self, old: int | None, new: int | None, whose: str) -> None:
        self._check(old is None or (new is not None and new >= old), f"{whose}: the frontier went from {old} to {new}")

    def _check_writers(self, old: Head, new: Head) -> None:
        for writer_id in old.writers.keys() & new.writers.keys():
            before, after = old.writers[writer_id].number, new.writers[writer_id].number
            self._check(after >= before, f"writer {writer_id} went back from {before} to {after}")

    def _check_lasting(self, new: Head) -> None:
        """Check that lasting writers are never forgotten, in the head or a bucket, and that their numbers only grow."""
        numbers: dict[str, int] = {}
        for bucket in new.writer_buckets.values():
            key = bucket_key(bucket.name)
            self._reachable.add(key)
            self._check(key not in self.deleted, f"{key} is listed and was deleted before")
            numbers |= read_writer_node(self.inner.get(key).data, key).numbers
        numbers |= {known: writer.number for known, writer in new.writers.items() if known.startswith(LASTING)}
        for known, number in self._writer_numbers.items():
            self._check(numbers.get(known, -1) >= number, f"writer {known} had {number} and has {numbers.get(known)}")
        self._writer_numbers = numbers

    def _check_groups(self, old: Head | None, new: Head) -> None:
        before = old.groups if old is not None else {}
        for name, group in new.groups.items():
            if before.get(name) == group:
                continue
            self._check(group.generation not in self._generations, f"generation {group.generation} came back")
            self._check(group.start >= new.first_sequence, f"group {name} starts at {group.start}, which is gone")
            self._generations.add(group.generation)
        for hold_id, hold in new.holds.items():
            kept = hold.first_sequence is None or hold.first_sequence >= new.first_sequence
            self._check(kept, f"hold {hold_id} wants {hold.first_sequence}, and it was trimmed")
            floor = old.gc_floor if old is not None else new.gc_floor
            pinned = hold.floor is None or new.gc_floor <= max(hold.floor, floor)
            self._check(pinned, f"hold {hold_id} pins {hold.floor}, and the floor is {new.gc_floor}")

    def _check_holds(self, old: Head, new: Head) -> None:
        """Check that counters only grow, that a stamp belongs to one counter, and that older releases are refused."""
        missing = set(old.required_features) - set(new.required_features)
        self._check(not missing, f"required features {missing} were taken out")
        for hold_id, hold in new.holds.items():
            known = hold.ttl_ms == 0 or COUNTED_HOLDS in new.required_features
            self._check(known, f"hold {hold_id} counts renewals, and {COUNTED_HOLDS} is not required")
            before = old.holds.get(hold_id)
            if before is None or before == hold:
                continue
            grew = hold.renewals > before.renewals
            self._check(
                grew or hold.renewals == before.renewals, f"hold {hold_id} went back to renewal {hold.renewals}"
            )
            kept = grew or before.stamp_ms is None or hold.stamp_ms is not None
            self._check(kept, f"hold {hold_id} lost its stamp without a renewal")

    def _check_trim(self, old: Head, new: Head) -> None:
        point = new.first_sequence
        if point == old.first_sequence:
            return
        readers = [self.frontier(name) for name in new.groups]
        if new.owner is not None:
            readers.append(old.first_sequence if new.owner.acked is None else new.owner.acked + 1)
        allowed = new.next_sequence if self._retention else min(readers, default=old.first_sequence)
        self._check(point <= allowed, f"trimmed to {point}, and a reader is at {allowed}")

    def _live_cursors(self) -> set[str]:
        return {cursor_key(name, group.generation) for name, group in self._groups().items()}

    def _groups(self) -> Mapping[str, Group]:
        return {} if self.head is None else self.head.groups

    def _check(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.violations.append(otherwise)
            raise AssertionError(otherwise)

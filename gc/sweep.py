"""Deleting: everything named below a floor, and cursors of generations that are gone."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from forebay.buffer.base.errors import StoreError
from forebay.buffer.base.names import ulid_in
from forebay.buffer.groups import parse_cursor_key
from forebay.buffer.manifest.state import CURSORS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from forebay.buffer.manifest import Head
    from forebay.buffer.store import ObjectStore
    from forebay.gc.settings import Settings

Reachable: TypeAlias = "Callable[[str, str], Collection[str]]"

DELETED_AT_ONCE: Final = 1000
"""The most keys that S3 takes in one request."""
REPORTED_FAILURES: Final = 1000


class Sweep:
    """One pass of deletions. It holds one request's worth of keys, however many objects there are.

    Nothing that fails ends it: failures are kept by key, and the next pass meets the same objects again.
    """

    def __init__(self, store: ObjectStore, settings: Settings, *, dry_run: bool) -> None:
        self.url: str = store.url
        self._store = store
        self._events = settings.events
        self.dry_run = dry_run
        self._is_stopped = settings.is_stopped
        self.deleted: int = 0
        """So far; in a dry run, what would have been."""
        self.failed: dict[str, StoreError] = {}
        """The first thousand."""
        self.failed_count: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether every deletion so far succeeded."""
        return not (self.dry_run or self.failed_count or self._is_stopped())

    def delete_below(self, folder: str, floor: str, *, written_before_ms: int | None = None) -> None:
        """Delete what lies directly in a folder and is named by a ULID below the floor.

        Args:
            folder: the folder's key.
            floor: names come in order, so the listing ends here.
            written_before_ms: spare what the store says it was given later.
        """
        self._delete(folder, self._below(f"{folder}/", floor, written_before_ms))

    def delete_unreachable(self, folder: str, first: str, end: str, reachable: Reachable, *, ending: str = "") -> None:
        """Delete what lies directly in a folder, is named by a ULID from `first` up to `end`, and cannot be reached.

        Args:
            folder: the folder's key.
            first: where the listing starts.
            end: where it ends; nothing named below this may be newly referred to.
            reachable: returns the keys that can be reached, for the first and the last name of a page of the listing.
            ending: delete only keys that end with this.
        """
        unreachable = self._unreachable(f"{folder}/", first, end, reachable)
        self._delete(folder, (key for key in unreachable if key.endswith(ending)))

    def _unreachable(self, prefix: str, first: str, end: str, reachable: Reachable) -> Iterator[str]:
        named = self._below(prefix, end, None, start_after=prefix + first)
        while part := list(islice(named, DELETED_AT_ONCE)):
            bounds = [ulid_in(key) or first for key in (part[0], part[-1])]
            kept = reachable(*bounds)
            yield from (key for key in part if key not in kept)  # guard: never sweep what is reachable

    def _below(self, prefix: str, floor: str, written_before_ms: int | None, *, start_after: str = "") -> Iterator[str]:
        for found in self._store.list(prefix, start_after=start_after):
            name = found.key.removeprefix(prefix)
            if name >= floor:  # guard: delete only below the floor
                return
            # What is deeper down was put there by somebody else: the listed names would not even be in order.
            if "/" in name or ulid_in(name) is None:  # guard: delete only ULID names directly in the folder
                continue
            # guard: keep an object the store received recently
            if written_before_ms is None or found.modified_ms < written_before_ms:
                yield found.key

    def delete_old_cursors(self, known: Head, read_head: Callable[[], Head]) -> None:
        """Delete cursors of generations that are in no head any more.

        A group is written to the head before its cursor is made. So a cursor was listed, and *then* a head read that
        does not know its generation, only if that generation has ended, and none ever comes back. A head read before
        the listing would not do: the group may be new.
        """
        self._delete(CURSORS, self._dead_cursors(known, read_head))

    def _dead_cursors(self, known: Head, read_head: Callable[[], Head]) -> Iterator[str]:
        listed = (found.key for found in self._store.list(f"{CURSORS}/"))
        suspects = (key for key in listed if _is_dead(key, known))
        while part := list(islice(suspects, DELETED_AT_ONCE)):
            head = read_head()  # guard: read the head again before deleting cursors
            yield from [key for key in part if _is_dead(key, head)]

    def _delete(self, folder: str, keys: Iterable[str]) -> None:
        chunk: list[str] = []
        if self._is_stopped():
            return
        try:
            for key in keys:
                chunk.append(key)
                if len(chunk) == DELETED_AT_ONCE:
                    self._send(chunk)
                    chunk = []
                    if self._is_stopped():
                        return
        except StoreError as error:
            self._note_failure(f"{folder}/", error)
        self._send(chunk)

    def _send(self, chunk: list[str]) -> None:
        if not chunk or self.dry_run:
            self.deleted += len(chunk)
            return
        if self._events is not None:
            # guard: record the deletion before it starts
            self._events.record("delete.started", self.url, objects=chunk)
        try:
            failed = self._store.delete(chunk)
        except StoreError as error:
            failed = dict.fromkeys(chunk, error)
        if self._events is not None:
            reasons = {key: str(reason) for key, reason in failed.items()}
            self._events.record("delete.finished", self.url, objects=chunk, failed=reasons)
        for key, reason in failed.items():
            self._note_failure(key, reason)
        self.deleted += len(chunk) - len(failed)

    def _note_failure(self, key: str, error: StoreError) -> None:
        self.failed_count += 1
        if len(self.failed) < REPORTED_FAILURES:
            self.failed[key] = error


def _is_dead(key: str, head: Head) -> bool:
    cursor = parse_cursor_key(key)
    if cursor is None:
        return False
    name, generation = cursor
    # guard: keep the cursor of the current generation
    return name not in head.groups or head.groups[name].generation != generation

"""A sink that keeps the commits it gets, and returns the answers that a test has chosen."""

from __future__ import annotations

from collections import deque
from threading import Condition
from typing import TYPE_CHECKING, TypeAlias

from forebay.runtime.contract import Commit, CommitIdentity, Committed, Sink

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.runtime.contract import Answer, Combining

Reply: TypeAlias = "tuple[bool, Answer | BaseException]"
"""Whether a commit is applied, and the answer to return or the exception to raise."""


class LedgerSink(Sink):
    """Keeps commits by their identity, each once. By default it applies every commit and answers `Committed`.

    Args:
        replies: for each of the first commits, whether it is applied, and the answer to return or exception to raise.
        in_order: whether commits of a source come one at a time.
        combining: how the runtime combines batches.
    """

    def __init__(self, *replies: Reply, in_order: bool = False, combining: Combining | None = None) -> None:
        self.in_order = in_order
        self.combining = combining
        self.rows: dict[CommitIdentity, list[object]] = {}
        """The column `value` of every applied commit, or the whole rows if there is no such column."""
        self.calls: list[CommitIdentity] = []
        """The identities that `commit` was called with, recorded when each call began."""
        self.asked: list[CommitIdentity] = []
        """The identities that `check_committed` was called with."""
        self._replies = deque(replies)
        self._changed = Condition()
        self._open = True

    def commit(self, commit: Commit) -> Answer:
        """Do and return what the next reply says; without one, apply the commit and return `Committed`."""
        with self._changed:
            self.calls.append(commit.identity)
            self._changed.notify_all()
            applied, said = self._replies.popleft() if self._replies else (True, Committed())
            while not self._open:
                self._changed.wait()
            if applied:
                rows = commit.table["value"] if "value" in commit.table.column_names else commit.table
                self.rows.setdefault(commit.identity, rows.to_pylist())
        if isinstance(said, BaseException):
            raise said
        return said

    def check_committed(self, identity: CommitIdentity) -> bool:
        """Return whether the commit was applied."""
        with self._changed:
            self.asked.append(identity)
            return identity in self.rows

    def hold(self) -> None:
        """Block commits until `release` is called."""
        with self._changed:
            self._open = False

    def release(self) -> None:
        """Let blocked commits continue."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def wait_for_calls(self, count: int, timeout: float = 600.0) -> bool:
        """Wait until `commit` was called `count` times in all; return False if `timeout` seconds passed before."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.calls) >= count, timeout)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The first and last sequence of every applied commit, sorted."""
        return sorted((identity.first, identity.last) for identity in self.rows)

    def values(self, identities: Iterable[CommitIdentity] | None = None) -> list[object]:
        """Return the rows of all applied commits, or of those with these identities, in the order of sequences."""
        chosen = self.rows if identities is None else identities
        return [row for identity in sorted(chosen, key=lambda found: found.first) for row in self.rows[identity]]

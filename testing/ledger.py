"""A sink that keeps what it was given, and returns the answers that a test has chosen."""

from __future__ import annotations

from collections import deque
from threading import Condition
from typing import TYPE_CHECKING, TypeAlias

from forebay.runtime.contract import Commit, CommitIdentity, Committed, Sink

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.runtime.contract import Answer, Combining

Reply: TypeAlias = "tuple[bool, Answer | BaseException]"
"""Whether a commit is applied, and what is said of it."""


class LedgerSink(Sink):
    """Keeps commits by their identity, each once. By default everything is committed.

    Args:
        replies: for the first commits, whether each is applied, and what is answered or raised.
        in_order: whether commits of a source come one at a time.
        combining: how batches are combined.
    """

    def __init__(self, *replies: Reply, in_order: bool = False, combining: Combining | None = None) -> None:
        self.in_order = in_order
        self.combining = combining
        self.rows: dict[CommitIdentity, list[object]] = {}
        """The column `value` of every commit applied, or the whole rows if there is none."""
        self.calls: list[CommitIdentity] = []
        """Every call of `commit`, as it began."""
        self.asked: list[CommitIdentity] = []
        """Every call of `check_committed`."""
        self._replies = deque(replies)
        self._changed = Condition()
        self._open = True

    def commit(self, commit: Commit) -> Answer:
        """Apply it and answer, as told."""
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
        """Return whether it was applied."""
        with self._changed:
            self.asked.append(identity)
            return identity in self.rows

    def hold(self) -> None:
        """Let commits hang, until `release`."""
        with self._changed:
            self._open = False

    def release(self) -> None:
        """Let commits that hang go on."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def wait_for_calls(self, count: int, timeout: float = 600.0) -> bool:
        """Wait until `commit` was called so often in all, and return whether it was."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.calls) >= count, timeout)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The sequences of every commit applied, sorted."""
        return sorted((identity.first, identity.last) for identity in self.rows)

    def values(self, identities: Iterable[CommitIdentity] | None = None) -> list[object]:
        """All rows in the order of their sequences."""
        chosen = self.rows if identities is None else identities
        return [row for identity in sorted(chosen, key=lambda found: found.first) for row in self.rows[identity]]

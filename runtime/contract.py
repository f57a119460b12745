"""What the runtime and a sink promise each other (rfcs/0007).

The runtime gives a sink one `Commit` after the other, or several at once if the sink does not ask for order. Each has
an identity that is the same on every replay, in this process or in the next one, so a sink that keeps identities
together with its data can be exactly once. The sink answers what came of it:

    Committed        it is in the target, now or since an earlier try; the frontier may pass it
    NotCommitted     it is not, and will not come later: the same commit is tried again after a pause
    MaybeCommitted   nobody knows: `check_committed` decides between the two above
    Fatal            trying again cannot help: the runtime halts, or, if the data is at fault, follows its poison policy

An exception is an answer too. What forebay's own errors say is taken at their word; any other exception means
`MaybeCommitted`, because it may have been raised after the effect.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from forebay.buffer.base.checks import check_seconds, check_whole
from forebay.buffer.base.lifecycle import Closing

if TYPE_CHECKING:
    from forebay.buffer.read.fetch import Batch

Decoder: TypeAlias = Callable[["Batch"], pa.Table]
"""Turns a batch into rows, in a worker thread: called once a batch, never once an entry.

It must give the same rows for the same batch each time, or a replay is not one. If it raises, entries of the batch are
bad. `forebay.runtime.decoders.BadEntry` names them; after any other exception the decoder is called with parts of the
batch (`Batch.select`) to find them. They are poison, and the rows of the others are committed. If it raises
`Unavailable`, `Timeout` or `Unknown` of `forebay`, the batch is fetched and decoded again later.
"""


@dataclass(frozen=True, slots=True)
class CommitIdentity:
    """Which batches a commit carries, and for which reader: the same on every replay, and never for anything else.

    A group that was reset, or deleted and made again, reads under a new generation: that is no replay. The unnamed
    consumer has neither group nor generation, and cannot be reset.
    """

    source: str
    """The buffer: its id, 32 hexadecimal digits, that moves with it (of a version 1 buffer, a hash of its URL)."""
    group: str
    """The reader; empty for the unnamed consumer."""
    generation: str
    """Which of the group's lives; 32 hexadecimal digits, empty for the unnamed consumer."""
    first: int
    """The first sequence. Retention may have dropped batches from there on."""
    last: int
    """The last sequence, included."""

    @property
    def reader(self) -> str:
        """Who reads, apart from what: the same for all commits of one source, for sinks that keep its last sequence."""
        return f"{self.source}.{self.group}.{self.generation}" if self.group else self.source

    @property
    def name(self) -> str:
        """The whole identity as text that can be part of a file's name or an object's key, and sorts by sequence."""
        return f"{self.reader}.{self.first:020}-{self.last:020}"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Commit:
    """What a sink is to make durable as a whole or not at all."""

    identity: CommitIdentity
    url: str
    """The buffer's URL, for people to read; it holds no credentials."""
    batches: tuple[Batch, ...]
    """The batches in order. Batches and entries that the poison policy took out are missing here and in `table`."""
    table: pa.Table
    """The rows that the decoder made of the batches, in order; there is always at least one."""
    replay: bool = False
    """Whether an earlier process may have committed it. `check_committed` was asked, and said no."""

    def __len__(self) -> int:
        """How many rows there are."""
        return int(self.table.num_rows)

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Committed:
    """It is in the target, whole, by this call or by an earlier one."""


@dataclass(frozen=True, slots=True)
class NotCommitted:
    """Nothing of it is in the target, nor will it arrive there later. It will be tried again."""

    reason: str
    """For people: it is shown while the runtime waits."""


@dataclass(frozen=True, slots=True)
class MaybeCommitted:
    """It may be in the target. `check_committed` is asked until it can tell."""

    reason: str
    """For people: it is shown while the runtime waits."""


@dataclass(frozen=True, slots=True)
class Fatal:
    """Nothing of it is in the target, and trying again cannot help."""

    reason: str
    """For people: the runtime raises it."""
    poison: bool = False
    """Whether it is the data of this commit that can never be taken, so that others may go on without it."""
    rows: Mapping[int, str] = field(default_factory=dict)
    """If it is poison: why each row at fault is refused, by its place in `Commit.table`. The commit is then given again
    without them. Empty if all rows are at fault, or if the sink cannot tell which."""


Answer: TypeAlias = Committed | NotCommitted | MaybeCommitted | Fatal


@dataclass(frozen=True, slots=True)
class Combining:
    """How contiguous batches are combined into one commit, for sinks that work best with few large commits.

    It needs a group: the group's cursor records which batches belong together before they are committed, so a replay
    combines the same ones. The unnamed consumer cannot record this, so each of its commits has one batch.
    """

    target_bytes: int
    """Size of the batches, before compression (by the manifest's facts), at which a commit is closed."""
    max_seconds: float = 60.0
    """Maximum time that the first batch of a commit waits for more."""

    def __post_init__(self) -> None:
        check_whole(self.target_bytes, "target_bytes", least=1)
        check_seconds(self.max_seconds, "max_seconds")


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """What a sink would do with rows of a schema; every text is for people to read."""

    target: str
    """What is there now."""
    changes: tuple[str, ...] = ()
    """What the first commit changes, apart from adding rows: a table that it creates, columns that it adds."""
    warnings: tuple[str, ...] = ()
    """Columns that some of the values may not fit into. A row with such a value is poison."""
    conflicts: tuple[str, ...] = ()
    """Columns that no value fits into. Every row is poison."""


class Sink(Closing, ABC):
    """Where rows go. The caller that creates a sink closes it, after the runtime has stopped.

    All methods are called from threads of the runtime.
    """

    in_order: bool = False
    """Whether commits of one source come one at a time, in the order of their sequences (sources still beside one
    another). Else several of one source are under way at once, in any order."""
    combining: Combining | None = None
    """How batches are to be combined; None for one commit a batch."""

    @abstractmethod
    def commit(self, commit: Commit) -> Answer:
        """Make the commit durable as a whole, and return the outcome.

        A commit may be given again: after `NotCommitted`, after `MaybeCommitted` that was found not to be there, and by
        another process, even while this call is still under way.
        """

    @abstractmethod
    def check_committed(self, identity: CommitIdentity) -> bool:
        """Return whether the commit of this identity is in the target, whole.

        Asked after `MaybeCommitted`, and before a commit that an earlier process may have made. A sink that cannot tell
        returns False, and is then at least once. An exception means "not known yet", and it is asked again.
        """

    def plan(self, schema: pa.Schema) -> SinkPlan | None:  # noqa: ARG002
        """Return what commits of rows of this schema would do, and change nothing; None if the sink cannot tell.

        The runtime asks this before it reads a source, if it knows the schema of the rows. So a sink can refuse rows
        that it could never commit, before anything is read.

        Raises:
            InvalidInput, Unsupported: such rows can never be committed. The message says why, and what to do.
            Unavailable: the target cannot be reached now. The runtime starts all the same.
        """
        return None

    def close(self) -> None:
        """Let go of what the sink holds. Closing again does nothing."""

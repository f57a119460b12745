"""The progress of one delta, shared by the handles of all its writes, and the callbacks that wait for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Condition
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import RLock


class Waitable(Protocol):
    """An accepted write or flush that can be waited for. Callers see it as a `Handle`."""

    epoch: int | None
    record: DeltaRecord | None

    def standing(self, level: int) -> BaseException | bool:
        """Return True once `level` is reached, the error if it never will be, else False.

        Without the lock, only True is certain.
        """


class Watcher(NamedTuple):
    """A callback to call when a handle reaches a level or fails."""

    level: int
    handle: Waitable
    callback: Callable[[Any], object]


@dataclass(slots=True, eq=False)
class DeltaRecord:
    """The progress of one delta. The coordinator's lock guards every field."""

    epochs: range
    """Set when the delta is frozen; until then an empty range at its first epoch."""
    keeps: bool = False
    """Whether at least one of its writes was applied. If not, there is nothing to flush."""
    cost: int = 0
    frozen: Any = None
    flushed: bool = False
    """Whether `flush_delta` is over, or there was nothing to flush."""
    receipt: Any = None
    wants_storage: bool = False
    """Whether a flush command asked for storage durability up to here."""
    passed: int = 0
    """The highest level whose watermark has gone past this delta, rejected or not."""
    error: BaseException | None = None
    failed: int = 0
    """The lowest level this delta will never reach, if there is an error."""
    watchers: list[Watcher] = field(default_factory=list)
    changed: Condition | None = None

    def condition(self, lock: RLock) -> Condition:
        """The condition to wait on for this delta; most deltas never need one."""
        if self.changed is None:
            self.changed = Condition(lock)
        return self.changed

    def error_at(self, level: int) -> BaseException | None:
        """Return the delta's error if it was rejected at `level` or a lower one; else None."""
        return self.error if self.error is not None and level >= self.failed else None

    @property
    def needs_storage(self) -> bool:
        """Whether it needs `flush_storage`. A rejected or empty delta does not, unless a command asked for it."""
        return self.wants_storage or (self.keeps and self.error is None)

"""The shared fate of the writes of one delta, which all their handles look at, and who waits for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Condition
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import RLock


class Waitable(Protocol):
    """What was accepted and can be waited for: a write or a flush. Callers know it as a `Handle`."""

    epoch: int | None
    record: DeltaRecord | None

    def standing(self, level: int) -> BaseException | bool:
        """True once `level` is reached, the error if it never will be, else False: certain only under the lock."""


class Watcher(NamedTuple):
    """Someone to tell when a handle reaches a level or fails."""

    level: int
    handle: Waitable
    callback: Callable[[Any], object]


@dataclass(slots=True, eq=False)
class DeltaRecord:
    """How far one delta has come. The coordinator's lock guards every field."""

    epochs: range
    """Known when the delta is frozen; until then empty, at its start."""
    keeps: bool = False
    """Whether some write of it was applied: if not, there is nothing to flush."""
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
        """The error for who asks for `level`, if the delta was rejected at it or below."""
        return self.error if self.error is not None and level >= self.failed else None

    @property
    def needs_storage(self) -> bool:
        """Whether durability has to come from `flush_storage`; what was rejected or empty is merely passed over."""
        return self.wants_storage or (self.keeps and self.error is None)

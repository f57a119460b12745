"""Watches the owner of a group, so that another process takes over only when the owner is gone (rfcs/0005)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay.buffer.base.errors import Fenced
from forebay.buffer.groups import Cursor, CursorState, check_group_name, open_cursor
from forebay.buffer.manifest import Queue

if TYPE_CHECKING:
    from forebay.buffer.base.clock import Clock
    from forebay.buffer.manifest.register import Register, Snapshot
    from forebay.buffer.store import ObjectStore

HEARTBEAT_SECONDS: Final = 10.0
"""An owner that has not written its cursor for this long writes it, to show that it lives."""
TAKEOVER_SECONDS: Final = 30.0
"""An owner whose cursor has not changed for this long, by the clock of a standby, is gone."""


class Standby:
    """Watches the cursor of a group. Changes nothing.

    Args:
        store: the buffer; of a topic, the partition whose cursor is the group's lease.
        group: the group.
        clock: measures for how long the owner gave no sign of life.
    """

    def __init__(self, store: ObjectStore, group: str, clock: Clock) -> None:
        self.group: str = check_group_name(group)
        self.url: str = store.url
        self._queue = Queue(store, role="standby", clock=clock)
        self._clock = clock
        self.start_again()

    def start_again(self) -> None:
        """Forget what was seen, after a claim that failed: the group may have been reset, too."""
        self.owner: str = ""
        """Who has the group, for people; empty if nobody has."""
        self.saw_life: bool = False
        """Whether the owner, or one that came after it, gave a sign of life between two looks."""
        self._seen: CursorState | None = None
        self._generation: str | None = None
        self._register: Register[Cursor] | None = None
        self._snapshot: Snapshot[Cursor] | None = None
        self._unchanged = 0.0
        """For how many seconds the cursor did not change, as far as reads prove it."""
        self._read_at: float | None = None
        """When the last read ended; None if it failed."""

    def look(self, pause: float) -> bool:
        """Read the cursor, and return whether the group has no owner, or one that is gone.

        Args:
            pause: the intended time between two looks, in seconds. More than twice of it between two looks does not
                count: this process may have been stopped, and the store out of reach for the owner meanwhile.
        """
        began = self._clock.monotonic()
        last_read_at, self._read_at = self._read_at, None  # guard: an outage of the store does not count
        cursor = self._read()
        state = CursorState(self._generation, None if cursor is None else cursor.number)
        owned = cursor is not None and cursor.claim_id != ""
        if state != self._seen:
            self.saw_life = owned and self._seen is not None
            self._seen, self._unchanged = state, 0.0  # guard: count anew when the cursor changes
        elif last_read_at is not None:
            self._unchanged += min(began - last_read_at, 2 * pause)  # guard: a pause of the standby hardly counts
        self.owner = _name(cursor) if owned else ""
        self._read_at = self._clock.monotonic()
        return not owned or self._unchanged >= TAKEOVER_SECONDS

    def check_claim(self, found: CursorState) -> None:
        """Return if a claim would replace the very state that was watched: for `GroupReader`.

        Raises:
            Fenced: the cursor has changed: its owner lives, or another process came first.
        """
        seen = self._seen
        # guard: take over only the state that was watched
        if seen is None or found.number != seen.number or seen.generation not in (None, found.generation):
            raise Fenced(
                f"group {self.group} of {self.url} is in use, since its cursor has changed since the last "
                "look; wait for its owner to stop"
            )

    def _read(self) -> Cursor | None:
        if self._register is None:
            group = self._queue.read().groups.get(self.group)
            if group is None:
                return None
            self._generation = group.generation
            self._register = open_cursor(self._queue.store, self.group, group.generation, clock=self._clock)
        self._snapshot = self._register.read(self._snapshot)
        return self._snapshot.value


def _name(cursor: Cursor | None) -> str:
    return "a process that is not known" if cursor is None or cursor.owner is None else str(cursor.owner)

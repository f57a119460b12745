"""Shows standbys that a runtime is alive while it has nothing to acknowledge (rfcs/0005)."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from forebay.buffer.base.errors import Fenced
from forebay.buffer.base.renewals import Renewal
from forebay.buffer.standby import HEARTBEAT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.consumer import Consumer

_log = logging.getLogger("forebay.runtime")

_PATIENCE = HEARTBEAT_SECONDS / 4


class Heartbeat:
    """Writes the cursor of a consumer's group whenever it has not been written for ten seconds, until `stop`.

    Args:
        clock: where time comes from.
        on_fenced: called once if another process has taken over.
    """

    def __init__(self, clock: Clock, on_fenced: Callable[[Fenced], None]) -> None:
        self._clock = clock
        self._on_fenced = on_fenced
        self._renewal: Renewal | None = None

    def start(self, consumer: Consumer) -> None:
        """Begin, with the consumer whose cursor is the lease of the group. Without a group, this does nothing."""
        if consumer.reader.group:
            self._renewal = Renewal(self._clock, _PATIENCE, partial(self._beat, consumer))
            self._renewal.start(self._clock.monotonic() + HEARTBEAT_SECONDS)

    def stop(self) -> None:
        """Stop writing. One write may still be in progress."""
        if self._renewal is not None:
            self._renewal.stop()

    def _beat(self, consumer: Consumer) -> float | None:
        try:
            return consumer.show_alive(HEARTBEAT_SECONDS)
        except Fenced as error:
            self._on_fenced(error)
            return None
        except BaseException:  # noqa: BLE001 - after any error, try again, or a standby would take over
            _log.warning("%s: the heartbeat failed; trying again", consumer.url, exc_info=True)
            return self._clock.monotonic() + _PATIENCE

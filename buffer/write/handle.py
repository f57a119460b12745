"""The handle of one call of `produce`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from forebay.buffer.coordinator import WriteHandle

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ProduceHandle(WriteHandle[None], eq=False, gc=False):
    """One call of `produce` on its way."""

    @property
    def ingestion_time_ms(self) -> int | None:
        """The time that readers see for these entries: when `produce` took them, in milliseconds since 1970.

        None until they are put into a batch, which happens before they are durable. It stays None for a repeated call
        whose number was durable already.
        """
        # `outcome` holds the call until then, and the error after a failure. Checking its type here costs other calls
        # nothing.
        return self.outcome if isinstance(self.outcome, int) else None

    @property
    def ingestion_time(self) -> datetime | None:
        """The same as a datetime in UTC."""
        time_ms = self.ingestion_time_ms
        return None if time_ms is None else _EPOCH + timedelta(milliseconds=time_ms)

    def _answer(self) -> None:
        return None

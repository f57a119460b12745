"""The audit trail: a record of what the collector and the runtime did to a buffer, for operators."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from forebay.buffer.base import metrics
from forebay.buffer.base.errors import ForebayError
from forebay.buffer.eventlog.model import Event
from forebay.buffer.eventlog.names import check_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from forebay.buffer.eventlog.log import EventLog
    from forebay.buffer.eventlog.model import Record

_log = logging.getLogger("forebay.eventlog")

AUDIT_TOPIC: Final = "forebay.audit"
_READ_AT_ONCE: Final = 1000


class AuditTrail:
    """Records what happens to buffers, in one topic of an event log. Pass it to a collector or a runtime.

    If an event cannot be recorded, that is logged and counted, and the work goes on.

    Args:
        log: the event log; the caller closes it.
        topic: the topic, of one partition.
    """

    def __init__(self, log: EventLog, topic: str = AUDIT_TOPIC) -> None:
        self._log = log
        self._topic = check_topic(topic)

    def record(self, kind: str, buffer: str, *, objects: Sequence[str] = (), **details: Any) -> None:
        """Append what happened to a buffer.

        Args:
            kind: what it was, such as `delete.started`.
            buffer: the buffer's URL.
            objects: the keys of the affected objects, relative to the buffer.
            details: any further details; JSON must be able to hold them.
        """
        payload = {"buffer": buffer, "objects": list(objects), **details}
        try:
            self._log.append(self._topic, Event(kind, payload))
        except ForebayError:
            metrics.events_lost.add(1, {"buffer": self._log.url})
            _log.warning("%s: %s of %s could not be written down", self._log.url, kind, buffer, exc_info=True)


def object_history(log: EventLog, location: str, *, topic: str = AUDIT_TOPIC) -> Iterator[Record]:
    """Yield the records of an audit trail that concern an object, oldest first.

    Args:
        log: the event log.
        location: the object's URL, or its key within its buffer.
        topic: the audit trail's topic.
    """
    after = None
    while records := log.read_range(topic, after=after, limit=_READ_AT_ONCE):
        for record in records:
            if _concerns(record.event.payload, location):
                yield record
        after = records[-1].offset


def _concerns(payload: Any, location: str) -> bool:
    if not isinstance(payload, dict):
        return False
    objects = payload.get("objects") or []
    return location in objects or location.removeprefix(f"{payload.get('buffer')}/") in objects

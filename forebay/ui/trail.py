"""What the audit trail tells of a buffer: sweeps, dead letters, fences and halts."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from forebay.buffer.eventlog import AUDIT_TOPIC

if TYPE_CHECKING:
    from forebay.buffer.eventlog import EventLog
    from forebay.buffer.eventlog.model import Record

KEPT_EVENTS: Final = 50
LOOKED_BACK: Final = 2000
"""Events before the last one that the first look reads."""
_READ_AT_ONCE: Final = 500
_SAME_SWEEP_MS: Final = 60_000
"""A sweep deletes a thousand objects at a time; so long after one another, two requests are two sweeps."""
_LONGEST_TEXT: Final = 500


@dataclass(slots=True)
class Sweep:
    """What the collector deleted in one go, as far as it has told."""

    started_ms: int
    finished_ms: int | None = None
    """None while it goes on, or if the collector died."""
    deleted: int = 0
    failed: int = 0


class Trail:
    """Follows the audit trail of one buffer, or of a topic and its partitions."""

    def __init__(self, log: EventLog, url: str) -> None:
        self.url = log.url
        self._log = log
        self._buffer = url
        self._after: int | None = None
        self._events: deque[dict[str, Any]] = deque(maxlen=KEPT_EVENTS)
        self._sweep: Sweep | None = None
        self._stopped: dict[str, dict[str, Any]] = {}

    def look(self) -> dict[str, Any]:
        """Read what was appended since, and return what is known, the newest event first."""
        if self._after is None:
            self._after = max(-1, (self._log.latest(AUDIT_TOPIC) or 0) - LOOKED_BACK)
        while records := self._log.read_range(AUDIT_TOPIC, after=self._after, limit=_READ_AT_ONCE):
            for record in records:
                self._take(record)
            self._after = records[-1].offset
        return {
            "url": self.url,
            "events": list(reversed(self._events)),
            "stopped": list(self._stopped.values()),
            "sweep": None if self._sweep is None else asdict(self._sweep),
        }

    def _take(self, record: Record) -> None:
        payload = record.event.payload
        if not isinstance(payload, dict) or not self._concerns(payload.get("buffer")):
            return
        time_ms = record.event.time_ms or 0
        kind = record.event.kind
        if kind in {"delete.started", "delete.finished"}:
            self._note_deletion(payload, time_ms, finished=kind == "delete.finished")
            if kind == "delete.started":
                return  # its end says more, and a start without one is the sweep's to show
        shown = {"time_ms": time_ms, "kind": kind, "buffer": payload["buffer"], **_tell(kind, payload)}
        self._events.append(shown)
        if kind.startswith("runtime."):
            reader = f"{payload['buffer']} {payload.get('group', '')}"
            self._stopped.pop(reader, None)
            if kind != "runtime.resumed":
                self._stopped[reader] = shown

    def _concerns(self, buffer: object) -> bool:
        return isinstance(buffer, str) and (buffer == self._buffer or buffer.startswith(f"{self._buffer}/"))

    def _note_deletion(self, payload: dict[str, Any], time_ms: int, *, finished: bool) -> None:
        sweep = self._sweep
        if sweep is None or (not finished and time_ms - (sweep.finished_ms or sweep.started_ms) > _SAME_SWEEP_MS):
            sweep = self._sweep = Sweep(time_ms)
        if finished:
            failed = len(payload.get("failed") or ())
            sweep.finished_ms = time_ms
            sweep.failed += failed
            sweep.deleted += len(payload.get("objects") or ()) - failed
        else:
            sweep.finished_ms = None


def _tell(kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    """An event in words, and how grave it is."""
    group = str(payload.get("group") or "")
    reader = group or "the unnamed consumer"
    error = str(payload.get("error") or "")[:_LONGEST_TEXT]
    level, text = "info", error
    match kind:
        case "runtime.resumed":
            after = payload.get("after")
            text = f"{reader} begins to read" if after is None else f"{reader} goes on after batch {after}"
        case "runtime.fenced":
            level, text = "warning", f"{reader} was fenced: {error}"
        case "runtime.halted":
            level, text = "critical", f"{reader} halted: {error}"
        case "dead_letter":
            level, text = "warning", f"batch {payload.get('sequence')}, read by {reader}, is a dead letter: {error}"
        case "delete.finished":
            failed = len(payload.get("failed") or ())
            text = f"{len(payload.get('objects') or ()) - failed} objects deleted"
            if failed:
                level, text = "warning", f"{text}, {failed} could not be"
    return {"group": group, "level": level, "text": text}

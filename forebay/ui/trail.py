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
LOOKED_BACK: Final = 1000
"""How many events before the end of the trail the first look reads."""
READ_AT_ONCE: Final = 200
"""Maximum number of events of one look. In object storage each may be a request, and the buffer must not wait."""
_SAME_SWEEP_MS: Final = 60_000
"""Requests that are further apart belong to two sweeps. One sweep sends a request for each thousand objects."""
_LONGEST_TEXT: Final = 500


@dataclass(slots=True)
class Sweep:
    """What one sweep deleted, as far as the audit trail says."""

    started_ms: int
    finished_ms: int | None = None
    """None while the sweep runs, or if the collector died."""
    deleted: int = 0
    failed: int = 0


class Trail:
    """Follows the audit trail of one buffer, or of a topic and its partitions."""

    def __init__(self, log: EventLog, url: str) -> None:
        self.url: str = log.url
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
        for record in self._log.read_range(AUDIT_TOPIC, after=self._after, limit=READ_AT_ONCE):
            self._take(record)
            self._after = record.offset
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
        if kind == "delete.started":
            self._begin_deletion(time_ms)
            return  # its end says more; if there is none, the sweep is shown as begun
        if kind == "delete.finished" and self._end_deletion(payload, time_ms):
            self._events.pop()  # the same sweep: one line for all of it
        shown = {"time_ms": time_ms, "kind": kind, "buffer": payload["buffer"], **self._tell(kind, payload)}
        self._events.append(shown)
        if kind.startswith("runtime."):
            reader = f"{payload['buffer']} {payload.get('group', '')}"
            self._stopped.pop(reader, None)
            if kind != "runtime.resumed":
                self._stopped[reader] = shown

    def _concerns(self, buffer: object) -> bool:
        return isinstance(buffer, str) and (buffer == self._buffer or buffer.startswith(f"{self._buffer}/"))

    def _begin_deletion(self, time_ms: int) -> None:
        sweep = self._sweep
        if sweep is None or time_ms - (sweep.finished_ms or sweep.started_ms) > _SAME_SWEEP_MS:
            self._sweep = Sweep(time_ms)
        else:
            sweep.finished_ms = None

    def _end_deletion(self, payload: dict[str, Any], time_ms: int) -> bool:
        """Add to the sweep, and return whether the last event was of the same sweep."""
        sweep = self._sweep = self._sweep or Sweep(time_ms)
        last = self._events[-1] if self._events else {}
        failed = len(payload.get("failed") or ())
        sweep.finished_ms = time_ms
        sweep.failed += failed
        sweep.deleted += len(payload.get("objects") or ()) - failed
        return last.get("kind") == "delete.finished" and last["time_ms"] >= sweep.started_ms

    def _tell(self, kind: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Return the text of an event, and its severity."""
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
                place = f", {payload['entries']}" if payload.get("entries") else ""
                text = f"batch {payload.get('sequence')}{place}, read by {reader}, became a dead letter: {error}"
                level = "warning"
            case "delete.finished" if self._sweep is not None:
                deleted = self._sweep.deleted
                text = f"the collector deleted {deleted:,} {'object' if deleted == 1 else 'objects'}"
                if self._sweep.failed:
                    level, text = "warning", f"{text}, and {self._sweep.failed:,} could not be"
        return {"group": group, "level": level, "text": text}

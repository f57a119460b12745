"""One thread that looks at the buffer for all viewers, and what it has seen lately."""

from __future__ import annotations

import logging
from collections import deque
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, Final

from forebay.buffer.base.errors import Corrupt, Denied, ForebayError, NotFound, Unavailable
from forebay.buffer.base.waiting import wait_for
from forebay.buffer.format.type_names import format_fields
from forebay.buffer.inspect.stats import total
from forebay.ui.rates import Meter, Rates

if TYPE_CHECKING:
    from forebay.buffer.base.clock import Clock
    from forebay.buffer.inspect.stats import Total
    from forebay.ui.letters import Letters
    from forebay.ui.subject import Listed, Part, Subject
    from forebay.ui.trail import Trail

_log = logging.getLogger("forebay.ui")

KEPT_POINTS: Final = 900
"""Half an hour, at a look every two seconds."""
KEPT_READERS: Final = 8
"""Maximum number of readers in a point, those furthest behind: the page has this number of colours."""
NEWEST_BATCHES: Final = 12
SHOWN_COLUMNS: Final = 100
"""Maximum number of columns of a typed buffer that the page shows. It gets them with every look."""
_PATIENCE_SECONDS: Final = 15.0
"""After this time, a look counts as one that the store does not answer."""

_HINTS: Final[dict[type[ForebayError], str]] = {
    NotFound: "The page updates when something is written to this URL.",
    Denied: "Start the page again with credentials that may read this URL.",
    Unavailable: "The page keeps trying, and continues when the store answers again.",
    Corrupt: "Find out what happened before anything is written again: forebay verify tells more.",
}


class Sampler:
    """Looks every `interval` seconds, keeps a bounded history, and answers viewers from it alone."""

    def __init__(
        self, subject: Subject, *, trail: Trail | None, letters: Letters | None, interval: float, clock: Clock
    ) -> None:
        self._subject = subject
        self._trail = trail
        self._letters = letters
        self._interval = interval
        self._clock = clock
        self._started_ms = clock.now_ms()
        self._meter = Meter()
        self._changed = Condition()
        self._closed = False
        self._thread = Thread(target=self._run, name="forebay-ui-sampler", daemon=True)
        # What follows is replaced as a whole under the lock, never changed in place.
        self._points: deque[dict[str, Any]] = deque(maxlen=KEPT_POINTS)
        self._numbered = 0
        self._seen: dict[str, Any] | None = None
        self._error: dict[str, Any] | None = None
        self._looking_since: float | None = None

    def start(self) -> None:
        """Begin to look, at once and then every interval."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking. It does not wait for a look that is still under way, because the store may not answer."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_PATIENCE_SECONDS)

    def sample(self) -> None:
        """Look once."""
        self._looking_since = self._clock.monotonic()
        try:
            seen, point = self._look()
        except BaseException as error:  # noqa: BLE001 - whatever it is, a page that stands still without a word is worse
            if not isinstance(error, ForebayError):
                _log.exception("%s: looking failed", self._subject.url)
            with self._changed:
                since = self._error["since_ms"] if self._error else self._clock.now_ms()
                self._error = {**_explain(error), "since_ms": since}
        else:
            with self._changed:
                self._numbered += 1
                self._points.append({"number": self._numbered, **point})
                self._seen, self._error = seen, None
        finally:
            self._looking_since = None

    def state(self, after: int = 0) -> dict[str, Any]:
        """What a viewer is shown, with the points of the history that follow number `after`."""
        with self._changed:
            seen, error, points = self._seen, self._error or self._complain(), list(self._points)
        if error is None:
            condition = "starting" if seen is None else "live"
        elif seen is not None:
            condition = "stale"
        else:
            condition = "missing" if error["kind"] == "NotFound" else "broken"
        return {
            "url": self._subject.url,
            "condition": condition,
            "now_ms": self._clock.now_ms(),
            "started_ms": self._started_ms,
            "interval": self._interval,
            "error": error,
            "seen": seen,
            "points": [point for point in points if point["number"] > after],
        }

    def _complain(self) -> dict[str, Any] | None:
        since = self._looking_since
        waited = 0.0 if since is None else self._clock.monotonic() - since
        if waited < _PATIENCE_SECONDS:
            return None
        error = Unavailable(
            f"{self._subject.url}: the store has not answered for {waited:.0f} seconds; check the network and the store"
        )
        return {**_explain(error), "since_ms": self._clock.now_ms() - int(1000 * waited)}

    def _run(self) -> None:
        while True:
            self.sample()
            deadline = self._clock.monotonic() + self._interval
            if wait_for(self._clock, self._changed, lambda: self._closed, deadline):
                return

    def _look(self) -> tuple[dict[str, Any], dict[str, Any]]:
        parts = self._subject.look()
        known = [part.stats for part in parts if part.stats is not None]
        rates = self._meter.measure(known, self._clock.monotonic())
        summed = total(known)
        now_ms = self._clock.now_ms()
        seen = {
            "sampled_ms": now_ms,
            "is_topic": self._subject.is_topic,
            "total": summed.as_json(),
            "out": rates.done,
            "in": rates.taken_in,
            "writes_per_second": rates.writes,
            "parts": [_show_part(part) for part in parts],
            "schema": _show_schema(self._subject),
            "newest": [_show_batch(found) for found in self._subject.newest(NEWEST_BATCHES)],
            "trail": _look_beside(self._trail),
            "dead_letters": _look_beside(self._letters),
        }
        return seen, _point(now_ms, summed, rates)


def _explain(error: BaseException) -> dict[str, Any]:
    hint = next((hint for kind, hint in _HINTS.items() if isinstance(error, kind)), "")
    return {"kind": type(error).__name__, "message": str(error), "hint": hint}


def _look_beside(beside: Trail | Letters | None) -> dict[str, Any] | None:
    """Return what is shown beside the buffer, or why it cannot be shown. The buffer is shown in either case."""
    if beside is None:
        return None
    try:
        return beside.look()
    except ForebayError as error:
        return {"url": beside.url, "error": _explain(error)}


def _show_schema(subject: Subject) -> dict[str, Any] | None:
    """The newest schema of a typed buffer, or why it cannot be shown; None for bytes."""
    try:
        found = subject.schema()
    except ForebayError as error:
        return {"error": _explain(error)}
    if found is None:
        return None
    number, schema = found
    columns = list(format_fields(schema).items())
    return {"version": number, "count": len(columns), "columns": columns[:SHOWN_COLUMNS]}


def _point(now_ms: int, summed: Total, rates: Rates) -> dict[str, Any]:
    furthest = sorted(summed.groups, key=lambda group: (-group.lag_batches, group.name))[:KEPT_READERS]
    return {
        "time_ms": now_ms,
        "depth": [summed.batches, summed.entries],
        "in": rates.taken_in,
        "writes": rates.writes,
        "readers": {
            group.name: {
                "lag": [group.lag_batches, group.lag_entries],
                "seconds": group.lag_seconds,
                "out": rates.done[group.name],
            }
            for group in furthest
        },
    }


def _show_part(part: Part) -> dict[str, Any]:
    shown = None if part.stats is None else part.stats.as_json()
    return {"url": part.url, "stats": shown, "error": None if part.error is None else _explain(part.error)}


def _show_batch(found: Listed) -> dict[str, Any]:
    batch, facts = found.batch, found.batch.facts
    return {
        "partition": found.partition,
        "sequence": batch.sequence,
        "location": batch.location,
        "time_ms": batch.last_time_ms,
        "records": None if facts is None else facts.records,
        "stored_bytes": None if facts is None else facts.object_bytes,
        "raw_bytes": None if facts is None else facts.raw_bytes,
        "base_record": batch.base_record,
        "calls": len(batch.metadata),
    }

"""The audit trail: it tells what happened to an object, and stops nobody's work."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from forebay.buffer.base.errors import Closed, InvalidInput, Unavailable
from forebay.buffer.eventlog import AUDIT_TOPIC, AuditTrail, Event, EventLog, object_history, open_event_log
from forebay.buffer.eventlog.memory import MemoryBackend


def test_history_of_an_object_is_what_happened_to_it_in_order_by_key_or_url() -> None:
    log = open_event_log("memory://audit-history")
    trail = AuditTrail(log)
    trail.record("delete.started", "s3://lake/clicks", objects=["data/a", "data/b"])
    trail.record("delete.started", "s3://lake/views", objects=["data/a"])
    trail.record("delete.finished", "s3://lake/clicks", objects=["data/a", "data/b"], failed={"data/b": "denied"})
    trail.record("runtime.halted", "s3://lake/clicks", reason="poison")

    def kinds(location: str) -> list[tuple[str, str]]:
        found = object_history(log, location)
        return [(record.event.kind, record.event.payload["buffer"][10:]) for record in found]

    assert kinds("s3://lake/clicks/data/a") == [("delete.started", "clicks"), ("delete.finished", "clicks")]
    assert kinds("s3://lake/views/data/a") == [("delete.started", "views")]
    assert [kind for kind, _ in kinds("data/b")] == ["delete.started", "delete.finished"]
    assert kinds("s3://lake/clicks/data/c") == []
    assert [record.event.payload["reason"] for record in log.read_range(AUDIT_TOPIC, after=2)] == ["poison"]


def test_long_trail_is_searched_to_its_end_and_other_events_in_it_are_no_trouble() -> None:
    log = open_event_log("memory://audit-long")
    log.append_many(AUDIT_TOPIC, [Event("noise", payload) for payload in (None, 3, [], b"x", {}, {"objects": None})])
    log.append_many(AUDIT_TOPIC, [Event("a", {"buffer": "b", "objects": [str(n % 100)]}) for n in range(2500)])
    assert [record.offset for record in object_history(log, "b/7")] == [6 + n for n in range(7, 2500, 100)]
    assert list(object_history(open_event_log("memory://audit-empty"), "x")) == []


def test_trail_may_have_a_topic_of_its_own() -> None:
    log = open_event_log("memory://audit-topic")
    AuditTrail(log, "mine").record("a", "b", objects=["c"])
    assert [record.event.kind for record in object_history(log, "c", topic="mine")] == ["a"]
    assert log.latest(AUDIT_TOPIC) is None
    with pytest.raises(InvalidInput):
        AuditTrail(log, "no/topic")


def test_what_cannot_be_written_down_is_logged_and_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Away(MemoryBackend):
        def append(self, topic: str, partition: int, events: Sequence[bytes]) -> int:
            raise Unavailable("the log is away")

    with caplog.at_level(logging.WARNING, logger="forebay.eventlog"):
        AuditTrail(EventLog(Away("memory://audit-away"))).record("delete.started", "s3://lake/clicks")
    assert "delete.started of s3://lake/clicks could not be written down" in caplog.text
    closed = open_event_log("memory://audit-closed")
    closed.close()
    AuditTrail(closed).record("delete.started", "s3://lake/clicks")
    with pytest.raises(Closed):
        closed.latest(AUDIT_TOPIC)

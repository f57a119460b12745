"""Event logs: events in topics and partitions, in memory, files, SQLite or an object store (rfcs/0009).

Builds on `topic` and what is below it: in an object store, a topic of a log is a topic of buffers.
"""

from __future__ import annotations

from forebay.buffer.eventlog.audit import AUDIT_TOPIC, AuditTrail, object_history
from forebay.buffer.eventlog.log import EventLog
from forebay.buffer.eventlog.model import CompactReport, Description, Event, Lagged, Record
from forebay.buffer.eventlog.names import topic_name
from forebay.buffer.eventlog.open import describe_event_log, open_event_log
from forebay.buffer.eventlog.subscription import Assignment, Subscription

__all__ = [
    "AUDIT_TOPIC",
    "Assignment",
    "AuditTrail",
    "CompactReport",
    "Description",
    "Event",
    "EventLog",
    "Lagged",
    "Record",
    "Subscription",
    "describe_event_log",
    "object_history",
    "open_event_log",
    "topic_name",
]

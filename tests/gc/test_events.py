"""A collector that is handed an audit trail tells it of every deletion, before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from forebay.buffer.base.errors import Denied, StoreError
from forebay.buffer.eventlog import AUDIT_TOPIC, AuditTrail, EventLog, object_history, open_event_log
from forebay.buffer.store.folder import FolderStore
from forebay.testing import Crash, Fault, FaultyStore


@pytest.fixture
def log(request: pytest.FixtureRequest) -> EventLog:
    return open_event_log(f"memory://gc-events-{request.node.name}")


def told(log: EventLog) -> list[tuple[str, dict[str, Any]]]:
    return [(record.event.kind, record.event.payload) for record in log.read_range(AUDIT_TOPIC)]


def test_deletions_are_told_before_they_start_and_when_they_have_ended(pool: Any, log: EventLog) -> None:
    locations = pool.append(3, every=1.0)
    pool.read(1)
    pool.age()
    assert pool.collect(events=AuditTrail(log)).deleted == 2
    deleted = {"buffer": pool.store.url, "objects": locations[:2]}
    assert told(log) == [("delete.started", deleted), ("delete.finished", {**deleted, "failed": {}})]
    history = object_history(log, f"{pool.store.url}/{locations[0]}")
    assert [record.event.kind for record in history] == ["delete.started", "delete.finished"]
    assert list(object_history(log, f"{pool.store.url}/{locations[2]}")) == []


def test_dry_run_and_a_collection_with_nothing_to_delete_tell_nothing(pool: Any, log: EventLog) -> None:
    pool.append(2, every=1.0)
    pool.read(1)
    pool.age()
    pool.collector(events=AuditTrail(log)).collect_once(dry_run=True)
    assert told(log) == []
    pool.collect()
    pool.collect(events=AuditTrail(log))
    assert told(log) == []


def test_collector_that_dies_has_told_what_it_was_about_to_delete(pool: Any, log: EventLog) -> None:
    (location,) = pool.append(1)
    pool.read(0)
    pool.age()
    with pytest.raises(Crash):
        pool.collect(FaultyStore(pool.store, {0: Fault.CRASH}, only={"delete"}), events=AuditTrail(log))
    assert [(kind, payload["objects"]) for kind, payload in told(log)] == [("delete.started", [location])]


def test_what_could_not_be_deleted_is_told_with_the_reason(pool: Any, log: EventLog) -> None:
    class Stubborn(FolderStore):
        def delete(self, keys: Iterable[str]) -> Mapping[str, StoreError]:
            return {key: Denied("not yours") for key in keys}

    locations = pool.append(2, every=1.0)
    pool.read(1)
    pool.age()
    stubborn = Stubborn(pool.store, "x")
    stubborn.url, stubborn._root = pool.store.url, ""
    assert pool.collect(stubborn, events=AuditTrail(log)).failed_count == 2
    assert told(log)[-1] == (
        "delete.finished",
        {"buffer": pool.store.url, "objects": locations, "failed": dict.fromkeys(locations, "not yours")},
    )


def test_trail_that_cannot_be_written_does_not_keep_anything_from_being_deleted(pool: Any, log: EventLog) -> None:
    pool.append(2, every=1.0)
    pool.read(1)
    pool.age()
    log.close()
    assert pool.collect(events=AuditTrail(log)).deleted == 2
    assert pool.objects() == []

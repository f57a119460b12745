"""What a runtime tells the audit trail (rfcs/0009)."""

from __future__ import annotations

from typing import Any

import pytest
from filled import acked, new_buffer, run

from forebay.buffer.base.errors import Fenced
from forebay.buffer.consumer import Consumer
from forebay.buffer.eventlog import AUDIT_TOPIC, AuditTrail, EventLog, object_history, open_event_log
from forebay.buffer.producer import Producer
from forebay.buffer.read.fetch import Batch
from forebay.runtime import Halted
from forebay.testing.ledger import LedgerSink


@pytest.fixture
def log(request: pytest.FixtureRequest) -> EventLog:
    return open_event_log(f"memory://events-{request.node.name}")


def told(log: EventLog) -> list[tuple[str, dict[str, Any]]]:
    return [(record.event.kind, record.event.payload) for record in log.read_range(AUDIT_TOPIC)]


def refuse_2(batch: Batch) -> Any:
    if batch.sequence == 2:
        raise ValueError("not mine")
    return batch.records()


def test_resume_and_halt_are_told_for_the_buffer_that_is_read(log: EventLog) -> None:
    store = new_buffer("told-halt", 4)
    with pytest.raises(Halted):
        run(
            store,
            LedgerSink(in_order=True),
            decoder=refuse_2,
            events=AuditTrail(log),
            config={"fetch_workers": 1, "max_batches": 1},
        )
    (resumed, first), (halted, last) = told(log)
    assert (resumed, first) == ("runtime.resumed", {"buffer": store.url, "objects": [], "group": "etl", "after": None})
    assert (halted, last["buffer"], last["acked"]) == ("runtime.halted", store.url, 1)
    assert "batch 2, entries 0 to 1, cannot be used: ValueError: not mine" in last["error"]


def test_next_runtime_tells_from_where_it_goes_on(log: EventLog) -> None:
    store = new_buffer("told-resume", 4)
    for _ in range(2):
        run(store, LedgerSink(), events=AuditTrail(log))
    assert [(kind, payload["after"]) for kind, payload in told(log)] == [
        ("runtime.resumed", None),
        ("runtime.resumed", 3),
    ]


def test_dead_letter_is_in_the_history_of_its_object(log: EventLog) -> None:
    store = new_buffer("told-letter", 4)
    with Producer("memory://told-letters", flush_interval=0.01) as letters:
        run(store, LedgerSink(), decoder=refuse_2, dead_letters=letters, events=AuditTrail(log))
    assert acked(store) == 3
    (location,) = [batch.location for batch in Consumer(store, group="another") if batch.sequence == 2]
    (record,) = object_history(log, f"{store.url}/{location}")
    assert record.event.kind == "dead_letter"
    assert record.event.payload["sequence"] == 2
    assert record.event.payload["error"] == "ValueError: not mine"


def test_fence_is_told_as_such(log: EventLog) -> None:
    store = new_buffer("told-fence", 4)

    def take_over(batch: Batch) -> Any:
        if batch.sequence == 0:
            Consumer(store, group="etl")
        return batch.records()

    with pytest.raises(Fenced):
        run(store, LedgerSink(), decoder=take_over, events=AuditTrail(log))
    assert [kind for kind, _ in told(log)] == ["runtime.resumed", "runtime.fenced"]


def test_runtime_goes_on_where_nothing_can_be_written_down(log: EventLog) -> None:
    store = new_buffer("told-nobody", 4)
    trail = AuditTrail(log)
    log.close()
    run(store, LedgerSink(), events=trail)
    assert acked(store) == 3

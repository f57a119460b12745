"""What a log does, in each of its homes: rfcs/0009."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from eventlog_homes import Background, Home, fill, offsets

from forebay.buffer.base.errors import Closed, InvalidInput
from forebay.buffer.eventlog import CompactReport, Event, EventLog
from forebay.testing import ManualClock

# Appending


def test_offsets_are_contiguous_from_zero_in_each_partition(log: EventLog) -> None:
    log.create_topic("jobs", 2)
    assert log.append("jobs", Event("a"), partition=0) == 0
    assert log.append("jobs", Event("b"), partition=0) == 1
    assert log.append("jobs", Event("c"), partition=1) == 0
    assert log.high_water_marks("jobs") == [2, 1]


def test_events_appended_together_are_neighbours(log: EventLog) -> None:
    log.append("jobs", Event("a"))
    assert log.append_many("jobs", [Event("b"), Event("c"), Event("d")]) == range(1, 4)
    assert log.append("jobs", Event("e")) == 4
    assert [record.event.kind for record in log.read_range("jobs")] == ["a", "b", "c", "d", "e"]


def test_many_events_are_read_back_all_and_in_order(home: Home) -> None:
    count = 400 if home.kind == "objects" else 10_000
    log = home.open()
    for number in range(count):
        log.append("trigger.inbox", Event("append", {"i": number}))
    records = log.read_range("trigger.inbox")
    assert offsets(records) == list(range(count))
    assert [record.event.payload["i"] for record in records] == list(range(count))


def test_nothing_to_append_appends_nothing(log: EventLog) -> None:
    assert log.append_many("jobs", []) == range(0)
    fill(log, 2)
    assert log.append_many("jobs", []) == range(2, 2)


@pytest.mark.parametrize(
    "payload",
    [
        None,
        True,
        0,
        -1.5,
        2**80,
        "text with ü, \n and \x00",
        [],
        {},
        {"a": [1, {"b": None}]},
        b"",
        b"\x00\xff bytes",
        "eHg=",
    ],
)
def test_payload_and_headers_and_time_are_read_back_as_they_were(log: EventLog, payload: Any) -> None:
    event = Event("kind of event", payload, {"trace": "1-2", "ü": "\n"}, 1_700_000_000_123)
    log.append("jobs", event)
    assert log.read_range("jobs")[0].event == event
    assert type(log.read_range("jobs")[0].event.payload) is type(payload)


def test_payload_is_what_json_makes_of_it_whatever_the_home(log: EventLog) -> None:
    changing = [1, 2]
    log.append("jobs", Event("a", {"tuple": (1, 2), 3: changing}))
    changing.append(3)
    assert log.read_range("jobs")[0].event.payload == {"tuple": [1, 2], "3": [1, 2]}


def test_event_without_a_time_gets_that_of_its_append(home: Home) -> None:
    log = home.open(clock=ManualClock(1_700_000_000_000))
    log.append("jobs", Event("a"))
    assert log.read_range("jobs")[0].event.time_ms == 1_700_000_000_000


@pytest.mark.parametrize(
    "event",
    [
        Event(""),
        Event("a", object()),
        Event("a", "\ud800"),
        Event("a", headers={"count": 3}),  # type: ignore[dict-item]  # the caller's mistake
        Event("a", time_ms=1.5),  # type: ignore[arg-type]
        "a",
    ],
)
def test_event_that_cannot_be_stored_is_refused_and_makes_nothing(log: EventLog, event: Any) -> None:
    with pytest.raises(InvalidInput):
        log.append("jobs", event)
    assert log.latest("jobs") is None


def test_many_threads_append_each_offset_once(log: EventLog) -> None:
    log.create_topic("jobs", 2)

    def append(writer: int) -> list[int]:
        return [log.append("jobs", Event("a", [writer, i]), partition=writer % 2) for i in range(25)]

    appended = [found.result() for found in [Background(lambda n=n: append(n)) for n in range(4)]]
    for partition in (0, 1):
        given = sorted(offset for writer in (partition, partition + 2) for offset in appended[writer])
        assert given == list(range(50))
    for writer, found in enumerate(appended):
        records = log.read_range("jobs", partition=writer % 2)
        assert [record.offset for record in records if record.event.payload[0] == writer] == found
        assert [record.event.payload[1] for record in records if record.event.payload[0] == writer] == list(range(25))


# Topics


def test_partition_out_of_range_is_refused_everywhere(log: EventLog) -> None:
    log.create_topic("jobs", 2)
    fill(log, 1)
    calls: list[Callable[[Any], object]] = [
        lambda wrong: log.append("jobs", Event("x"), partition=wrong),
        lambda wrong: log.read_range("jobs", partition=wrong),
        lambda wrong: log.latest("jobs", partition=wrong),
        lambda wrong: log.compact("jobs", 0, partition=wrong),
        lambda wrong: log.ack("jobs", "etl", 0, partition=wrong),
        lambda wrong: log.cursor("jobs", "etl", partition=wrong),
        lambda wrong: log.subscribe("jobs", {wrong: 0}),
    ]
    for wrong in (2, 5, -1, True, 0.0, "0"):
        for call in calls:
            with pytest.raises(InvalidInput, match="below 2"):
                call(wrong)
    assert log.high_water_marks("jobs") == [1, 0]


@pytest.mark.parametrize("name", ["", " ", ".", "..", "a/b", "ä", "a b", "x" * 101, None, 3])
def test_topic_that_cannot_be_a_name_is_refused(log: EventLog, name: Any) -> None:
    for call in (
        lambda: log.append(name, Event("a")),
        lambda: log.create_topic(name),
        lambda: log.read_range(name),
        lambda: log.subscribe(name),
        lambda: log.high_water_marks(name),
        lambda: log.compact(name, 0),
    ):
        with pytest.raises(InvalidInput, match="a topic's name"):
            call()


def test_topics_with_any_allowed_name_are_apart(log: EventLog) -> None:
    names = ["a", "A", "a.b", "a-b", "a_b", "...", "-", "9", "topic.json", "x" * 100]
    for number, name in enumerate(names):
        log.append(name, Event("a", number))
    assert [log.read_range(name)[0].event.payload for name in names] == list(range(len(names)))


def test_number_of_partitions_never_changes(log: EventLog, home: Home) -> None:
    log.create_topic("jobs", 3)
    log.create_topic("jobs", 3)
    for handle in (log, home.open()):
        with pytest.raises(InvalidInput, match="must be 3, not"):
            handle.create_topic("jobs", 4)
        assert handle.partitions("jobs") == 3


@pytest.mark.parametrize("wrong", [0, -1, 1.0, True, 10**6])
def test_number_of_partitions_is_a_number_from_one(log: EventLog, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="partitions"):
        log.create_topic("jobs", wrong)


def test_append_makes_a_topic_of_one_partition(log: EventLog) -> None:
    log.append("jobs", Event("a"))
    with pytest.raises(InvalidInput, match="must be 1, not"):
        log.create_topic("jobs", 2)


def test_topic_that_nobody_made_reads_as_one_empty_partition(log: EventLog) -> None:
    assert log.partitions("jobs") == 1
    assert log.read_range("jobs") == []
    assert log.latest("jobs") is None
    assert log.high_water_marks("jobs") == [0]
    assert log.cursor("jobs", "etl") is None
    log.reset("jobs", "etl", None)
    assert log.compact("jobs", 10) == CompactReport(removed=0, remaining=0, latest=None, checkpointed=False)
    log.create_topic("jobs", 2)  # none of this made it


# Reading


def test_range_begins_after_an_offset_and_has_a_maximum_length(log: EventLog) -> None:
    log.append_many("jobs", [Event("a") for _ in range(5)])
    log.append_many("jobs", [Event("a") for _ in range(5)])
    assert offsets(log.read_range("jobs")) == list(range(10))
    assert offsets(log.read_range("jobs", after=-1)) == list(range(10))
    assert offsets(log.read_range("jobs", after=3)) == list(range(4, 10))
    assert offsets(log.read_range("jobs", after=3, limit=3)) == [4, 5, 6]
    assert offsets(log.read_range("jobs", after=8, limit=3)) == [9]
    assert log.read_range("jobs", limit=0) == []
    assert log.read_range("jobs", after=9) == []
    assert log.read_range("jobs", after=99) == []


def test_long_range_is_read_in_pieces_without_a_seam(log: EventLog) -> None:
    fill(log, 2500)
    assert [record.event.payload for record in log.read_range("jobs")] == list(range(2500))
    assert offsets(log.read_range("jobs", after=900, limit=1200)) == list(range(901, 2101))


@pytest.mark.parametrize("wrong", [{"limit": -1}, {"limit": 1.5}, {"after": -2}, {"after": "1"}])
def test_range_with_a_bound_that_cannot_be_is_refused(log: EventLog, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        log.read_range("jobs", **wrong)


# Surviving


def test_everything_survives_reopening(home: Home) -> None:
    with home.open() as log:
        log.create_topic("jobs", 2)
        log.append("jobs", Event("dispatch_pending", {"n": 1}))
        log.append("jobs", Event("dispatch_complete", {"n": 2}))
        log.ack("jobs", "worker", 0)
    with home.open() as log:
        assert log.partitions("jobs") == 2
        assert [record.event.payload["n"] for record in log.read_range("jobs")] == [1, 2]
        assert log.cursor("jobs", "worker") == 0
        report = log.compact("jobs", 0)
        assert (report.removed, report.remaining, report.latest) == (1, 1, 1)
        assert offsets(log.read_range("jobs")) == [1]
        assert log.append("jobs", Event("dispatch_pending")) == 2


def test_emptied_topic_does_not_start_again_at_zero(home: Home) -> None:
    with home.open() as log:
        fill(log, 3)
        assert log.compact("jobs", 99) == CompactReport(3, 0, 2, home.kind == "sqlite")
        assert log.latest("jobs") == 2
        assert log.high_water_marks("jobs") == [3]
    with home.open() as log:
        assert log.latest("jobs") == 2
        assert log.read_range("jobs") == []
        assert log.append("jobs", Event("a")) == 3
        assert offsets(log.read_range("jobs")) == [3]


# Compacting


def test_compaction_is_inclusive_and_in_the_middle_of_what_was_appended_together(log: EventLog) -> None:
    log.append_many("jobs", [Event("a") for _ in range(5)])
    log.append_many("jobs", [Event("a") for _ in range(5)])
    report = log.compact("jobs", 6)
    assert (report.removed, report.remaining, report.latest) == (7, 3, 9)
    assert offsets(log.read_range("jobs")) == [7, 8, 9]
    report = log.compact("jobs", 7)
    assert (report.removed, report.remaining, report.latest) == (1, 2, 9)
    assert offsets(log.read_range("jobs")) == [8, 9]


def test_compacting_again_or_below_removes_nothing(log: EventLog) -> None:
    fill(log, 5)
    log.compact("jobs", 2)
    for through in (2, 1, -1):
        report = log.compact("jobs", through)
        assert (report.removed, report.remaining, report.latest) == (0, 2, 4)


def test_compaction_touches_one_partition_of_one_topic(log: EventLog) -> None:
    log.create_topic("jobs", 2)
    for topic, partition in (("jobs", 0), ("jobs", 1), ("other", 0)):
        fill(log, 3, topic=topic, partition=partition)
    log.compact("jobs", 1, partition=1)
    assert len(log.read_range("jobs", partition=0)) == 3
    assert len(log.read_range("jobs", partition=1)) == 1
    assert len(log.read_range("other")) == 3


def test_range_from_below_the_first_retained_begins_there_and_says_so(
    log: EventLog, caplog: pytest.LogCaptureFixture
) -> None:
    fill(log, 5)
    log.compact("jobs", 2)
    with caplog.at_level(logging.WARNING, logger="forebay.eventlog"):
        assert offsets(log.read_range("jobs")) == [3, 4]  # whatever there is: nothing was asked for that is gone
        assert not caplog.records
        assert offsets(log.read_range("jobs", after=0)) == [3, 4]
    assert "offsets 1 to 2 were compacted away" in caplog.text


def test_another_handle_sees_appends_and_compactions_at_once(home: Home) -> None:
    writer, reader = home.open(), home.open()
    fill(writer, 4)
    assert offsets(reader.read_range("jobs")) == [0, 1, 2, 3]
    fill(writer, 1)
    assert offsets(reader.read_range("jobs")) == [0, 1, 2, 3, 4]
    writer.compact("jobs", 1)
    assert offsets(reader.read_range("jobs")) == [2, 3, 4]
    fill(reader, 1)
    assert offsets(writer.read_range("jobs", after=3)) == [4, 5]


# Cursors


def test_cursor_moves_forward_by_ack_and_anywhere_by_reset(log: EventLog) -> None:
    fill(log, 5)
    assert log.cursor("jobs", "etl") is None
    log.ack("jobs", "etl", 2)
    log.ack("jobs", "etl", 3)
    log.ack("jobs", "etl", 3)
    log.ack("jobs", "etl", 1)
    assert log.cursor("jobs", "etl") == 3
    log.reset("jobs", "etl", 1)
    assert log.cursor("jobs", "etl") == 1
    log.reset("jobs", "etl", None)
    assert log.cursor("jobs", "etl") is None
    log.ack("jobs", "etl", 0)
    assert log.cursor("jobs", "etl") == 0


def test_cursors_are_apart_by_topic_partition_and_consumer(log: EventLog) -> None:
    log.create_topic("jobs", 2)
    for topic, partition in (("jobs", 0), ("jobs", 1), ("other", 0)):
        fill(log, 9, topic=topic, partition=partition)
    log.ack("jobs", "etl", 1, partition=0)
    log.ack("jobs", "etl", 2, partition=1)
    log.ack("other", "etl", 3)
    log.ack("jobs", "audit", 4)
    assert log.cursor("jobs", "etl") == 1
    assert log.cursor("jobs", "etl", partition=1) == 2
    assert log.cursor("other", "etl") == 3
    assert log.cursor("jobs", "audit") == 4
    assert log.cursor("other", "audit") is None


def test_consumers_of_odd_names_never_share_a_cursor(log: EventLog) -> None:
    names = [
        "a/b",
        "a_b",
        "a%2fb",
        "A/B",
        "a b",
        "a.b",
        ".",
        "..",
        "%",
        "x" * 300,
        "x" * 301,
        "ü",
        "u\u0308",
        "=",
        "\n",
    ]
    names = [name for name in names if name.strip()]
    fill(log, len(names))
    for number, name in enumerate(names):
        log.ack("jobs", name, number)
    assert [log.cursor("jobs", name) for name in names] == list(range(len(names)))


@pytest.mark.parametrize("name", ["", " ", "\t\n", None, 7, "\ud800"])
def test_blank_consumer_is_refused(log: EventLog, name: Any) -> None:
    fill(log, 1)
    for call in (
        lambda: log.ack("jobs", name, 0),
        lambda: log.cursor("jobs", name),
        lambda: log.reset("jobs", name, None),
    ):
        with pytest.raises(InvalidInput, match="consumer's id"):
            call()


def test_ack_of_what_is_not_there_yet_is_refused(log: EventLog) -> None:
    fill(log, 2)
    for wrong in (2, 99, -1, 1.5):
        with pytest.raises(InvalidInput):
            log.ack("jobs", "etl", wrong)  # type: ignore[arg-type]
    assert log.cursor("jobs", "etl") is None


def test_cursor_neither_holds_compaction_back_nor_is_moved_by_it(log: EventLog) -> None:
    fill(log, 5)
    log.ack("jobs", "etl", 1)
    assert log.compact("jobs", 3).removed == 4
    assert log.cursor("jobs", "etl") == 1


# The log itself


def test_description_tells_home_place_size_and_depth(home: Home) -> None:
    log = home.open(depth=7)
    empty = log.describe()
    assert (empty.backend, empty.depth) == (home.kind, 7)
    if home.kind == "memory":
        assert (empty.location, empty.size_bytes) == (None, None)
        return
    assert (empty.location, empty.size_bytes) == (home.url, 0)
    fill(log, 100)
    assert (log.describe().size_bytes or 0) > 100


def test_flush_may_be_called_at_any_time(log: EventLog) -> None:
    log.flush()
    fill(log, 3)
    log.flush()
    assert len(log.read_range("jobs")) == 3


def test_closed_log_refuses_everything_and_closes_again(log: EventLog) -> None:
    log.close()
    log.close()
    for call in (
        lambda: log.append("jobs", Event("a")),
        lambda: log.create_topic("jobs"),
        lambda: log.read_range("jobs"),
        lambda: log.subscribe("jobs"),
        lambda: log.latest("jobs"),
        lambda: log.high_water_marks("jobs"),
        lambda: log.ack("jobs", "etl", 0),
        lambda: log.cursor("jobs", "etl"),
        lambda: log.compact("jobs", 0),
        log.describe,
        log.flush,
    ):
        with pytest.raises(Closed, match="closed"):
            call()

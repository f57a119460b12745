"""Subscribers that fall behind, by lag or by compaction: what they are told is decided, never raced (rfcs/0009)."""

from __future__ import annotations

from random import Random

import pytest
from eventlog_homes import Home, fill, take

from forebay.buffer.eventlog import Event, EventLog, Lagged

# Compaction


def test_start_below_the_first_retained_begins_there_and_says_so(
    log: EventLog, caplog: pytest.LogCaptureFixture
) -> None:
    fill(log, 6)
    log.compact("jobs", 3)
    records, _ = log.subscribe("jobs", {0: 1})
    assert take(records, 2) == [(0, 4), (0, 5)]
    assert records.skipped == {0: 3}
    assert "offsets 1 to 3 were compacted away" in caplog.text


def test_subscriber_overtaken_by_compaction_goes_on_after_it_and_says_so(home: Home) -> None:
    log = home.open(depth=2)
    fill(log, 10)
    records, _ = log.subscribe("jobs", {0: 0})
    assert take(records, 2) == [(0, 0), (0, 1)]
    log.compact("jobs", 6)
    assert take(records, 3) == [(0, 7), (0, 8), (0, 9)]
    assert records.skipped == {0: 5}


def test_subscriber_of_an_emptied_topic_waits_for_the_next_event(log: EventLog) -> None:
    fill(log, 3)
    log.compact("jobs", 2)
    records, _ = log.subscribe("jobs", {0: 3})
    assert records.poll(0) is None
    fill(log, 1)
    assert take(records, 1) == [(0, 3)]
    assert records.skipped == {}


# Lag


def test_subscriber_that_falls_behind_is_told_so(home: Home) -> None:
    log = home.open(depth=2)
    log.create_topic("lag.demo")
    records, _ = log.subscribe("lag.demo", {0: 0})
    fill(log, 10, topic="lag.demo")
    with pytest.raises(Lagged, match=r"10 events of topic lag\.demo") as caught:
        next(records)
    assert caught.value.last == {0: -1}
    assert records.ended
    assert list(records) == []


def test_as_many_as_the_depth_may_wait_and_one_more_may_not(home: Home) -> None:
    log = home.open(depth=3)
    log.create_topic("jobs")
    records, _ = log.subscribe("jobs", {0: 0})
    fill(log, 3)
    assert take(records, 3) == [(0, 0), (0, 1), (0, 2)]
    fill(log, 4)
    with pytest.raises(Lagged) as caught:
        next(records)
    assert caught.value.last == {0: 2}


def test_history_is_given_before_the_lag_is_reported(home: Home) -> None:
    log = home.open(depth=2)
    log.create_topic("jobs", 2)
    fill(log, 5)
    records, _ = log.subscribe("jobs", {0: 0, 1: 7})
    fill(log, 3)
    assert take(records, 5) == [(0, offset) for offset in range(5)]
    with pytest.raises(Lagged) as caught:
        next(records)
    assert caught.value.last == {0: 4, 1: 6}


def test_subscribing_again_after_a_lag_misses_nothing(home: Home) -> None:
    log = home.open(depth=2)
    log.create_topic("jobs")
    records, _ = log.subscribe("jobs", {0: 0})
    found = []
    for _ in range(3):
        fill(log, 5)
        try:
            while (record := records.poll(0)) is not None:
                found.append(record.offset)
        except Lagged as lag:
            records, _ = log.subscribe("jobs", {number: last + 1 for number, last in lag.last.items()})
    found += [offset for _, offset in take(records, 15 - len(found))]
    assert found == list(range(15))


def test_lag_of_one_subscriber_is_nobody_elses(home: Home) -> None:
    log = home.open(depth=2)
    log.create_topic("jobs")
    slow, _ = log.subscribe("jobs", {0: 0})
    quick, _ = log.subscribe("jobs", {0: 0})
    for number in range(5):
        fill(log, 1)
        assert take(quick, 1) == [(0, number)]
    with pytest.raises(Lagged):
        next(slow)


def test_lag_of_a_removed_partition_is_nobodys(home: Home) -> None:
    log = home.open(depth=2)
    log.create_topic("jobs", 2)
    records, assignment = log.subscribe("jobs", {0: 0, 1: 0})
    fill(log, 9)
    assignment.remove(0)
    fill(log, 1, partition=1)
    assert take(records, 1) == [(1, 0)]


def test_what_was_compacted_away_does_not_count_as_waiting(home: Home) -> None:
    log = home.open(depth=2)
    log.create_topic("jobs")
    records, _ = log.subscribe("jobs", {0: 0})
    fill(log, 10)
    log.compact("jobs", 7)
    assert take(records, 2) == [(0, 8), (0, 9)]


def test_random_readers_stay_monotonic(home: Home) -> None:
    log, random = home.open(depth=32), Random(7)
    log.create_topic("fuzz.demo")
    readers = [log.subscribe("fuzz.demo", {0: start})[0] for start in (0, 6, 11)]
    seen: list[list[int]] = [[] for _ in readers]
    appended = 0
    while appended < 64:
        count = random.randrange(1, 9)
        log.append_many("fuzz.demo", [Event("rand", {"value": random.randrange(1000)}) for _ in range(count)])
        appended += count
        for number, reader in enumerate(readers):
            for _ in range(random.randrange(8)):
                record = reader.poll(0) if not reader.ended else None
                seen[number] += [] if record is None else [record.offset]
    for start, found in zip((0, 6, 11), seen, strict=True):
        assert found == list(range(start, start + len(found)))
        assert found

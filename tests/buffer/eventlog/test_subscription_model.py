"""Subscribing, adding, removing, appending, compacting and taking in any order: exactly what a model says comes out.

Everything is decided by what was done before, `Lagged` included, so the model needs no "maybe".
"""

from __future__ import annotations

import tempfile
from collections import deque
from itertools import count
from pathlib import Path

import hypothesis.strategies as st
import pytest
from eventlog_homes import Home
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from forebay.buffer.eventlog import Assignment, Event, EventLog, Lagged, Subscription

PARTITIONS = 3
DEPTH = 3
_runs = count()

partitions = st.integers(0, PARTITIONS - 1)
starts = st.integers(0, 12)


class ModelPlace:
    def __init__(self, start: int, mark: int) -> None:
        self.next = start
        self.mark = mark
        self.ahead: deque[int] = deque()


class Followed:
    """A subscription, and what it should do."""

    def __init__(self, records: Subscription, assignment: Assignment) -> None:
        self.records = records
        self.assignment = assignment
        self.places: dict[int, ModelPlace] = {}
        self.skipped: dict[int, int] = {}
        self.ended = False

    def expect(self, bounds: list[tuple[int, int]]) -> tuple[int, int] | dict[int, int] | None:
        """The next event, the last offsets of a lag, or None."""
        if not any(place.ahead for place in self.places.values()):
            for partition, place in self.places.items():
                gap = bounds[partition][0] - place.next
                if gap > 0:
                    self.skipped[partition] = self.skipped.get(partition, 0) + gap
                    place.next += gap
            for partition, place in self.places.items():
                if place.next >= place.mark and bounds[partition][1] - place.next > DEPTH:
                    return {number: known.next - 1 for number, known in self.places.items()}
            for partition, place in self.places.items():
                end = bounds[partition][1]
                end = end if place.next >= place.mark else min(end, place.mark)
                while place.next < end and len(place.ahead) < DEPTH:
                    place.ahead.append(place.next)
                    place.next += 1
        for partition, place in self.places.items():
            if place.ahead:
                return partition, place.ahead.popleft()
        return None


class SubscriptionMachine(RuleBasedStateMachine):
    kind = "memory"

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._home = Home.make(self.kind, f"subscription-model-{next(_runs)}", Path(self._folder.name))
        self.log: EventLog = self._home.open(depth=DEPTH)
        self.log.create_topic("jobs", PARTITIONS)
        self.bounds = [(0, 0)] * PARTITIONS
        self.followed: list[Followed] = []

    def teardown(self) -> None:
        self._home.close()
        self._folder.cleanup()

    def open_ones(self) -> list[Followed]:
        return [followed for followed in self.followed if not followed.ended]

    @rule(partition=partitions, events=st.integers(1, 6))
    def append(self, partition: int, events: int) -> None:
        first, end = self.bounds[partition]
        given = self.log.append_many("jobs", [Event("tick", end + i) for i in range(events)], partition=partition)
        assert given == range(end, end + events)
        self.bounds[partition] = (first, end + events)

    @rule(partition=partitions, through=starts)
    def compact(self, partition: int, through: int) -> None:
        first, end = self.bounds[partition]
        kept = max(first, min(through + 1, end))
        report = self.log.compact("jobs", through, partition=partition)
        assert (report.removed, report.remaining, report.latest) == (kept - first, end - kept, end - 1 if end else None)
        self.bounds[partition] = (kept, end)

    @precondition(lambda self: len(self.followed) < 3)
    @rule(assignment=st.dictionaries(partitions, starts, max_size=PARTITIONS))
    def subscribe(self, assignment: dict[int, int]) -> None:
        followed = Followed(*self.log.subscribe("jobs", assignment))
        followed.places = {number: ModelPlace(start, self.bounds[number][1]) for number, start in assignment.items()}
        self.followed.append(followed)

    @precondition(lambda self: self.open_ones())
    @rule(data=st.data(), partition=partitions, start=starts)
    def add(self, data: st.DataObject, partition: int, start: int) -> None:
        followed = data.draw(st.sampled_from(self.open_ones()))
        followed.assignment.add(partition, start)
        followed.places.setdefault(partition, ModelPlace(start, self.bounds[partition][1]))

    @precondition(lambda self: self.open_ones())
    @rule(data=st.data(), partition=partitions)
    def remove(self, data: st.DataObject, partition: int) -> None:
        followed = data.draw(st.sampled_from(self.open_ones()))
        followed.assignment.remove(partition)
        followed.places.pop(partition, None)

    @precondition(lambda self: self.open_ones())
    @rule(data=st.data(), times=st.integers(1, 8))
    def take(self, data: st.DataObject, times: int) -> None:
        followed = data.draw(st.sampled_from(self.open_ones()))
        for _ in range(times):
            expected = followed.expect(self.bounds)
            if isinstance(expected, dict):
                with pytest.raises(Lagged) as caught:
                    followed.records.poll(0)
                assert caught.value.last == expected
                self._end(followed)
                return
            record = followed.records.poll(0)
            assert (None if record is None else (record.partition, record.offset)) == expected
            assert record is None or record.event.payload == record.offset

    @precondition(lambda self: self.open_ones())
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        followed = data.draw(st.sampled_from(self.open_ones()))
        followed.records.close()
        self._end(followed)

    @rule()
    def reopen(self) -> None:
        for followed in self.open_ones():
            self._end(followed)
        self.log.close()
        self.log = self._home.open(depth=DEPTH)
        self.followed = []

    def _end(self, followed: Followed) -> None:
        followed.ended = True
        followed.places.clear()

    @invariant()
    def handles_agree(self) -> None:
        for followed in self.followed:
            assert followed.assignment.assigned() == sorted(followed.places)
            assert followed.records.skipped == followed.skipped
            if followed.ended:
                assert followed.records.poll(0) is None

    @invariant()
    def marks_agree(self) -> None:
        assert self.log.high_water_marks("jobs") == [end for _, end in self.bounds]


@pytest.mark.parametrize(("kind", "examples"), [("memory", 100), ("file", 25), ("sqlite", 25), ("objects", 25)])
def test_any_order_of_calls_gives_what_the_model_says(kind: str, examples: int) -> None:
    machine = type("Machine", (SubscriptionMachine,), {"kind": kind})
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None))

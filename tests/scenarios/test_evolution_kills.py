"""A topic whose schema evolves while old and new producers are killed: nothing is lost, doubled or changed.

Real processes, killed with SIGKILL at random moments: while they evolve the record, store a schema in a partition,
upload, or append. Buffers go through the same in test_storm.py, with readers, a runtime and a collector at work.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from evolving import VERSIONS, read_rows, schema_of
from patience import wait_for
from storm import Nursery, pause, read_answers, seed_of
from storm_child import FENCED, GAVE_UP, Part, entries_of

from forebay.buffer.consumer import Consumer
from forebay.buffer.inspect.findings import Severity
from forebay.buffer.inspect.verify import verify
from forebay.buffer.manifest import Queue
from forebay.buffer.store import open_store
from forebay.buffer.topic import Topic, create_topic
from forebay.testing.servers import SeaweedServer

LONG = (pytest.mark.slow, pytest.mark.timeout(1200))
PARTITIONS = 3


class Producers:
    """One producer of the oldest schema, and two whose schema grows with each life."""

    def __init__(self, url: str, home: Path, options: dict[str, Any], seed: int) -> None:
        self.random = Random(seed)
        self.home = home
        part = Part("topic producer", "", 0, url, str(home), seed, options=options, rows=True)
        self.parts = {name: replace(part, name=name) for name in ("plain-1", "new-1", "new-2")}
        self.nursery = Nursery()
        self.pids = {name: self.nursery.start(part) for name, part in self.parts.items()}

    def kill_one(self) -> None:
        """Kill one while it works, and start its next life."""
        name = self.random.choice(list(self.parts))
        part, before = self.parts[name], len(read_answers(self.parts[name].ledger))
        if self.random.random() < 0.5:  # the others are killed while they open the topic, or evolve it
            wait_for(lambda: len(read_answers(part.ledger)) > before)
        pause(self.random.random() * 0.05)
        os.kill(self.pids[name], signal.SIGKILL)
        self.see_how_it_ended(self.nursery.wait(self.pids[name]))
        self.parts[name] = replace(part, life=part.life + 1, seed=self.random.getrandbits(32))
        self.pids[name] = self.nursery.start(self.parts[name])

    def settle(self) -> None:
        for part in self.parts.values():
            wait_for(lambda part=part: (part.life, 1) in read_answers(part.ledger))
        (self.home / "stop").touch()
        for pid in self.pids.values():
            self.see_how_it_ended(self.nursery.wait(pid))

    def see_how_it_ended(self, status: int) -> None:
        broken = self.home / "broken"
        assert status in {0, -signal.SIGKILL, FENCED, GAVE_UP}, broken.read_text() if broken.exists() else status


def check(producers: Producers, url: str, options: dict[str, Any]) -> None:
    """Compare what the producers were told with what the partitions hold."""
    topic = Topic(url, storage_options=options)
    assert 1 < len(topic.record.schemas) <= VERSIONS
    found: Counter[str] = Counter()
    for store in topic.stores():
        known = tuple(Queue(store).read().schemas)
        assert topic.record.schemas[: len(known)] == known
        batches = list(Consumer(store))
        assert len({batch.table.schema for batch in batches}) == 1, "every batch of one look is shown in one schema"
        found.update(value.decode() for batch in batches for value in read_rows(batch))
    assert set(found.values()) == {1}, "something is there twice"
    durable = 0
    for part in producers.parts.values():
        told = read_answers(part.ledger)
        for (life, number), answer in told.items():
            expected = {value.decode() for value in entries_of(part.name, life, number)}
            present = expected & set(found)
            assert present in (set(), expected), f"half of {part.name}'s call {number} is there"
            assert present or answer != "durable", f"LOST: {part.name}, life {life}, call {number}"
            assert not present or answer != "failed", f"{part.name}'s call {number} failed, and is there"
            durable += answer == "durable"
    assert durable
    report = verify(open_store(url, options))
    assert report.severity == Severity.OK, report.findings[:5]


@pytest.mark.parametrize("kills", [8, pytest.param(150, marks=LONG)])
@pytest.mark.parametrize("where", ["file", "s3"])
def test_topic_that_evolves_while_old_and_new_producers_are_killed_keeps_every_row_once(
    where: str, kills: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url, options = f"file://{tmp_path}/topic", {}
    if where == "s3":
        weed: SeaweedServer = request.getfixturevalue("weed")
        url, options = f"s3://tests/evolved-{kills}", weed.storage_options
    create_topic(open_store(url, options), PARTITIONS, schema=schema_of(0))
    producers = Producers(url, tmp_path, options, seed_of(14))
    try:
        for _ in range(kills):
            producers.kill_one()
        producers.settle()
    finally:
        producers.nursery.close()
    check(producers, url, options)

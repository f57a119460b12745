"""Load: many producers, a large backlog, many groups, a long run. What is held and what is asked for stays flat.

The short forms always run; the long ones (`-m slow`) are 64 producers, 50 GiB in a million entries, and a day of one
append a second. First and last quarters of one run are compared, never times. Figures are printed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from evolving import read_rows
from kinds import Kind
from load import quarters, start, told_by, usage
from storm import Nursery, pause
from storm_child import Part, entries_of, read_ledger

from forebay.buffer import read_range
from forebay.buffer.consumer import Consumer
from forebay.buffer.manifest import Head, Queue
from forebay.buffer.producer import Producer
from forebay.buffer.store import open_store
from forebay.buffer.store.memory import MemoryStore
from forebay.gc import Collector
from forebay.testing import FaultyStore, ManualClock

LONG = (pytest.mark.slow, pytest.mark.timeout(1800))
SLACK = 48 << 20
"""Bytes by which the memory of a process may differ between two looks for no reason of ours."""

Say = Callable[[str], None]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Shows figures, whether or not output is captured."""

    def show(figures: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{figures}\n")

    return show


@pytest.mark.parametrize(("buffers", "rows"), [(1, False), (8, False), (1, True)])
@pytest.mark.parametrize(("producers", "calls"), [(8, 6), pytest.param(64, 40, marks=LONG)])
def test_many_producer_processes_are_all_served_and_each_entry_is_there_once(
    tmp_path: Path, producers: int, calls: int, *, buffers: int, rows: bool, say: Say
) -> None:
    nursery = Nursery()
    try:
        parts = [
            Part("producer", f"p{n}", 0, f"file://{tmp_path}/buffer-{n % buffers}", str(tmp_path), n, rows=rows)
            for n in range(producers)
        ]
        processes = [nursery.start(part) for part in parts]
        while min(durable(part) for part in parts) < calls:
            assert all(nursery.poll(process) is None for process in processes), "a producer gave up"
            pause(0.1)
        (tmp_path / "stop").touch()
        assert [nursery.wait(process) for process in processes] == [0] * producers
    finally:
        nursery.close()
    batches, found = 0, Counter[bytes]()
    for number in range(buffers):
        for batch in read_range(f"file://{tmp_path}/buffer-{number}"):
            batches += 1
            found.update(read_rows(batch) if rows else batch.entries)
    expected = [
        entry
        for part in parts
        for answer, life, number in read_ledger(part.ledger)
        if answer == "durable"
        for entry in entries_of(part.name, life, number)
    ]
    assert found == Counter(expected)
    each = sorted(durable(part) for part in parts)
    say(
        f"{producers} producers, {buffers} buffers: {sum(each)} calls in {batches} batches, "
        f"from {each[0]} to {each[-1]} a producer, half of them {each[len(each) // 2]} or more"
    )


def durable(part: Part) -> int:
    return sum(line[0] == "durable" for line in read_ledger(part.ledger))


@pytest.mark.parametrize(
    ("batches", "entries", "size"), [(24, 32, 16 << 10), pytest.param(800, 1311, 50 << 10, marks=LONG)]
)
def test_backlog_is_consumed_while_it_grows_within_flat_memory(
    tmp_path: Path, batches: int, entries: int, size: int, *, kind: Kind, say: Say
) -> None:
    """The reader begins when half of it is there."""
    url = f"file://{tmp_path}/buffer"
    producer = start("produce", url, kind.name, batches, entries, size)
    written, read = [], []
    told = told_by(producer)
    for line in told:
        written.append(line)
        if line["done"] >= batches // 2:
            break
    consumer = start("consume", url, kind.name, batches, entries, size)
    try:
        written += told
        read += told_by(consumer)
    finally:
        for process in (producer, consumer):
            process.kill()
            process.communicate()
    assert read[-1]["done"] == batches
    stored = sum(found.size for found in open_store(url).list("data/"))
    batch_bytes = entries * size
    for name, lines in (("producer", written), ("consumer", read)):
        first, last = quarters([line["rss"] for line in lines])
        assert last <= 1.25 * first + SLACK, f"{name}: {first / 2**20:.0f} MiB at first, {last / 2**20:.0f} at last"
        assert lines[-1]["peak"] <= 10 * batch_bytes + (400 << 20)
        for held in ("files", "threads"):
            before, after = quarters([line[held] for line in lines[:-1]])
            assert after <= before + 8, f"{name}: {before} {held} at first, {after} at last"
    behind = max(line.get("behind", 0) for line in read)
    say(
        f"{batches * entries} entries, {batches * batch_bytes / 2**30:.1f} GiB raw in {batches} batches, "
        f"{stored / 2**20:.1f} MiB stored; the reader was up to {behind} batches behind; memory at most "
        f"{written[-1]['peak'] / 2**20:.0f} MiB to write and {read[-1]['peak'] / 2**20:.0f} MiB to read"
    )


class Counted(FaultyStore):
    """A store that counts requests, of all kinds and in all."""

    @property
    def total(self) -> int:
        return sum(self.calls.values())


@pytest.mark.parametrize("ticks", [300, pytest.param(6000, marks=LONG)])
def test_ten_groups_at_their_own_speeds_see_everything_once_and_ask_for_no_more_as_they_fall_behind(
    ticks: int, kind: Kind, say: Say
) -> None:
    """Group n reads at every n-th tick; in between, a collector takes what the slowest has read."""
    clock = ManualClock()
    store = MemoryStore(f"memory://load-groups-{kind.name}-{ticks}", clock=clock)
    ways = [Counted(store) for _ in range(10)]
    groups = [Consumer(way, group=f"every-{pace}", clock=clock) for pace, way in enumerate(ways, 1)]
    seen = [0] * len(groups)
    requests: list[list[int]] = [[] for _ in groups]
    collector = Collector(store, grace=5, clock=clock)
    with Producer(store, schema=kind.schema, clock=clock, flush_interval=3600) as producer:
        for tick in range(ticks):
            producer.produce(kind.make(b"%d" % tick))
            producer.flush().wait()
            clock.advance(1)
            for pace, (way, group) in enumerate(zip(ways, groups, strict=True), 1):
                if tick % pace == 0:
                    before = way.total
                    seen[pace - 1] = read_one(group, seen[pace - 1], kind)
                    requests[pace - 1].append(way.total - before)
            if tick % 50 == 49:
                collector.collect_once()
    for number, group in enumerate(groups):
        while seen[number] < ticks:
            seen[number] = read_one(group, seen[number], kind)
    flat = [quarters(counts) for counts in requests]
    for pace, (first, last) in enumerate(flat, 1):
        assert last <= 1.3 * first + 0.5, f"group {pace}: {first:.2f} requests a batch at first, {last:.2f} at last"
    collector.collect_once()
    assert Queue(store).read().first_sequence == ticks, "all have read all"
    say(
        f"{ticks} batches, 10 groups: requests a batch {flat[0][0]:.2f} then {flat[0][1]:.2f} for the fastest, "
        f"{flat[-1][0]:.2f} then {flat[-1][1]:.2f} for the slowest, which was {ticks - len(requests[-1])} behind"
    )


def read_one(group: Consumer, expected: int, kind: Kind) -> int:
    batch = group.next_batch()
    assert batch is not None
    assert (batch.sequence, kind.read(batch)) == (expected, [b"%d" % expected])
    group.ack_through(batch.sequence)
    return expected + 1


@pytest.mark.parametrize("appends", [1200, pytest.param(86_400, marks=LONG)])
def test_a_day_of_appends_leaves_memory_files_threads_and_requests_flat(appends: int, kind: Kind, say: Say) -> None:
    """One append a second on a clock that runs ahead; a reader that looks every ten, a collector every five minutes."""
    clock = ManualClock()
    store = MemoryStore(f"memory://load-day-{kind.name}-{appends}", clock=clock)
    way = Counted(store)
    samples: list[dict[str, float]] = []
    every = max(1, appends // 40)
    before = way.total
    with (
        Producer(way, schema=kind.schema, clock=clock, flush_interval=3600) as producer,
        Consumer(way, group="etl", clock=clock) as consumer,
    ):
        collector = Collector(way, grace=60, clock=clock)
        for number in range(1, appends + 1):
            producer.produce(kind.make(b"%d" % number), b"svc=web")
            producer.flush().wait()
            clock.advance(1)
            if number % 10 == 0:
                for batch in consumer:
                    consumer.ack(batch.sequence)
                consumer.flush()
            if number % 300 == 0:
                collector.collect_once()
            if number % every == 0:
                kept = list(store.list())
                sample = {"requests": (way.total - before) / every, "objects": len(kept), **usage()}
                sample["head"] = next(found.size for found in kept if found.key == "manifest")
                samples.append(sample)
                before = way.total
    state = Queue(store).read()
    assert isinstance(state, Head)
    assert state.next_sequence == appends
    flat = {name: quarters([sample[name] for sample in samples]) for name in samples[0]}
    allowed = {"rss": SLACK, "files": 2, "threads": 2, "requests": 0.5, "objects": 100, "head": 4096}
    for name, (first, last) in flat.items():
        assert last <= 1.2 * first + allowed[name], f"{name}: {first:.1f} at first, {last:.1f} at last"
    say(
        f"{appends} appends, {appends / 3600:.1f} h by their clock: "
        + ", ".join(f"{name} {first:.2f} then {last:.2f}" for name, (first, last) in flat.items())
    )

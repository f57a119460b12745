"""The runtime on sinks that commit: everything once, in order where asked, acknowledged, within bounds (rfcs/0007)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from filled import TIME, NoPauses, acked, append_data, fill, new_buffer, run, running
from kinds import BYTES, ROWS, Kind
from patience import PATIENCE, wait_for

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.batch import encode_batch
from forebay.buffer.groups import Groups
from forebay.buffer.manifest import Queue
from forebay.buffer.producer import Producer
from forebay.buffer.read.fetch import Batch
from forebay.buffer.topic import TopicProducer, create_topic
from forebay.runtime import Combining, Commit, Runtime, RuntimeConfig, Source
from forebay.runtime.contract import Answer
from forebay.testing import ManualClock
from forebay.testing.ledger import LedgerSink
from forebay.testing.servers import SeaweedServer

# What comes out


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize(
    ("profile", "group", "kind"),
    [("native", "etl", BYTES), ("native", None, BYTES), ("opendata", None, BYTES), ("native", "etl", ROWS)],
)
def test_everything_is_committed_once_and_acknowledged(
    profile: str, group: str | None, kind: Kind, in_order: bool
) -> None:
    store = new_buffer(f"once-{profile}-{group}-{in_order}", 0, profile=profile, kind=kind)
    said = fill(store, 200)
    sink = LedgerSink(in_order=in_order)
    status = run(store, sink, group=group)
    assert sink.values() == said
    assert sink.ranges == [(number, number) for number in range(200)]
    assert acked(store, group) == 199
    assert (status.rows, status.commits, status.batches, status.bytes) == (400, 200, 0, 0)
    assert (status.sources[0].committed, status.sources[0].acked, status.sources[0].lag_batches) == (199, 199, 0)


@pytest.mark.parametrize("source", ["memory://clicks", Source("memory://clicks")], ids=["url", "source"])
def test_source_that_is_not_in_a_list_is_refused(source: Any) -> None:
    with pytest.raises(InvalidInput, match="sources must be a list, not"):
        Runtime(source, LedgerSink())


def test_sink_that_asks_for_order_gets_it_one_at_a_time(kind: Kind) -> None:
    class Strict(LedgerSink):
        under_way = most = 0

        def commit(self, commit: Commit) -> Answer:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            threading.Event().wait(0.002)  # long enough for another to come, if it could
            answer = super().commit(commit)
            self.under_way -= 1
            return answer

    store = new_buffer("ordered", 50, kind=kind)
    sink = Strict(in_order=True)
    run(store, sink, config={"fetch_workers": 8, "commit_workers": 8})
    assert [identity.first for identity in sink.calls] == list(range(50))
    assert sink.most == 1


def test_sink_that_does_not_gets_as_many_at_once_as_there_are_workers(kind: Kind) -> None:
    store = new_buffer("parallel", 12, kind=kind)
    sink = LedgerSink()
    barrier = threading.Barrier(4)
    inner = sink.commit

    def commit(commit: Commit) -> Answer:
        barrier.wait(PATIENCE)  # passes only if four are under way
        return inner(commit)

    sink.commit = commit  # type: ignore[method-assign]
    run(store, sink, config={"commit_workers": 4})
    assert len(sink.rows) == 12


def test_commit_says_what_it_carries(kind: Kind) -> None:
    seen: list[Commit] = []

    class Looking(LedgerSink):
        def commit(self, commit: Commit) -> Answer:
            seen.append(commit)
            return super().commit(commit)

    store = new_buffer("carries", 3, kind=kind)
    run(store, Looking(in_order=True))
    reader = Consumer(store, group="etl").reader
    assert [commit.identity.source for commit in seen] == [reader.source] * 3
    assert {(commit.identity.group, commit.identity.generation) for commit in seen} == {("etl", reader.generation)}
    assert [commit.batches[0].sequence for commit in seen] == [0, 1, 2]
    assert seen[1].table.column("value").to_pylist() == [b"1:0", b"1:1"]
    assert seen[1].url == store.url
    assert not any(commit.replay for commit in seen)


def test_decoder_makes_the_rows() -> None:
    store = new_buffer("decoder", 4)

    def decode(batch: Batch) -> pa.Table:
        return pa.table({"n": [int(entry.split(b":")[1]) for entry in batch.entries]})

    sink = LedgerSink()
    assert run(store, sink, decoder=decode).rows == 8
    assert sink.values() == [{"n": 0}, {"n": 1}] * 4


def test_decoder_that_gives_no_table_is_told_so() -> None:
    with pytest.raises(InvalidInput, match=r"pyarrow\.Table"):
        run(new_buffer("no-table", 1), LedgerSink(), decoder=lambda batch: batch.arrow)


def test_batch_without_rows_is_not_committed_and_counts() -> None:
    store = new_buffer("no-rows", 0)
    held: list[list[bytes]] = [[], [b"1"], [], [], [b"4"], []]
    Queue(store).append([append_data(store, i, bytes(encode_batch(h, "none")), h) for i, h in enumerate(held)])
    for group, sink in {"a": LedgerSink(), "b": LedgerSink(in_order=True)}.items():
        run(store, sink, group=group)
        assert sink.values() == [b"1", b"4"]
        assert sink.ranges == [(1, 1), (4, 4)]
        assert acked(store, group) == 5


# Combining


def test_batches_are_combined_up_to_the_target(kind: Kind) -> None:
    store = new_buffer("combined", 0, kind=kind)
    said = fill(store, 20, entries=1, size=96)  # 100 bytes each, with its length
    sink = LedgerSink(combining=Combining(500))
    run(store, sink)
    assert sink.ranges == [(0, 4), (5, 9), (10, 14), (15, 19)]
    assert sink.values() == said
    assert acked(store) == 19


def test_combined_commit_has_the_rows_of_all_its_batches_and_columns_of_all(kind: Kind) -> None:
    store = new_buffer("columns", 3, kind=kind)

    def decode(batch: Batch) -> pa.Table:
        return pa.table({"a": [batch.sequence], f"only-{batch.sequence}": [1.5]})

    sink = LedgerSink(combining=Combining(1 << 20))
    run(store, sink, decoder=decode)
    (rows,) = sink.rows.values()
    assert [row["a"] for row in rows] == [0, 1, 2]
    assert rows[2] == {"a": 2, "only-0": None, "only-1": None, "only-2": 1.5}


def test_unnamed_consumer_commits_batch_by_batch(kind: Kind) -> None:
    store = new_buffer("unnamed-combining", 6, kind=kind)
    sink = LedgerSink(combining=Combining(1 << 20))
    run(store, sink, group=None)
    assert sink.ranges == [(i, i) for i in range(6)]


def test_what_waits_to_be_combined_is_committed_after_a_while(kind: Kind) -> None:
    store = new_buffer("combine-time", 3, kind=kind)
    clock = ManualClock(TIME + 60_000)
    sink = LedgerSink(combining=Combining(1 << 20, max_seconds=10))
    runtime = Runtime([Source(store, group="etl")], sink, clock=clock)
    with running(runtime):
        wait_for(
            lambda: (
                "3 batches waiting for more" in runtime.status().sources[0].waits_for
                if runtime.status().sources
                else False
            )
        )
        assert not sink.calls
        (source,) = runtime.status().sources
        assert source.waits_for.endswith("combine, 10 s at most")
        assert source.lag_seconds >= 57, "they count as behind, and age"
        assert (source.found_entries, source.fetched_rows) == (6, 0)
        clock.advance(10)
        assert sink.wait_for_calls(1)
    assert sink.ranges == [(0, 2)]


def test_combined_commits_must_fit_into_memory() -> None:
    with pytest.raises(InvalidInput, match="max_bytes must be at least 3000"):
        Runtime([], LedgerSink(combining=Combining(1000)), RuntimeConfig(max_bytes=2999))


# Budgets


def test_memory_stays_within_the_budget_and_reading_goes_on_when_there_is_room(kind: Kind) -> None:
    store = new_buffer("budget", 60, entries=1, size=10_000, kind=kind)
    sink = LedgerSink()
    most = []
    inner = sink.commit

    def commit(commit: Commit) -> Answer:
        most.append(runtime.status().bytes)
        return inner(commit)

    sink.commit = commit  # type: ignore[method-assign]
    runtime = Runtime([Source(store, group="etl")], sink, RuntimeConfig(max_bytes=100_000))
    runtime.run(until_caught_up=True, show_progress=False)
    assert max(most) <= 100_000
    assert len(sink.rows) == 60


@pytest.mark.parametrize("profile", ["native", "opendata"])
def test_stalled_sink_stops_reading_at_the_budget(profile: str) -> None:
    store = new_buffer(f"stalled-{profile}", 100, profile=profile, entries=1, size=1000)
    sink = LedgerSink()
    sink.hold()
    runtime = Runtime([store], sink, RuntimeConfig(max_batches=7, descriptors_per_look=3, commit_workers=2))
    with running(runtime):
        wait_for(lambda: (commits := runtime.status().stages[1]).busy + commits.waiting == 7)  # all are decoded
        assert "max_batches is 7" in runtime.status().sources[0].waits_for
        assert 7 * 1000 <= runtime.status().bytes <= 7 * 1200, "what they hold, once that is known"
        assert acked(store, None) is None
        sink.release()
        wait_for(lambda: len(sink.rows) == 100)


def test_portion_that_cannot_be_committed_stops_its_source_after_max_batches(kind: Kind) -> None:
    store = new_buffer("stuck", 50, kind=kind)
    stuck = threading.Event()

    class Stuck(LedgerSink):
        def commit(self, commit: Commit) -> Answer:
            if commit.identity.first == 0:
                assert stuck.wait(PATIENCE)
            return super().commit(commit)

    sink = Stuck()
    runtime = Runtime([Source(store, group="etl")], sink, RuntimeConfig(max_batches=10, ack_every=1))
    with running(runtime):
        wait_for(lambda: len(sink.rows) == 9)
        assert runtime.status().sources[0].committed is None
        assert acked(store) is None, "never past what is not known"
        stuck.set()
        wait_for(lambda: acked(store) == 49)


# Acknowledging


def test_ack_is_written_every_n_commits(kind: Kind) -> None:
    store = new_buffer("ack-every", 10, kind=kind)
    sink = LedgerSink(in_order=True)
    acks: list[int] = []
    consumer = Consumer(store, group="etl")
    inner = consumer.ack_through

    def ack_through(sequence: int) -> None:
        acks.append(sequence)
        inner(sequence)

    consumer.ack_through = ack_through  # type: ignore[method-assign]
    run(consumer, sink, config={"ack_every": 4, "ack_seconds": 1000})
    assert len(acks) <= 3
    assert acks[-1] == 9
    assert acks == sorted(acks)


def test_ack_is_written_after_t_seconds(kind: Kind) -> None:
    store = new_buffer("ack-seconds", 3, kind=kind)
    clock = ManualClock()
    sink = LedgerSink()
    runtime = Runtime([Source(store, group="etl")], sink, RuntimeConfig(ack_seconds=7), clock=clock)
    with running(runtime):
        wait_for(lambda: bool(runtime.status().sources) and runtime.status().sources[0].committed == 2)
        clock.advance(6)
        assert acked(store) is None
        clock.advance(1.5)
        wait_for(lambda: acked(store) == 2)


# Going on, stopping


def test_runs_on_as_batches_arrive_until_it_is_stopped(kind: Kind) -> None:
    store = new_buffer("live", 2, kind=kind)
    sink = LedgerSink()
    runtime = Runtime([Source(store, group="etl")], sink)
    with running(runtime) as outcome:
        wait_for(lambda: len(sink.rows) == 2)
        fill(store, 3)
        wait_for(lambda: len(sink.rows) == 5)
        runtime.stop()
        wait_for(lambda: bool(outcome))
    assert outcome[0].state == "stopped"
    assert acked(store) == 4
    assert not Groups(store).describe("etl").alive, "what the runtime opened, it closed"


def test_catching_up_takes_what_was_there_at_the_beginning_and_ends(kind: Kind) -> None:
    store = new_buffer("mark", 5, kind=kind)
    consumer = Consumer(store, group="etl")
    inner = consumer.next_descriptors
    looks = []

    def next_descriptors(most: int) -> Any:
        fill(store, 1)  # a producer that is always there first
        looks.append(most)
        assert len(looks) < 50, "it goes on and on"
        return inner(most)

    consumer.next_descriptors = next_descriptors  # type: ignore[method-assign]
    sink = LedgerSink()
    run(consumer, sink, config={"descriptors_per_look": 2})
    assert looks == [2, 2, 2]
    assert acked(store) == len(sink.rows) - 1 == 5


def test_stop_lets_commits_under_way_end_and_acknowledges_them(kind: Kind) -> None:
    store = new_buffer("drain", 20, kind=kind)
    sink = LedgerSink()
    sink.hold()
    runtime = Runtime([Source(store, group="etl")], sink, RuntimeConfig(max_batches=4))
    with running(runtime) as outcome:
        assert sink.wait_for_calls(4)
        runtime.stop(drain=PATIENCE)
        assert runtime.status().state == "stopping"
        sink.release()
        wait_for(lambda: bool(outcome))
    assert acked(store) == len(sink.rows) - 1 == 3
    with pytest.raises(InvalidInput, match="runs once"):
        runtime.run()
    with pytest.raises(InvalidInput, match="stopped"):
        runtime.add(store)


def test_stop_returns_in_time_though_the_sink_hangs_and_acknowledges_what_is_done(kind: Kind) -> None:
    store = new_buffer("hang", 6, kind=kind)
    sink = LedgerSink()

    class Hanging(LedgerSink):
        def commit(self, commit: Commit) -> Answer:
            if commit.identity.first == 2:
                sink.hold()
                sink.commit(commit)
            return super().commit(commit)

    hanging = Hanging(in_order=True)
    runtime = Runtime([Source(store, group="etl")], hanging)
    with running(runtime) as outcome:
        wait_for(lambda: bool(sink.calls))
        runtime.stop(drain=0)
        wait_for(lambda: bool(outcome))
    assert acked(store) == 1
    sink.release()


def test_runtime_stopped_before_it_runs_does_nothing() -> None:
    store = new_buffer("never", 3)
    runtime = Runtime([Source(store, group="etl")], LedgerSink())
    runtime.stop()
    assert runtime.run(show_progress=False).state == "stopped"
    assert Queue(store).read().groups == {}


def test_consumer_that_was_given_stays_open_and_its_own(kind: Kind) -> None:
    store = new_buffer("given", 4, kind=kind)
    with Consumer(store, group="etl") as consumer:
        run(consumer, LedgerSink())
        fill(store, 1)
        assert [batch.sequence for batch in consumer] == [4]


# Several sources


def test_several_sources_feed_one_sink_each_with_its_own_frontier(kind: Kind) -> None:
    stores = [new_buffer(f"several-{number}", 10 * (number + 1), kind=kind) for number in range(3)]
    sink = LedgerSink()
    runtime = Runtime([Source(store, group="etl") for store in stores], sink)
    status = runtime.run(until_caught_up=True, show_progress=False)
    assert [source.committed for source in status.sources] == [9, 19, 29]
    assert [acked(store) for store in stores] == [9, 19, 29]
    by_source: dict[str, int] = {}
    for identity in sink.rows:
        by_source[identity.source] = by_source.get(identity.source, 0) + 1
    assert sorted(by_source.values()) == [10, 20, 30]


def test_partitions_of_a_topic_are_shared_by_list() -> None:
    url = "memory://runtime-topic"
    create_topic(url, partitions=3)
    with TopicProducer(url) as producer:
        for number in range(60):
            producer.produce([f"{number}".encode()], key=f"{number}".encode())
    first, second = LedgerSink(), LedgerSink()
    for sink, partitions in ((first, [0, 2]), (second, [1])):
        source = Source(url, group="etl", partitions=partitions)
        Runtime([source], sink).run(until_caught_up=True, show_progress=False)
    assert sorted(map(int, first.values() + second.values())) == list(range(60))  # type: ignore[call-overload]
    assert not {identity.source for identity in first.rows} & {identity.source for identity in second.rows}
    everything = LedgerSink()
    Runtime([Source(url, group="all")], everything).run(until_caught_up=True, show_progress=False)
    assert sorted(map(int, everything.values())) == list(range(60))  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="some of 0 to 2"):
        Runtime([Source(url, partitions=[3])], LedgerSink()).run(show_progress=False)


def test_source_added_while_running_gives_its_backlog_first_in_order(kind: Kind) -> None:
    first, second = new_buffer("add-first", 3, kind=kind), new_buffer("add-second", 30, kind=kind)
    sink = LedgerSink(in_order=True)
    runtime = Runtime([Source(first, group="etl")], sink)
    with running(runtime):
        wait_for(lambda: len(sink.rows) == 3)
        runtime.add(Source(second, group="etl"))
        fill(second, 5)
        wait_for(lambda: len(sink.rows) == 38)
    reader = Consumer(second, group="etl").reader
    assert [found.first for found in sink.calls if found.source == reader.source] == list(range(35))


def test_source_removed_is_drained_acknowledged_and_let_go_while_others_go_on(kind: Kind) -> None:
    gone, stays = new_buffer("remove-gone", 5, kind=kind), new_buffer("remove-stays", 5, kind=kind)
    sink = LedgerSink()
    source = Source(gone, group="etl")
    runtime = Runtime([source, Source(stays, group="etl")], sink, RuntimeConfig(ack_seconds=1000))
    with running(runtime):
        wait_for(lambda: len(sink.rows) == 10)
        runtime.remove(source)
        assert acked(gone) == 4
        assert not Groups(gone).describe("etl").alive
        fill(gone, 3)
        fill(stays, 3)
        wait_for(lambda: len(sink.rows) == 13)
        assert len(runtime.status().sources) == 1
        with pytest.raises(InvalidInput, match="not a source"):
            runtime.remove(source)
        runtime.add(source)
        wait_for(lambda: len(sink.rows) == 16)
    assert acked(gone) == 7


def test_removal_gives_up_on_a_commit_that_hangs(kind: Kind) -> None:
    store = new_buffer("remove-hang", 4, kind=kind)
    sink = LedgerSink()
    sink.hold()
    source = Source(store, group="etl")
    runtime = Runtime([source], sink)
    with running(runtime):
        assert sink.wait_for_calls(4)
        runtime.remove(source, drain=0.01)
        assert (runtime.status().batches, runtime.status().bytes) == (0, 0)
        sink.release()
    assert acked(store) is None


def test_same_reader_cannot_be_a_source_twice() -> None:
    store = new_buffer("twice", 1)
    with pytest.raises(InvalidInput, match="already"):
        Runtime([Source(store, group="etl")] * 2, LedgerSink()).run(show_progress=False)


def test_same_reader_cannot_be_a_source_twice_by_another_spelling_of_its_url(tmp_path: Path) -> None:
    with Producer(tmp_path) as producer:
        producer.produce(b"entry")
    sources = [Source(url, group="etl") for url in (tmp_path.as_uri(), f"{tmp_path}/")]
    with pytest.raises(InvalidInput, match="already"):
        Runtime(sources, LedgerSink()).run(show_progress=False)


def test_failing_to_open_one_source_ends_all() -> None:
    store = new_buffer("open", 1)
    with pytest.raises(InvalidInput):
        Runtime([Source(store, group="etl"), Source(store, group="no good name")], LedgerSink()).run(
            show_progress=False
        )
    assert not Groups(store).describe("etl").alive


@pytest.mark.parametrize(
    "wrong", [{"fetch_workers": 0}, {"max_bytes": 1.5}, {"ack_seconds": 0}, {"max_poll_interval": 0.01}]
)
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        RuntimeConfig(**wrong)


def test_real_producers_through_to_a_sink() -> None:
    url = "memory://runtime-produced"
    with Producer(url, flush_interval=0.01) as producer:
        for number in range(50):
            producer.produce([f"{number}-{index}".encode() for index in range(20)], metadata=b"svc")
    sink = LedgerSink()
    status = Runtime([url], sink, random=NoPauses(1)).run(until_caught_up=True, show_progress=False)
    assert status.rows == 1000
    assert sink.values() == [f"{number}-{index}".encode() for number in range(50) for index in range(20)]


@pytest.mark.parametrize("client", ["s3fs", "obstore"])
def test_everything_is_committed_once_from_a_real_server(weed: SeaweedServer, client: str) -> None:
    url = f"{weed.create_bucket(f'runtime-{client}')}/buffer"
    options = {**weed.storage_options, "client": client}
    with Producer(url, flush_interval=0.01, storage_options=options) as producer:
        for number in range(30):
            producer.produce([f"{number}".encode()] * 10).result()
    sink = LedgerSink(in_order=True, combining=Combining(300))
    source = Source(url, group="etl", storage_options=options)
    status = Runtime([source], sink).run(until_caught_up=True, show_progress=False)
    assert sink.values() == [f"{number}".encode() for number in range(30) for _ in range(10)]
    assert status.sources[0].acked == status.sources[0].committed == status.sources[0].lag_batches + 29
    assert options["secret"] not in repr(source)

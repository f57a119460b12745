"""`forebay export-metrics`: what Prometheus is told of buffers, whether or not anybody reads them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.request import urlopen

import pytest
from patience import wait_for
from prometheus_client.parser import text_string_to_metric_families

import forebay
from forebay.buffer import Groups
from forebay.buffer.base.errors import Unavailable
from forebay.buffer.store import ObjectStore
from forebay.buffer.store.base import StoredObject
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import Topic, TopicProducer, create_topic
from forebay.cli import main
from forebay.cli.export_metrics import GAUGES, Exporter, WatchedUrl
from forebay.testing import FaultyStore, ManualClock
from forebay.testing.servers import SeaweedServer

COMMAND = Path(sys.executable).with_name("forebay")

Samples = dict[tuple[str, ...], float]
"""Values by the metric's name and the values of its labels."""


class Switched(FaultyStore):
    """A store that is only read, and that can be switched off, as a whole or below a folder."""

    off: str | None = None

    def get(self, key: str) -> StoredObject:
        self._check(key)
        return super().get(key)

    def get_if_changed(self, key: str, version: str) -> StoredObject | None:
        self._check(key)
        return super().get_if_changed(key, version)

    def put(self, key: str, data: Any) -> Any:
        raise AssertionError(f"{key} was written")

    create = replace = put

    def delete(self, keys: Any) -> Any:
        raise AssertionError(f"{list(keys)} were deleted")

    def _check(self, key: str) -> None:
        if self.off is not None and key.startswith(self.off):
            raise Unavailable(f"{key}: the store is off")


class Hanging(FaultyStore):
    """A store that does not answer until it is let go."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.asked, self.answers = Event(), Event()

    def get(self, key: str) -> StoredObject:
        self.asked.set()
        self.answers.wait()
        return super().get(key)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(request: pytest.FixtureRequest, clock: ManualClock) -> MemoryStore:
    """A buffer with a batch of two entries, which is ten seconds old, and a group that nobody reads."""
    store = MemoryStore(f"memory://{request.node.name}/x")
    producer = forebay.Producer(store, clock=clock)
    producer.produce([b"a", b"b"])
    producer.flush().result()
    producer.close()
    forebay.Consumer(store, group="etl").close()
    clock.advance(10)
    return store


def watch(store: ObjectStore, clock: ManualClock) -> WatchedUrl:
    return WatchedUrl(store, manifest_path="manifest", data_prefix="data", clock=clock)


def samples_of(watched: WatchedUrl) -> Samples:
    return {(name, *labels): value for name, labels, value in watched.samples() if value is not None}


def look(watched: WatchedUrl) -> Samples:
    watched.look()
    return samples_of(watched)


def test_group_that_nobody_reads_has_a_lag_an_age_and_no_owner(store: MemoryStore, clock: ManualClock) -> None:
    seen = look(watch(Switched(store), clock))
    url = store.url
    assert seen["forebay_up", url] == 1
    assert seen["forebay_buffer_batches", url] == 1
    assert seen["forebay_buffer_entries", url] == 2
    assert seen["forebay_buffer_bytes", url] > 0
    assert seen["forebay_buffer_age_seconds", url] == 10
    assert seen["forebay_group_lag_batches", url, "etl"] == 1
    assert seen["forebay_group_lag_entries", url, "etl"] == 2
    assert seen["forebay_group_lag_bytes", url, "etl"] == seen["forebay_buffer_bytes", url]
    assert seen["forebay_group_lag_seconds", url, "etl"] == 10
    assert seen["forebay_group_owned", url, "etl"] == 0
    assert not [name for name, *_ in seen if name == "forebay_group_owner_timestamp_seconds"]


def test_owner_of_a_group_is_named_with_the_time_of_its_claim(store: MemoryStore, clock: ManualClock) -> None:
    watched = watch(Switched(store), clock)
    with forebay.Consumer(store, group="etl", clock=clock):
        seen = look(watched)
        owner = (store.url, "etl", socket.gethostname(), str(os.getpid()))
        assert seen["forebay_group_owned", store.url, "etl"] == 1
        assert seen["forebay_group_owner_timestamp_seconds", *owner] == clock.now_ms() / 1000
    assert look(watched)["forebay_group_owned", store.url, "etl"] == 0


def test_unnamed_consumer_is_a_group_without_a_name_of_which_nobody_knows_the_owner(
    store: MemoryStore, clock: ManualClock
) -> None:
    with forebay.Consumer(store, clock=clock) as consumer:
        assert consumer.next_batch() is not None
    seen = look(watch(Switched(store), clock))
    assert seen["forebay_group_lag_batches", store.url, ""] == 1
    assert ("forebay_group_owned", store.url, "") not in seen


def test_group_that_was_deleted_is_shown_no_more(store: MemoryStore, clock: ManualClock) -> None:
    watched = watch(Switched(store), clock)
    assert ("forebay_group_owned", store.url, "etl") in look(watched)
    Groups(store).delete("etl")
    assert ("forebay_group_owned", store.url, "etl") not in look(watched)


def test_store_that_fails_is_down_and_says_nothing_else_until_it_is_back(
    store: MemoryStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    switched = Switched(store)
    watched = watch(switched, clock)
    before = look(watched)
    switched.off = ""
    assert look(watched) == look(watched) == {("forebay_up", store.url): 0}
    switched.off = None
    assert look(watched) == before
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2, told
    assert "is shown as down: manifest: the store is off" in told[0]
    assert "can be read again" in told[1]


def test_error_that_nobody_expected_counts_as_down(store: MemoryStore, clock: ManualClock) -> None:
    class Broken(FaultyStore):
        def get(self, key: str) -> StoredObject:
            raise RuntimeError("a bug")

    assert look(watch(Broken(store), clock)) == {("forebay_up", store.url): 0}


def test_store_that_does_not_answer_is_down_after_half_a_minute(store: MemoryStore, clock: ManualClock) -> None:
    hanging = Hanging(store)
    watched = watch(hanging, clock)
    looking = Thread(target=watched.look)
    looking.start()
    hanging.asked.wait()
    assert samples_of(watched) == {}
    clock.advance(30)
    assert samples_of(watched) == {("forebay_up", store.url): 0}
    hanging.answers.set()
    looking.join()
    assert samples_of(watched)["forebay_up", store.url] == 1


def test_buffer_that_is_not_there_yet_is_down_until_something_is_written(clock: ManualClock) -> None:
    store = MemoryStore("memory://export-later/x")
    watched = watch(store, clock)
    assert look(watched) == {("forebay_up", store.url): 0}
    with forebay.Producer(store) as producer:
        producer.produce(b"a")
    assert look(watched)["forebay_up", store.url] == 1


def test_version_1_buffer_is_shown_without_what_it_does_not_tell(clock: ManualClock) -> None:
    store = MemoryStore("memory://export-v1/x")
    with forebay.Producer(store, profile="opendata", manifest_path="manifest", data_prefix="data") as producer:
        producer.produce(b"a")
    seen = look(watch(Switched(store), clock))
    assert seen["forebay_buffer_batches", store.url] == 1
    assert ("forebay_buffer_entries", store.url) not in seen


def test_partitions_of_a_topic_are_buffers_and_one_that_fails_hides_no_other(clock: ManualClock) -> None:
    store = MemoryStore("memory://export-topic/x")
    create_topic(store, 2)
    with TopicProducer(store) as producer:
        for key in (b"a", b"b", b"c", b"d"):
            producer.produce(b"x", key=key)
    first, second = (partition.url for partition in Topic(store).stores())
    switched = Switched(store)
    watched = watch(switched, clock)
    seen = look(watched)
    assert [seen["forebay_up", url] for url in (store.url, first, second)] == [1, 1, 1]
    assert seen["forebay_buffer_entries", first] + seen["forebay_buffer_entries", second] == 4
    switched.off = f"{second.removeprefix(f'{store.url}/')}/"
    seen = look(watched)
    assert [seen["forebay_up", url] for url in (store.url, first, second)] == [1, 1, 0]
    assert ("forebay_buffer_batches", first) in seen
    assert ("forebay_buffer_batches", second) not in seen


def test_verification_counts_orphans_and_missing_objects(store: MemoryStore, clock: ManualClock) -> None:
    [batch] = [found.key for found in store.list("data/")]
    store.put(f"{batch[:-7]}0.batch", b"never listed")
    store.delete([batch])
    watched = watch(Switched(store), clock)
    watched.verify()
    found = {labels[-1]: value for labels, value in samples_of(watched).items()}
    assert found.pop(store.url) == clock.now_ms() / 1000
    assert found == {"orphaned": 1, "missing": 1, "corrupt": 0, "contradictory": 0}


def test_verification_that_fails_leaves_the_findings_before_it_with_their_time(
    store: MemoryStore, clock: ManualClock
) -> None:
    switched = Switched(store)
    watched = watch(switched, clock)
    watched.verify()
    assert len(before := samples_of(watched)) == 5
    switched.off = ""
    clock.advance(3600)
    watched.verify()
    assert samples_of(watched) == before


def test_every_metric_that_is_served_is_in_the_list_with_its_labels(store: MemoryStore, clock: ManualClock) -> None:
    watched = watch(Switched(store), clock)
    with forebay.Consumer(store, group="etl"):
        watched.look()
    watched.verify()
    exporter = Exporter([watched], every=15, verify_every=0, clock=clock)
    served = {family.name: family for family in exporter.collect()}
    assert set(served) == set(GAUGES)
    for name, family in served.items():
        assert family.samples, name
        assert {tuple(sample.labels) for sample in family.samples} == {GAUGES[name][1]}


def test_looks_and_verifications_are_repeated_each_at_its_own_interval(store: MemoryStore, clock: ManualClock) -> None:
    looks: list[float] = []
    verifications: list[float] = []

    class Counted(WatchedUrl):
        def look(self) -> None:
            looks.append(clock.monotonic())

        def verify(self) -> None:
            verifications.append(clock.monotonic())

    counted = Counted(store, manifest_path="manifest", data_prefix="data", clock=clock)
    with Exporter([counted], every=15, verify_every=60, clock=clock) as exporter:
        exporter.start()
        wait_for(lambda: looks and verifications)
        wait_for(lambda: clock.advance(15) or (len(looks) > 4 and len(verifications) > 1))
    assert all(later - earlier >= 15 for earlier, later in pairwise(looks))
    assert verifications[1] - verifications[0] >= 60


# The command itself


@pytest.fixture
def lake(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/lake"
    with forebay.Producer(f"{url}/clicks") as producer:
        producer.produce([b"a", b"b", b"c"])
    forebay.Consumer(f"{url}/clicks", group="etl").close()
    return url


class Served:
    """A `forebay export-metrics` that is up."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [COMMAND, "export-metrics", "--port", "0", *arguments],
            stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  (it takes no lock)
        )  # fmt: skip
        assert self.process.stderr is not None
        self.told = ""
        for line in self.process.stderr:
            self.told += line
            if "Ctrl-C ends it" in line:
                break
        self.url = re.findall(r"at (http://\S+)", self.told)[0]

    def scrape(self) -> Samples:
        families = text_string_to_metric_families(urlopen(self.url).read().decode())
        return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}

    def wait_for(self, *sample: str) -> Samples:
        """What is scraped once a sample is there."""
        found: Samples = {}

        def is_there() -> bool:
            found.clear()
            found.update(self.scrape())
            return sample in found

        wait_for(is_there, self.process)
        return found

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        self.told += self.process.communicate()[1]
        return self.process.returncode


@pytest.fixture
def served(request: pytest.FixtureRequest, lake: str) -> Iterator[Served]:
    """It looks at a buffer, and at one in a store that nobody can reach."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        options = [f"endpoint_url=http://127.0.0.1:{closed.getsockname()[1]}", "key=a", "secret=b", "region=us-east-1"]
        given = [part for option in options for part in ("--option", option)]
        served = Served(f"{lake}/clicks", "s3://away/clicks", "--every", "0.1", *given)
        yield served
        if served.process.poll() is None:
            served.end(signal.SIGKILL)


def test_store_that_cannot_be_reached_is_down_beside_a_buffer_that_is_shown(served: Served, lake: str) -> None:
    seen = served.wait_for("forebay_up", "s3://away/clicks")
    assert seen["forebay_up", "s3://away/clicks"] == 0
    seen = served.wait_for("forebay_up", f"{lake}/clicks")
    assert seen["forebay_group_lag_entries", f"{lake}/clicks", "etl"] == 3
    served.wait_for("forebay_verify_findings", f"{lake}/clicks", "orphaned")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_signal_ends_it_without_a_trace(served: Served, number: signal.Signals, status: int) -> None:
    served.scrape()
    assert served.end(number) == status
    assert "interrupted" in served.told
    assert "Traceback" not in served.told
    with pytest.raises(OSError, match="refused"):
        served.scrape()


def test_buffer_on_s3_is_shown_while_it_is_written_and_read(weed: SeaweedServer) -> None:
    url = "s3://tests/export/clicks"
    options = weed.storage_options
    with forebay.Producer(url, storage_options=options) as producer:
        producer.produce(b"a")
    given = [part for name, value in options.items() for part in ("--option", f"{name}={value}")]
    served = Served(url, "--every", "0.05", *given)
    try:
        assert served.wait_for("forebay_buffer_entries", url)["forebay_buffer_entries", url] == 1
        with forebay.Consumer(url, group="etl", storage_options=options) as consumer:
            for batch in consumer:
                consumer.ack_through(batch.sequence)
            owner = (url, "etl", socket.gethostname(), str(os.getpid()))
            served.wait_for("forebay_group_owner_timestamp_seconds", *owner)
        wait_for(lambda: served.scrape()["forebay_group_owned", url, "etl"] == 0, served.process)
        assert served.scrape()["forebay_group_lag_batches", url, "etl"] == 0
    finally:
        served.end(signal.SIGTERM)


def test_port_that_is_taken_is_told_at_once(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["export-metrics", f"{lake}/clicks", "--port", port]) == 2
    assert f"127.0.0.1:{port}: Address already in use; choose another" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "Missing argument 'URL...'"),
        (["ftp://lake/clicks"], "ftp"),
        (["memory://x", "--every", "0"], "--every"),
        (["memory://x", "--verify-every", "-1"], "--verify-every"),
        (["memory://x", "--port", "70000"], "port"),
    ],
)
def test_what_cannot_be_watched_is_told(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export-metrics", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_missing_extra_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert main(["export-metrics", "memory://x"]) == 2
    assert "[metrics]" in capsys.readouterr().err

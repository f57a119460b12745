"""Exactly once, end to end: whenever a runtime is killed, the table and the files end with every durable entry once.

DESIGN's invariants 1, 4 and 7 for the runtime with its sinks; the issue's "must hold".

Mutation notes: `app_transactions` in the Delta sink, names made of the identity in the Parquet sink, and the record of
ranges before they are committed (`SourceReader._record`): each removed fails tests here.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Self

import duckdb
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from kinds import BYTES, ROWS, Kind, kind_in
from patience import PATIENCE, wait_for
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from runtime_child import COMBINING, CONFIG, GROUP, TABLE, catalog_in, open_sink

from forebay.buffer.base.errors import Fenced
from forebay.buffer.consumer import Consumer
from forebay.buffer.groups import Groups
from forebay.buffer.manifest import Queue
from forebay.buffer.producer import Producer
from forebay.buffer.read.fetch import FetchHandle
from forebay.buffer.store import ObjectStore, open_store
from forebay.buffer.store.memory import MemoryStore
from forebay.runtime import Commit, DeltaSink, Runtime, RuntimeConfig, Sink, Source
from forebay.runtime.contract import Answer, CommitIdentity
from forebay.testing import Crash
from forebay.testing.servers import SeaweedServer

CHILD = Path(__file__).with_name("runtime_child.py")
KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet", "callable"])
EXACT = pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet"])


class Urls:
    def __init__(self, folder: Path) -> None:
        self.source = f"file://{folder}/source"
        self.target = f"file://{folder}/target"


@pytest.fixture
def urls(tmp_path: Path) -> Urls:
    return Urls(tmp_path)


def values(kind: str, target: str) -> list[bytes]:
    """Every entry that the target holds, as often as it holds it."""
    path = Path(target.removeprefix("file://"))
    if not path.exists():
        return []
    read = {
        "buffer": lambda: ROWS.read_all(Consumer(target)),
        "callable": lambda: path.read_bytes().splitlines(),
        "delta": lambda: values_in_delta(target),
        "iceberg": lambda: values_in_iceberg(catalog_in(target)),
        "parquet": lambda: values_in_parquet(path),
    }
    return read[kind]()


def values_in_parquet(folder: Path) -> list[bytes]:
    files = ds.dataset(folder)
    return [] if not files.files else files.to_table()["value"].to_pylist()


def values_in_delta(target: str) -> list[bytes]:
    try:
        found: list[bytes] = DeltaTable(target).to_pyarrow_table()["value"].to_pylist()
    except TableNotFoundError:
        return []  # its folder is there before its first version
    return found


def values_in_iceberg(properties: dict[str, str]) -> list[bytes]:
    """The entries as pyiceberg reads them, which must be those that DuckDB finds in the snapshot's files."""
    with load_catalog("default", **properties) as catalog:
        try:
            scan = catalog.load_table(TABLE).scan()
        except NoSuchTableError:
            return []
        found: list[bytes] = scan.to_arrow()["value"].to_pylist()
        files = [task.file.file_path for task in scan.plan_files()]
    if files:
        rows = duckdb.execute("SELECT value FROM read_parquet(?)", [files]).fetchall()
        assert sorted(value for (value,) in rows) == sorted(found)
    return found


def fill(source: str | ObjectStore, batches: int, entries: Kind = BYTES) -> list[bytes]:
    with Producer(source, schema=entries.schema) as producer:
        for number in range(batches):
            producer.produce(entries.make_all(b"%06d" % (10 * number + i) for i in range(10)))
            producer.flush().wait()
    return [b"%06d" % i for i in range(10 * batches)]


class Service:
    """A producer that goes on for as long as others are killed."""

    def __init__(self, source: str, kind: Kind = BYTES) -> None:
        self._kind = kind
        self._producer = Producer(source, schema=kind.schema, flush_interval=0.02)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._produce, daemon=True)
        self.produced: list[bytes] = []

    def __enter__(self) -> Self:
        self._producer.produce(self._next()).result(timeout=PATIENCE)
        self._thread.start()
        return self

    def _next(self) -> list[Any]:
        entries = [b"%08d" % number for number in range(len(self.produced), len(self.produced) + 20)]
        self.produced += entries
        return self._kind.make_all(entries)

    def _produce(self) -> None:
        while not self._stopped.wait(0.04):
            self._producer.produce(self._next())

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(PATIENCE)
        self._producer.close()  # raises if anything of it is not durable


@contextmanager
def child(kind: str, urls: Urls, kill_after: int = 0) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(CHILD), kind, urls.source, urls.target, str(kill_after)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def kill_at_random(kind: str, urls: Urls, random: Random) -> None:
    """Let a runtime work for some lines of what it says, and a moment more, and kill it."""
    with child(kind, urls) as process:
        assert process.stdout is not None
        for _ in range(random.randrange(1, 9)):
            assert process.stdout.readline(), f"it ended too early: {process.communicate()[1]}"
        threading.Event().wait(random.random() * 0.03)
        process.kill()
        assert process.wait(PATIENCE) == -9


def catch_up(kind: str, urls: Urls) -> None:
    with open_sink(kind, urls.target) as sink:
        Runtime([Source(urls.source, group=GROUP, takeover=True)], sink, CONFIG).run(
            until_caught_up=True, show_progress=False
        )


def check_nothing_is_acked_ahead(kind: str, urls: Urls, since: int = 0) -> int:
    """Check what was acknowledged from a sequence on, and return where the next look can begin."""
    acked = Groups(urls.source).describe(GROUP).acked
    if acked is None or acked < since:
        return since
    store = open_store(urls.source)
    fetch = FetchHandle(store).fetch
    listed = Queue(store).descriptors(since, acked + 1 - since)
    held = kind_in(store).read_all(fetch(found) for found in listed)
    missing = set(held) - set(values(kind, urls.target))
    assert not missing, f"acknowledged up to {acked}, and not in the target: {sorted(missing)[:5]}"
    return acked + 1


def check_random_kills(kind: str, urls: Urls, kills: int, seed: int, entries: Kind = BYTES) -> None:
    random, since = Random(seed), 0
    with Service(urls.source, entries) as service:
        for _ in range(kills):
            kill_at_random(kind, urls, random)
            since = check_nothing_is_acked_ahead(kind, urls, since)
    catch_up(kind, urls)
    found = values(kind, urls.target)
    assert sorted(set(found)) == service.produced
    if kind != "callable":
        assert len(found) == len(service.produced), "something is there twice"
    assert Groups(urls.source).describe(GROUP).acked == Queue(open_store(urls.source)).read().next_sequence - 1


@KINDS
def test_killed_at_random_while_a_producer_runs_every_durable_entry_is_there_once(kind: str, urls: Urls) -> None:
    """The function sees each at least once."""
    check_random_kills(kind, urls, kills=8 if kind in ("delta", "parquet") else 3, seed=7)


@pytest.mark.parametrize("kind", ["delta", "parquet", "buffer"])
def test_killed_at_random_every_durable_row_is_there_once(kind: str, urls: Urls) -> None:
    check_random_kills(kind, urls, kills=4, seed=9, entries=ROWS)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("entries", [BYTES, ROWS], ids=lambda entries: entries.name)
@KINDS
def test_killed_a_hundred_times_at_random_every_durable_entry_is_there_once(
    kind: str, urls: Urls, entries: Kind
) -> None:
    check_random_kills(kind, urls, kills=100, seed=8, entries=entries)


@EXACT
@pytest.mark.parametrize("entries", [BYTES, ROWS], ids=lambda entries: entries.name)
def test_killed_between_commit_and_ack_each_time_everything_is_there_once(kind: str, urls: Urls, entries: Kind) -> None:
    """Each process dies after its first commit, before it has heard of it, until one finds nothing left to do."""
    produced = fill(urls.source, 45, entries)
    endings = [-9]
    while endings[-1] == -9:
        with child(kind, urls, kill_after=1) as process:
            endings.append(process.wait(PATIENCE))
        check_nothing_is_acked_ahead(kind, urls)
    assert endings[-1] == 0
    assert sorted(values(kind, urls.target)) == produced


class Dying(Sink):
    """A sink whose process dies before or after a commit."""

    def __init__(self, inner: Sink, at: int, *, after: bool) -> None:
        self._inner, self._at, self._after = inner, at, after
        self.in_order, self.combining = inner.in_order, inner.combining
        self._numbers = count(1)

    def commit(self, commit: Commit) -> Answer:
        dies = next(self._numbers) == self._at
        if dies and not self._after:
            raise Crash("before the commit")
        answer = self._inner.commit(commit)
        if dies:
            raise Crash("after the commit")
        return answer

    def check_committed(self, identity: CommitIdentity) -> bool:
        return self._inner.check_committed(identity)


@EXACT
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("group", [GROUP, None])
def test_dying_around_any_commit_leaves_what_the_next_runtime_completes(
    kind: str, after: bool, group: str | None, tmp_path: Path
) -> None:
    """The unnamed consumer records no ranges, and each of its commits is one batch."""
    for at in (1, 2, 4):
        store = MemoryStore(f"memory://dying-{kind}-{after}-{group}-{at}")
        produced, target = fill(store, 60 if group else 12), f"file://{tmp_path}/{at}"
        source = Source(store, group=group, takeover=True)
        with pytest.raises(Crash):
            sink = Dying(open_sink(kind, target), at, after=after)
            Runtime([source], sink, CONFIG).run(until_caught_up=True, show_progress=False)
        with open_sink(kind, target) as sink:
            Runtime([source], sink, CONFIG).run(until_caught_up=True, show_progress=False)
        assert sorted(values(kind, target)) == produced, f"dying at commit {at}"


class Held(DeltaSink):
    """A Delta sink that stops between its look at the table and its append until it is let go."""

    def hold(self) -> None:
        self.holds, self.let_go = threading.Event(), threading.Event()

    def _append(self, table: Any, identity: CommitIdentity, rows: Any) -> None:
        self.holds.set()
        assert self.let_go.wait(PATIENCE)
        super()._append(table, identity, rows)


@contextmanager
def running(sources: list[Source], sink: Sink, **settings: Any) -> Iterator[tuple[Runtime, list[Any]]]:
    """A runtime in a thread, and what came of it."""
    runtime, outcome = Runtime(sources, sink, RuntimeConfig(ack_seconds=0.05, max_poll_interval=0.05)), []

    def run() -> None:
        try:
            outcome.append(runtime.run(show_progress=False, **settings))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield runtime, outcome
    finally:
        runtime.stop(drain=5)
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.mark.parametrize("where", ["file", "s3"])
def test_runtime_that_was_taken_over_in_the_middle_of_a_commit_commits_nothing_twice(
    where: str, urls: Urls, request: pytest.FixtureRequest
) -> None:
    """The old one has looked at the table; the new one commits all; then the old one's append goes out."""
    target, options, reading = urls.target, None, {}
    if where == "s3":
        weed: SeaweedServer = request.getfixturevalue("weed")
        target, options = "s3://tests/two-runtimes", weed.storage_options
        reading = {"storage_options": DeltaSink(target, storage_options=options)._storage_options()}
    produced = fill(urls.source, 20)
    source = Source(urls.source, group=GROUP, takeover=True)
    old = Held(target, combining=COMBINING, storage_options=options)
    old.hold()
    with running([source], old) as (_, outcome):
        assert old.holds.wait(PATIENCE)
        with DeltaSink(target, combining=COMBINING, storage_options=options) as new:
            Runtime([source], new, CONFIG).run(until_caught_up=True, show_progress=False)
        old.let_go.set()
        wait_for(lambda: bool(outcome))
    assert isinstance(outcome[0], Fenced)
    assert sorted(DeltaTable(target, **reading).to_pyarrow_table()["value"].to_pylist()) == produced
    assert Groups(urls.source).describe(GROUP).acked == 19


@pytest.mark.matrix
def test_runtimes_that_take_over_from_each_other_again_and_again_commit_everything_once(urls: Urls) -> None:
    """Each lives on until the next one has taken over, at some point of its work."""
    outcomes: list[list[Any]] = []
    readers = [
        (kind, Source(urls.source, group=kind, takeover=True), f"{urls.target}-{kind}")
        for kind in ("delta", "iceberg", "parquet")
    ]
    with ExitStack() as runtimes, Service(urls.source) as service:
        for _ in range(5):
            for kind, source, target in readers:
                before = len(values(kind, target))
                outcomes.append(runtimes.enter_context(running([source], open_sink(kind, target)))[1])
                wait_for(lambda kind=kind, target=target, before=before: len(values(kind, target)) > before)
        service.stop()
        for kind, source, target in readers:
            with open_sink(kind, target) as sink:
                Runtime([source], sink, CONFIG).run(until_caught_up=True, show_progress=False)
            assert sorted(values(kind, target)) == service.produced
        wait_for(lambda: all(outcomes))
    assert [type(outcome[0]) for outcome in outcomes] == [Fenced] * 15

"""Two `forebay run` of one group, as real processes: one reads, the other waits and takes over when the first is gone.

Mutation notes: without the heartbeat, or with a takeover on another state than the one that was watched, tests in
`tests/buffer/test_standby.py` and `tests/runtime/test_runtime_standby.py` fail.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from kinds import Kind
from patience import PATIENCE

from forebay.buffer.groups import Groups, GroupState
from forebay.buffer.producer import Producer
from forebay.buffer.store import open_store

CHILD = Path(__file__).with_name("standby_child.py")


class Replica:
    """A process that runs the job, the lines of its log, and its clock."""

    def __init__(self, job: Path) -> None:
        command = [sys.executable, str(CHILD), str(job)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(iter(self.process.stderr.readline, ""))

    def says(self, text: str) -> bool:
        return any(text in line for line in list(self.lines))

    def advance(self, seconds: float) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()

    def wait_until(self, condition: Callable[[], bool], step: float = 0.5) -> None:
        """Let its time pass, a little at once, until something has happened."""
        tick = threading.Event()
        for _ in range(int(PATIENCE / 0.02)):
            assert self.process.poll() is None, "".join(self.lines)
            if condition():
                return
            if step:
                self.advance(step)
            tick.wait(0.02)
        pytest.fail("it did not happen in time: " + "".join(self.lines))


@contextmanager
def replica(job: Path) -> Iterator[Replica]:
    found = Replica(job)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait()


class Scene:
    """A buffer, a job that lands it in Parquet, and what was produced."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self._kind = kind
        self.url = f"file://{folder}/clicks"
        self.job = folder / "job.toml"
        self.job.write_text(
            f'[[sources]]\nurl = "{self.url}"\ngroup = "etl"\n'
            f'[sink]\nkind = "parquet"\nurl = "file://{folder}/out"\ncombine_bytes = 200\ncombine_seconds = 0.5\n'
            "[runtime]\nack_every = 3\ndescriptors_per_look = 8\n"
        )
        self._target = folder / "out"
        self.produced: list[bytes] = []

    def produce(self, batches: int) -> None:
        with Producer(self.url, schema=self._kind.schema) as producer:
            for _ in range(batches):
                entries = [b"%06d" % number for number in range(len(self.produced), len(self.produced) + 10)]
                producer.produce(self._kind.make_all(entries))
                producer.flush().wait()
                self.produced += entries

    def group(self) -> GroupState:
        return Groups(self.url).describe("etl")

    def is_done(self) -> bool:
        return bool(Groups(self.url).list()) and self.group().waiting == 0

    def cursor(self) -> bytes:
        store = open_store(self.url)
        (cursor,) = store.list("cursors/")
        return bytes(store.get(cursor.key).data)

    def landed(self) -> list[bytes]:
        found: list[bytes] = ds.dataset(self._target).to_table()["value"].to_pylist()
        return sorted(found)


def test_of_two_replicas_one_reads_until_it_is_killed_and_the_other_finishes(tmp_path: Path, kind: Kind) -> None:
    scene = Scene(tmp_path, kind)
    scene.produce(20)
    with ExitStack() as replicas:
        first = replicas.enter_context(replica(scene.job))
        first.wait_until(scene.is_done)
        second = replicas.enter_context(replica(scene.job))
        owner = scene.group().owner
        assert owner is not None
        assert owner.pid == first.process.pid
        second.wait_until(lambda: second.says(f"standby: group etl is owned by {owner}"), step=0)

        # Both live for five minutes, and nobody is fenced: the first one's heartbeat keeps the second one waiting.
        for turn in range(30):
            before = scene.cursor()
            first.advance(10)
            first.wait_until(lambda before=before: scene.cursor() != before, step=0)
            second.advance(10)
            if turn == 15:
                scene.produce(20)
                first.wait_until(scene.is_done)
        assert scene.group().epoch == 1
        assert scene.landed() == scene.produced

        # Killed in the middle of its work.
        scene.produce(40)
        acked = scene.group().acked
        first.wait_until(lambda: scene.group().acked != acked)
        first.process.kill()
        first.process.wait()
        scene.produce(10)  # the first may have finished the others: now something is left for the second
        second.wait_until(scene.is_done)
        second.wait_until(lambda: second.says(f"group etl is taken over from {owner}"), step=0)
        now = scene.group()
        assert (now.epoch, now.owner and now.owner.pid) == (2, second.process.pid)
        second.process.send_signal(signal.SIGTERM)
        assert second.process.wait(PATIENCE) == 0, "".join(second.lines)
    assert scene.landed() == scene.produced
    assert not scene.group().alive


def test_standby_ends_at_once_on_a_signal_and_leaves_the_owner_alone(tmp_path: Path, kind: Kind) -> None:
    scene = Scene(tmp_path, kind)
    scene.produce(5)
    with ExitStack() as replicas:
        first = replicas.enter_context(replica(scene.job))
        first.wait_until(scene.is_done)
        second = replicas.enter_context(replica(scene.job))
        second.wait_until(lambda: second.says("standby: group etl is owned by"), step=0)
        before = scene.cursor()
        second.process.send_signal(signal.SIGTERM)
        assert second.process.wait(PATIENCE) == 0, "".join(second.lines)
        assert scene.cursor() == before
        scene.produce(5)
        first.wait_until(scene.is_done)
        assert scene.group().epoch == 1


def test_standby_takes_over_as_soon_as_the_owner_has_stopped(tmp_path: Path, kind: Kind) -> None:
    scene = Scene(tmp_path, kind)
    scene.produce(5)
    with ExitStack() as replicas:
        first = replicas.enter_context(replica(scene.job))
        first.wait_until(scene.is_done)
        second = replicas.enter_context(replica(scene.job))
        second.wait_until(lambda: second.says("standby: group etl is owned by"), step=0)
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(PATIENCE) == 0, "".join(first.lines)
        second.advance(2)
        second.wait_until(lambda: second.says("group etl is taken over from"), step=0)
        scene.produce(5)
        second.wait_until(scene.is_done)
    assert scene.landed() == scene.produced

"""One owner at a time: rfcs/0004. Between processes on files and on a real S3 server, and at every store call."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kinds import BYTES, ROWS, Kind

from forebay.buffer.base.errors import Fenced, ForebayError
from forebay.buffer.consumer import Consumer
from forebay.buffer.manifest import Manifest, Queue, UnnamedReader
from forebay.buffer.store import ObjectStore, open_store
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import FaultyStore, ManualClock
from forebay.testing.servers import SeaweedServer

BATCHES = 60

CONSUMER = textwrap.dedent("""
    import json, sys
    from forebay import Consumer, Fenced

    url, options = sys.argv[1], json.loads(sys.argv[2])
    sys.stdin.readline()  # all at once
    consumer = Consumer(url, storage_options=options)
    try:
        for _ in range(8):
            for descriptor in consumer.next_descriptors(2):
                consumer.ack_through(descriptor.sequence)
                print(json.dumps([consumer.epoch, descriptor.sequence]), flush=True)
        sys.stdin.readline()  # until everyone has opened
        consumer.next_descriptors(1)
        print('"alive"')
    except Fenced:
        print('"fenced"')
""")


PROFILES = pytest.mark.parametrize("profile", ["native", "opendata", "rows"])
"""Either version of the manifest, and a buffer of rows, which is of version 2."""


def fill(store: ObjectStore, profile: str, count: int) -> None:
    """Make a buffer of a profile, and append batches of one entry each."""
    kind = begin(store, profile)
    batches = [kind.upload(store, f"data/{i}.batch", [b"x"]) for i in range(count)]
    Queue(store).append(batches, schemas=Queue(store).read().schemas)


def begin(store: ObjectStore, profile: str) -> Kind:
    if profile == "opendata":
        store.create("manifest", Manifest.empty("new").to_bytes())
    kind = ROWS if profile == "rows" else BYTES
    kind.begin(store)
    return kind


def check_rivals(url: str, options: dict[str, Any], profile: str = "native") -> None:
    """Four processes open the buffer at once: one stays, and no batch is acknowledged by two of them."""
    fill(open_store(url, options), profile, BATCHES)
    rivals = [
        subprocess.Popen(
            [sys.executable, "-c", CONSUMER, url, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    try:
        for rival in rivals:
            assert rival.stdin is not None
            rival.stdin.write("go\n")
            rival.stdin.flush()
        lines: list[list[Any]] = [[] for _ in rivals]
        # The last claim decides; everyone has claimed once each has said something or has been fenced.
        for number, rival in enumerate(rivals):
            assert rival.stdout is not None
            lines[number].append(json.loads(rival.stdout.readline()))
        for number, rival in enumerate(rivals):
            assert rival.stdin is not None
            assert rival.stdout is not None
            rival.stdin.close()
            lines[number] += [json.loads(line) for line in rival.stdout]
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()
    assert sorted(last[-1] for last in lines) == ["alive", "fenced", "fenced", "fenced"]
    acked = sorted(tuple(line) for said in lines for line in said if isinstance(line, list))
    sequences = [sequence for _epoch, sequence in acked]
    assert sequences == list(range(len(sequences))), "in the order of epochs, every batch is acknowledged once"
    assert Queue(open_store(url, options)).read().acked == len(sequences) - 1


@PROFILES
def test_one_of_four_processes_survives_on_files(tmp_path: Path, profile: str) -> None:
    for turn in range(2):
        check_rivals(f"file://{tmp_path}/{turn}", {}, profile)


@pytest.mark.parametrize("client", ["s3fs", "obstore"])
def test_one_of_four_processes_survives_on_a_real_server(weed: SeaweedServer, client: str) -> None:
    for turn in range(2):
        check_rivals(
            f"{weed.create_bucket(f'fencing-{client}-{turn}')}/buffer", {**weed.storage_options, "client": client}
        )


class Interrupted(FaultyStore):
    """Just before call `at`, another consumer takes over."""

    at: int
    taken_over: bytes | memoryview | None

    def next_fault(self, kind: str) -> Any:
        if sum(self.calls.values()) == self.at:
            Consumer(self.inner)
            self.taken_over = self.inner.get("manifest").data
        return super().next_fault(kind)


@PROFILES
def test_takeover_at_any_store_call_stops_the_old_owner_which_changes_nothing_more(profile: str) -> None:
    for at in range(100):
        inner = MemoryStore(f"memory://takeover-{profile}-{at}")
        fill(inner, profile, 6)
        store = Interrupted(inner)
        store.at, store.taken_over = at, None

        fenced = False
        try:
            consumer = Consumer(store, clock=ManualClock(), random=Random(at))
            claimed_after = store.taken_over is not None
            for batch in consumer:
                consumer.ack(batch.sequence)
                if batch.sequence % 2:
                    consumer.flush()
            consumer.close()
        except Fenced:
            fenced = True
            with pytest.raises(Fenced):
                consumer.next_batch()
        if store.taken_over is None:
            return  # the schedule has no more calls
        if claimed_after:
            continue  # the rival came before our own claim, which then came on top of it
        changed = inner.get("manifest").data != store.taken_over
        assert fenced, f"call {at}: the old owner did not notice"
        assert not changed, f"call {at}: the old owner changed the manifest after it was fenced"
    pytest.fail("the schedule has more than 100 calls")


@PROFILES
def test_claims_through_faults_never_give_two_owners_one_epoch(profile: str) -> None:
    for seed in range(150):
        inner = MemoryStore(f"memory://claims-{profile}-{seed}")
        begin(inner, profile)
        random = Random(seed)
        owned: list[int] = []

        class Contested(FaultyStore):
            """Between any two calls another rival may claim, cleanly."""

            def next_fault(self, kind: str, inner: MemoryStore = inner, random: Random = random) -> Any:
                if random.random() < 0.3:
                    owned.append(UnnamedReader(Queue(inner)).claim().epoch)  # noqa: B023 - called within this turn
                return super().next_fault(kind)

        for turn in range(4):
            store = Contested.seeded(inner, seed * 10 + turn, rate=0.5, clock=ManualClock())
            try:
                owned.append(UnnamedReader(Queue(store, clock=ManualClock(), random=random)).claim().epoch)
            except ForebayError:
                continue
            finally:
                store.land_late_requests()
        assert len(set(owned)) == len(owned), f"seed {seed}: two claims own one epoch: {owned}"

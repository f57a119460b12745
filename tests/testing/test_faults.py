"""The store that fails on purpose fails as it says."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from patience import PATIENCE

from forebay.buffer.base.errors import Unavailable, Unknown
from forebay.buffer.store import Applied, InDoubt, NotApplied
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import Crash, Fault, FaultyStore, ManualClock


@pytest.fixture
def inner(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(f"memory://{request.node.name}")


def keys(store: MemoryStore) -> list[str]:
    return [info.key for info in store.list()]


def test_requests_are_counted_by_kind(inner: MemoryStore) -> None:
    store = FaultyStore(inner)
    store.put("a", b"1")
    version = store.get("a").version
    store.get_if_changed("a", version)
    store.create("b", b"")
    store.replace("a", b"2", version)
    list(store.list())
    store.delete(["a", "b"])
    assert store.calls == {
        "put": 1,
        "get": 1,
        "get_if_changed": 1,
        "create": 1,
        "replace": 1,
        "list": 1,
        "delete": 1,
    }


@pytest.mark.parametrize(
    ("fault", "outcome", "applied"),
    [
        (Fault.LOSE_ANSWER, InDoubt, True),
        (Fault.DROP, InDoubt, False),
        (Fault.OVERLOADED, InDoubt, False),
        (Fault.OWN_RETRY, NotApplied, True),
        (Fault.BUSY, NotApplied, False),
        (Fault.DELAY, Applied, True),
    ],
)
def test_conditional_write_ends_as_its_fault_says(
    inner: MemoryStore, fault: Fault, outcome: type, applied: bool
) -> None:
    store = FaultyStore(inner, {0: fault}, clock=ManualClock())
    assert isinstance(store.create("a", b""), outcome)
    assert keys(inner) == (["a"] if applied else [])


def test_busy_store_has_not_judged_the_condition(inner: MemoryStore) -> None:
    answer = FaultyStore(inner, {0: Fault.BUSY}).create("a", b"")
    assert isinstance(answer, NotApplied)
    assert not answer.condition_failed


def test_late_request_lands_calls_later_if_its_condition_still_holds(inner: MemoryStore) -> None:
    store = FaultyStore(inner, {0: Fault.LATE})
    assert isinstance(store.create("a", b"late"), InDoubt)
    assert keys(inner) == []
    store.land_late_requests()
    assert inner.get("a").data == b"late"

    store = FaultyStore(inner, {0: Fault.LATE})
    store.create("b", b"late")
    inner.create("b", b"first")
    store.land_late_requests()
    assert inner.get("b").data == b"first"


def test_put_with_a_lost_answer_is_unknown_and_a_read_is_unavailable(inner: MemoryStore) -> None:
    store = FaultyStore(inner, {0: Fault.LOSE_ANSWER, 1: Fault.LOSE_ANSWER})
    with pytest.raises(Unknown):
        store.put("a", b"")
    with pytest.raises(Unavailable):
        store.get("a")
    assert keys(inner) == ["a"]


def test_only_the_calls_named_count(inner: MemoryStore) -> None:
    store = FaultyStore(inner, {0: Fault.FAIL}, only={"delete"})
    store.put("a", b"")
    with pytest.raises(Unavailable):
        store.delete(["a"])


def test_stalled_call_waits_for_its_release(inner: MemoryStore) -> None:
    store = FaultyStore(inner, {0: Fault.STALL})
    thread = threading.Thread(target=store.put, args=("a", b""))
    thread.start()
    assert keys(inner) == []
    store.release()
    thread.join(timeout=PATIENCE)
    assert keys(inner) == ["a"]


@pytest.mark.parametrize(("fault", "applied"), [(Fault.CRASH, False), (Fault.CRASH_AFTER, True)])
def test_crash_is_raised_before_or_after_the_store_has_done_it(inner: MemoryStore, fault: Fault, applied: bool) -> None:
    with pytest.raises(Crash):
        FaultyStore(inner, {0: fault}).put("a", b"")
    assert keys(inner) == (["a"] if applied else [])


@pytest.mark.parametrize(("fault", "there"), [("KILL", False), ("KILL_AFTER", True)])
def test_process_is_killed_at_the_call_named(tmp_path: Path, fault: str, there: bool) -> None:
    program = (
        "from forebay import open_store\n"
        "from forebay.testing import Fault, FaultyStore\n"
        f"store = FaultyStore(open_store('file://{tmp_path}/b'), {{1: Fault.{fault}}})\n"
        "store.put('first', b''); store.put('second', b''); print('alive')"
    )
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (child.returncode, child.stdout) == (-9, b"")
    assert (tmp_path / "b" / "first").exists()
    assert (tmp_path / "b" / "second").exists() == there


def test_one_seed_gives_the_same_faults_again() -> None:
    def trace(seed: int) -> list[str]:
        store = FaultyStore.seeded(MemoryStore(f"memory://seed-{seed}"), seed, clock=ManualClock())
        answers = []
        for number in range(100):
            try:
                answers.append(type(store.create(str(number), b"")).__name__)
            except Unavailable:
                answers.append("Unavailable")
        return answers

    first = trace(1)
    MemoryStore("memory://seed-1").delete([str(number) for number in range(100)])
    assert trace(1) == first
    assert trace(2) != first


@pytest.mark.parametrize("kind", ["get", "get_if_changed"])
def test_falsified_read_has_one_bit_wrong_once_and_nothing_is_changed(inner: MemoryStore, kind: str) -> None:
    before = inner.put("a", b"before")
    inner.put("a", b"some bytes")
    store = FaultyStore(inner, {0: Fault.FALSIFY}, only={kind})
    read = (lambda: store.get("a")) if kind == "get" else (lambda: store.get_if_changed("a", before))
    falsified, sound = read(), read()
    assert falsified is not None
    assert sound is not None
    assert falsified.version == sound.version
    wrong = int.from_bytes(falsified.data, "big") ^ int.from_bytes(sound.data, "big")
    assert wrong.bit_count() == 1
    assert bytes(sound.data) == inner.get("a").data == b"some bytes"


def test_falsifying_does_nothing_to_what_returns_no_object(inner: MemoryStore) -> None:
    store = FaultyStore(inner, dict.fromkeys(range(6), Fault.FALSIFY))
    version = store.put("a", b"1")
    assert store.get_if_changed("a", version) is None
    assert isinstance(store.replace("a", b"2", version), Applied)
    assert isinstance(store.create("b", b""), Applied)
    assert store.get("b").data == b"", "there is no bit to flip"
    assert [found.key for found in store.list()] == ["a", "b"]

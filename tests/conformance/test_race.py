"""The compare-and-swap race between processes: no update is lost."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from azurite import AZURE

from forebay.buffer.store import Applied, InDoubt, NotApplied

if TYPE_CHECKING:
    from conftest import Backend, Script

    from forebay.buffer.store import ObjectStore

PROCESSES = 8
INCREMENTS = 20


@pytest.mark.parametrize("backend", ["file", "s3fs-weed", "obstore-weed", AZURE], indirect=True)
def test_no_update_of_eight_processes_is_lost(store: ObjectStore, run_script: type[Script]) -> None:
    store.create("counter", b"{}")

    racers = [run_script("increment.py", store, f"writer-{number}", INCREMENTS) for number in range(PROCESSES)]
    for racer in racers:
        racer.output()

    counts = json.loads(bytes(store.get("counter").data))
    assert counts == {f"writer-{number}": INCREMENTS for number in range(PROCESSES)}


def test_one_of_many_threads_creates_and_the_others_are_told(backend: Backend) -> None:
    store = backend.open()

    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(lambda number: store.create("key", b"%d" % number), range(16)))

    winners = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Applied)]
    assert len(winners) == 1
    assert bytes(store.get("key").data) == b"%d" % winners[0]
    assert not [outcome for outcome in outcomes if isinstance(outcome, InDoubt)]


def test_no_update_of_many_threads_is_lost(backend: Backend) -> None:
    store = backend.open()
    store.create("counter", b"0")

    with ThreadPoolExecutor(8) as pool:
        applied = sum(pool.map(lambda _: sum(_try_increment(store) for _ in range(10)), range(8)))

    assert applied > 0
    assert int(bytes(store.get("counter").data)) == applied


def _try_increment(store: ObjectStore) -> bool:
    found = store.get("counter")
    outcome = store.replace("counter", b"%d" % (int(bytes(found.data)) + 1), found.version)
    assert isinstance(outcome, Applied | NotApplied)
    return isinstance(outcome, Applied)


def test_many_threads_can_write_the_first_objects_of_a_new_folder(backend: Backend) -> None:
    store = backend.open()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: store.put(f"new/folder/{number:02}", b""), range(32)))

    assert [row.key for row in store.list()] == [f"new/folder/{number:02}" for number in range(32)]

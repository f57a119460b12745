"""Lost answers never make a false "failed" nor a second application: seeded schedules against a model (rfcs/0001)."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from forebay.buffer.base.errors import ForebayError, Unknown
from forebay.buffer.manifest.register import DEFAULT_LIMITS, Limits, Register
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import FaultyStore, ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.buffer.store.base import ObjectStore

SCHEDULES = 10_000
OPERATIONS = 4

Value = dict[str, Any]
EMPTY: Value = {"log": [], "total": 0, "writers": {}}


class RivalStore(FaultyStore):
    """Lets a rival act just before any call, so that its writes fall between any two steps of ours."""

    rival: Callable[[], None]

    def next_fault(self, kind: str) -> Any:
        self.rival()
        return super().next_fault(kind)


def open_register(store: ObjectStore, seed: int, limits: Limits = DEFAULT_LIMITS) -> Register[Value]:
    return Register(
        store,
        "cell",
        decode=lambda data: json.loads(bytes(data)),
        encode=lambda value: json.dumps(value).encode(),
        clock=ManualClock(),
        random=Random(seed),
        limits=limits,
    )


def append(writer: str, number: int) -> Callable[[Value | None], Value]:
    def change(value: Value | None) -> Value:
        value = value or EMPTY
        return {
            "log": [*value["log"], [writer, number]],
            "total": value["total"] + 1,
            "writers": {**value["writers"], writer: number},
        }

    return change


def was_appended(writer: str, number: int) -> Callable[[Value], bool]:
    return lambda value: value["writers"].get(writer, -1) >= number


def run_schedule(seed: int) -> None:
    """Four appends through faults and a rival that appends and trims; the rival's own eyes see every state."""
    random = Random(seed)
    inner = MemoryStore(f"memory://register-faults-{seed % 7}")
    inner.delete(["cell"])
    rival_register = open_register(inner, seed + 1)
    seen: dict[tuple[str, int], int] = {}
    rival_count = 0

    def rival() -> None:
        nonlocal rival_count
        if random.random() < 0.2:
            rival_count += 1
            rival_register.update(append("rival", rival_count), was_appended("rival", rival_count))
        if random.random() < 0.2:
            take()

    def take() -> None:
        """Trim the log as a collector would, so that our own entries may be gone when we look for them."""
        snapshot = rival_register.read()
        if snapshot.value is None or not snapshot.value["log"]:
            return
        rival_register.update(
            lambda value: {**(value or EMPTY), "log": [], "total": (value or EMPTY)["total"] + 1}, lambda _value: False
        )
        for writer, number in snapshot.value["log"]:
            seen[writer, number] = seen.get((writer, number), 0) + 1

    store = RivalStore.seeded(inner, seed, rate=0.45, clock=ManualClock())
    assert isinstance(store, RivalStore)
    store.rival = rival
    register = open_register(store, seed, Limits(max_attempts=6))

    answers: dict[int, str] = {}
    for number in range(OPERATIONS):
        try:
            register.update(append("us", number), was_appended("us", number))
            answers[number] = "applied"
        except Unknown:
            answers[number] = "unknown"
            break  # one append is in flight per writer: after an unknown one, no later number may be sent
        except ForebayError:
            answers[number] = "not applied"
    store.land_late_requests()
    take()

    for number, answer in answers.items():
        times = seen.get(("us", number), 0)
        expected = {"applied": {1}, "not applied": {0}, "unknown": {0, 1}}[answer]
        assert times in expected, f"seed {seed}: append {number} was answered {answer!r} and is there {times} times"
    for number in range(1, rival_count + 1):
        assert seen.get(("rival", number), 0) == 1, f"seed {seed}: the rival's append {number} was lost or doubled"


@pytest.mark.parametrize("block", range(10))
def test_lost_answers_never_make_a_false_failure_nor_a_second_application(block: int) -> None:
    size = SCHEDULES // 10
    for seed in range(block * size, (block + 1) * size):
        run_schedule(seed)

"""The compare-and-swap cell: rfcs/0001, "Settling a write"."""

from __future__ import annotations

import json
import pickle
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from forebay.buffer.base.errors import Denied, Fenced, InvalidInput, NotFound, Timeout, Unavailable, Unknown
from forebay.buffer.manifest.register import Limits, Register
from forebay.buffer.store.memory import MemoryStore
from forebay.testing import Fault, FaultyStore, ManualClock

if TYPE_CHECKING:
    from forebay.buffer.store.base import ObjectStore

Value = dict[str, Any]


def open_register(store: ObjectStore, **settings: Any) -> Register[Value]:
    settings.setdefault("clock", ManualClock())
    settings.setdefault("random", Random(1))
    return Register(
        store,
        "cell",
        decode=lambda data: json.loads(bytes(data)),
        encode=lambda value: json.dumps(value).encode(),
        **settings,
    )


def add(name: str) -> Any:
    return lambda value: {"names": [*(value or {"names": []})["names"], name]}


def holds(name: str) -> Any:
    return lambda value: name in value["names"]


@pytest.fixture
def inner(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(f"memory://{request.node.name}")


def test_missing_object_reads_as_none_and_is_created_by_the_first_update(inner: MemoryStore) -> None:
    register = open_register(inner)
    assert register.read().value is None

    made = register.update(add("a"), holds("a"))

    assert made.value == {"names": ["a"]}
    assert register.read() == made


def test_update_that_changes_nothing_writes_nothing(inner: MemoryStore) -> None:
    store = FaultyStore(inner)
    register = open_register(store)

    register.update(lambda _value: None, holds("a"))

    assert store.calls == {"get": 1}


def test_known_snapshot_saves_the_read(inner: MemoryStore) -> None:
    store = FaultyStore(inner)
    register = open_register(store)
    known = register.update(add("a"), holds("a"))
    store.calls.clear()

    register.update(add("b"), holds("b"), known=known)

    assert store.calls == {"replace": 1}


def test_refusal_on_an_old_snapshot_is_decided_again_on_a_fresh_read(inner: MemoryStore) -> None:
    register = open_register(inner)
    old = register.update(add("a"), holds("a"))
    register.update(add("b"), holds("b"), known=old)

    def only_after_b(value: Value | None) -> Value:
        if value is None or "b" not in value["names"]:
            raise Fenced("too early")
        return {"names": [*value["names"], "c"]}

    assert register.update(only_after_b, holds("c"), known=old).value == {"names": ["a", "b", "c"]}


def test_what_change_raises_ends_the_update_with_nothing_applied(inner: MemoryStore) -> None:
    register = open_register(inner)

    def refuse(_value: Value | None) -> Value:
        raise Fenced("another owner")

    with pytest.raises(Fenced, match="another owner"):
        register.update(refuse, holds("a"))
    assert register.read().value is None


def test_unchanged_cell_is_read_for_the_price_of_a_conditional_read(inner: MemoryStore) -> None:
    store = FaultyStore(inner)
    register = open_register(store)
    known = register.update(add("a"), holds("a"))
    store.calls.clear()

    assert register.read(known) is known
    assert store.calls == {"get_if_changed": 1}

    made = register.update(add("b"), holds("b"))
    assert register.read(known) == made


def test_update_that_writes_the_same_bytes_is_refused(inner: MemoryStore) -> None:
    """Versions are content hashes on S3: the same bytes again could not be told from no write at all."""
    register = open_register(inner)
    register.update(add("a"), holds("a"))
    with pytest.raises(InvalidInput, match="must change the bytes"):
        register.update(lambda value: value, holds("a"))


@pytest.mark.parametrize(
    "fault",
    [
        Fault.FAIL,
        Fault.LOSE_ANSWER,
        Fault.DROP,
        Fault.LATE,
        Fault.OWN_RETRY,
        Fault.BUSY,
        Fault.OVERLOADED,
        Fault.DELAY,
    ],
)
@pytest.mark.parametrize("write", ["create", "replace"])
def test_one_fault_in_a_write_still_applies_it_exactly_once(inner: MemoryStore, fault: Fault, write: str) -> None:
    if write == "replace":
        open_register(inner).update(add("earlier"), holds("earlier"))
    store = FaultyStore(inner, {0: fault}, only={write}, clock=ManualClock())
    register = open_register(store)

    register.update(add("a"), holds("a"))
    store.land_late_requests()

    value = register.read().value
    assert value is not None
    assert value["names"].count("a") == 1


def test_lost_write_that_may_yet_land_ends_in_unknown_when_the_limits_are_reached(inner: MemoryStore) -> None:
    store = FaultyStore(inner, {0: Fault.DROP}, only={"create"})
    register = open_register(store, limits=Limits(max_attempts=1))
    with pytest.raises(Unknown, match="may yet be applied"):
        register.update(add("a"), holds("a"))


def test_lost_write_overtaken_by_another_is_settled_as_not_applied(inner: MemoryStore) -> None:
    store = FaultyStore(inner, {0: Fault.DROP}, only={"create"})
    register = open_register(store, limits=Limits(max_attempts=1))
    rival = open_register(inner)

    def change(value: Value | None) -> Value:
        # The rival's write comes between our read and our write.
        rival.update(add("rival"), holds("rival"))
        return {"names": ["a"]}

    with pytest.raises(Timeout, match="nothing was applied"):
        register.update(change, holds("a"))
    assert rival.read().value == {"names": ["rival"]}


def test_error_while_a_write_is_in_doubt_is_reported_as_unknown(inner: MemoryStore) -> None:
    unreachable_after_the_write = dict.fromkeys(range(2, 50), Fault.FAIL)
    store = FaultyStore(inner, {1: Fault.LOSE_ANSWER, **unreachable_after_the_write}, only={"create", "get"})
    register = open_register(store, limits=Limits(max_attempts=10))
    with pytest.raises(Unknown, match="reading it back failed"):
        register.update(add("b"), holds("b"))
    assert inner.get("cell").data == b'{"names": ["b"]}'


def test_store_that_cannot_be_reached_is_reported_as_it_is_when_nothing_was_written(inner: MemoryStore) -> None:
    register = open_register(FaultyStore(inner, dict.fromkeys(range(50), Fault.FAIL)), limits=Limits(max_attempts=10))
    with pytest.raises(Unavailable):
        register.update(add("a"), holds("a"))


def test_time_limit_ends_an_update_that_never_wins(inner: MemoryStore) -> None:
    clock = ManualClock()
    register = open_register(inner, clock=clock, limits=Limits(max_attempts=10**9, max_seconds=30))
    rival = open_register(inner)
    turn = 0

    def always_late(value: Value | None) -> Value:
        nonlocal turn
        turn += 1
        rival.update(add(f"rival-{turn}"), holds(f"rival-{turn}"))
        return {"names": [*(value or {"names": []})["names"], "a"]}

    with pytest.raises(Timeout, match="changed before each attempt"):
        register.update(always_late, holds("a"))
    assert clock.monotonic() >= 30
    assert register.conflict_rate == 1.0
    assert rival.conflict_rate == 0.0


def test_denied_write_is_raised_at_once(inner: MemoryStore) -> None:
    class DeniedStore(FaultyStore):
        def create(self, key: str, data: Any) -> Any:
            self.calls["create"] += 1
            raise Denied("no")

    store = DeniedStore(inner)
    with pytest.raises(Denied):
        open_register(store).update(add("a"), holds("a"))
    assert store.calls["create"] == 1


def test_missing_bucket_is_not_taken_for_a_missing_object(inner: MemoryStore) -> None:
    class NoBucket(FaultyStore):
        def get(self, key: str) -> Any:
            raise NotFound("the bucket does not exist", bucket=True)

    with pytest.raises(NotFound, match="bucket"):
        open_register(NoBucket(inner)).read()
    assert pickle.loads(pickle.dumps(NotFound("gone", bucket=True))).bucket


@pytest.mark.parametrize("bad", [{"max_attempts": 0}, {"max_seconds": 0}, {"max_seconds": float("nan")}])
def test_limits_that_allow_nothing_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Limits(**bad)

"""Unknown outcomes against a real server and really broken connections: nothing false is ever said of a write.

Mutation notes: each of these lines, removed, fails a test here. `session._retry_connection = False` with the count of
`_note_connection` (s3), `"max_retries": 0` (native), and the branch on `in_doubt` in `judge_conditional_write`.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from patience import wait_for

from forebay.buffer.base.errors import NotFound, Unavailable
from forebay.buffer.store import Applied, InDoubt, NotApplied, ObjectStore
from forebay.testing.proxy import Fault, FaultProxy

if TYPE_CHECKING:
    from conftest import Backend

    Proxied = tuple[Backend, FaultProxy]

APPLIED_AND_LOST = [
    Fault.CUT_BEFORE_ANSWER,
    Fault.RESET_BEFORE_ANSWER,
    Fault.CUT_IN_ANSWER,
    Fault.STALL_BEFORE_ANSWER,
]
NEVER_ARRIVED = [Fault.CUT_BEFORE_REQUEST, Fault.CUT_IN_HEAD, Fault.CUT_IN_BODY]


def open_behind(proxy: FaultProxy, server: Backend, fault: Fault) -> ObjectStore:
    """A store to which the fault happens. It waits for an answer for a short time only where none will come."""
    proxy.choose = lambda _: fault
    limits = {"read_timeout": 1.0} if fault is Fault.STALL_BEFORE_ANSWER else {}
    return server.open_at(proxy.endpoint_url, **limits)


def await_server(proxy: FaultProxy, fault: Fault) -> None:
    """A client that gives up may do so before a slow server has done what it was asked for."""
    if fault in APPLIED_AND_LOST:
        wait_for(lambda: proxy.answered)


def read(store: ObjectStore, key: str) -> bytes | None:
    try:
        return bytes(store.get(key).data)
    except NotFound:
        return None


@pytest.mark.parametrize("fault", [*APPLIED_AND_LOST, *NEVER_ARRIVED])
def test_a_create_whose_answer_is_lost_is_in_doubt(proxied: Proxied, fault: Fault) -> None:
    server, proxy = proxied
    store = open_behind(proxy, server, fault)

    outcome = store.create("key", b"mine")

    assert isinstance(outcome, InDoubt)
    await_server(proxy, fault)
    assert read(server.open(), "key") == (b"mine" if fault in APPLIED_AND_LOST else None)


@pytest.mark.parametrize("fault", [*APPLIED_AND_LOST, *NEVER_ARRIVED])
def test_a_replace_whose_answer_is_lost_is_in_doubt(proxied: Proxied, fault: Fault) -> None:
    server, proxy = proxied
    store = open_behind(proxy, server, fault)
    version = server.open().put("key", b"old")

    outcome = store.replace("key", b"mine", version)

    assert isinstance(outcome, InDoubt)
    await_server(proxy, fault)
    assert read(server.open(), "key") == (b"mine" if fault in APPLIED_AND_LOST else b"old")


def test_an_idle_connection_that_ended_unseen_leads_to_nothing_false(proxied: Proxied) -> None:
    server, proxy = proxied
    store = server.open_at(proxy.endpoint_url)
    direct = server.open()
    proxy.choose = lambda _: Fault.CUT_AFTER_ANSWER

    for number in range(50):
        check_create(store, direct, f"key-{number}")


def check_create(store: ObjectStore, direct: ObjectStore, key: str) -> type:
    """Create an object that is not there, and compare what was said with what is."""
    try:
        outcome = store.create(key, key.encode())
    except Unavailable:
        assert read(direct, key) is None, "an error claimed that nothing was applied"
        return Unavailable
    if isinstance(outcome, Applied):
        assert direct.get(key).version == outcome.version
    assert not isinstance(outcome, NotApplied), "nobody else writes here: this is our own write, taken for another's"
    return type(outcome)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_hundreds_of_conditional_writes_through_a_faulty_network_report_nothing_false(
    proxied: Proxied, seed: int
) -> None:
    server, proxy = proxied
    chance = Random(seed)
    faults = [fault for fault in Fault if fault not in {Fault.NONE, Fault.STALL_BEFORE_ANSWER}]
    store = server.open_at(proxy.endpoint_url, max_attempts=1)
    direct = server.open()
    proxy.choose = lambda _: chance.choice(faults) if chance.random() < 0.5 else Fault.NONE
    seen = []

    for number in range(100):
        key = f"key-{number}"
        seen.append(check_create(store, direct, key))
        version = direct.put(key, b"base-%d" % number)
        mine = b"mine-%d" % number
        outcome = store.replace(key, mine, version)
        applied = read(direct, key) == mine
        assert applied or not isinstance(outcome, Applied), outcome
        assert not isinstance(outcome, NotApplied), "the version was current: our own write is taken for another's"
        stale = store.replace(key, b"stale-%d" % number, '"00000000000000000000000000000000"')
        assert not isinstance(stale, Applied), stale
        seen += [type(outcome), type(stale)]

    assert {Applied, InDoubt, NotApplied} <= set(seen)
    assert len(proxy.requests) <= 300, "something was sent twice"

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
    from collections.abc import Iterator

    from conftest import Backend

    from forebay.testing.servers import SeaweedServer

APPLIED_AND_LOST = [
    Fault.CUT_BEFORE_ANSWER,
    Fault.RESET_BEFORE_ANSWER,
    Fault.CUT_IN_ANSWER,
    Fault.STALL_BEFORE_ANSWER,
]
NEVER_ARRIVED = [Fault.CUT_BEFORE_REQUEST, Fault.CUT_IN_HEAD, Fault.CUT_IN_BODY]


@pytest.fixture
def proxy(weed: SeaweedServer) -> Iterator[FaultProxy]:
    with FaultProxy(weed.endpoint_url) as proxy:
        yield proxy


def open_behind(proxy: FaultProxy, s3: Backend, fault: Fault) -> ObjectStore:
    """A store to which the fault happens. It waits for an answer for a short time only where none will come."""
    proxy.choose = lambda _: fault
    limits = {"read_timeout": 1.0} if fault is Fault.STALL_BEFORE_ANSWER else {}
    return s3.open(endpoint_url=proxy.endpoint_url, **limits)


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
def test_a_create_whose_answer_is_lost_is_in_doubt(s3: Backend, proxy: FaultProxy, fault: Fault) -> None:
    store = open_behind(proxy, s3, fault)

    outcome = store.create("key", b"mine")

    assert isinstance(outcome, InDoubt)
    await_server(proxy, fault)
    assert read(s3.open(), "key") == (b"mine" if fault in APPLIED_AND_LOST else None)


@pytest.mark.parametrize("fault", [*APPLIED_AND_LOST, *NEVER_ARRIVED])
def test_a_replace_whose_answer_is_lost_is_in_doubt(s3: Backend, proxy: FaultProxy, fault: Fault) -> None:
    store = open_behind(proxy, s3, fault)
    version = s3.open().put("key", b"old")

    outcome = store.replace("key", b"mine", version)

    assert isinstance(outcome, InDoubt)
    await_server(proxy, fault)
    assert read(s3.open(), "key") == (b"mine" if fault in APPLIED_AND_LOST else b"old")


def test_an_idle_connection_that_ended_unseen_leads_to_nothing_false(s3: Backend, proxy: FaultProxy) -> None:
    store = s3.open(endpoint_url=proxy.endpoint_url)
    direct = s3.open()
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


@pytest.mark.parametrize("seed", range(2))
def test_hundreds_of_conditional_writes_through_a_faulty_network_report_nothing_false(
    s3: Backend, proxy: FaultProxy, seed: int
) -> None:
    chance = Random(seed)
    faults = [fault for fault in Fault if fault not in {Fault.NONE, Fault.STALL_BEFORE_ANSWER}]
    store = s3.open(endpoint_url=proxy.endpoint_url, max_attempts=1)
    direct = s3.open()
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

"""Ctrl-C at every point of a call where Python handles signals: afterwards the producer still ends, and loses nothing.

Python looks for signals where a function begins, where a loop jumps back and where a call returns. A trace function
raises `KeyboardInterrupt` right after each of these, one run for each.
"""

from __future__ import annotations

import dis
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from patience import PATIENCE

import forebay.buffer
from forebay import Consumer, Producer, ProducerLimits
from forebay.buffer.base.errors import Backpressure, InvalidInput, Unavailable
from forebay.buffer.coordinator.handle import WriteHandle
from forebay.buffer.store.base import Data
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import TopicProducer, create_topic, partition_for

OURS = str(Path(forebay.buffer.__file__).parent)
ENTRY = b"x" * 90
Act = Callable[[], object]


def looks_for_signals(frame: FrameType, last: int) -> bool:
    """Whether the instruction that was just done is one after which Python looks for signals."""
    name = dis.opname[frame.f_code.co_code[last]] if last >= 0 else "RESUME"
    return name in {"RESUME", "JUMP_BACKWARD"} or (name.startswith("CALL") and name != "CALL_INTRINSIC_1")


def interrupt(act: Act, at: int, *, within: tuple[str, ...] = (OURS,)) -> bool:
    """Run `act`, with an interrupt at its n-th such point in these files; return whether it came to that."""
    passed = 0
    reached = False

    def trace(frame: FrameType, _event: str, _arg: object) -> Any:
        where = frame.f_code.co_filename
        if not where.startswith((*within, threading.__file__)) or frame.f_code.co_name == "__del__":
            return None
        frame.f_trace_opcodes = True
        last = -1

        def step(frame: FrameType, event: str, _arg: object) -> Any:
            nonlocal passed, reached, last
            if event == "opcode":
                before, last = last, frame.f_lasti
                passed += looks_for_signals(frame, before)
                if passed == at and not reached:
                    reached = True
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return step

        return step

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return reached


class _Failing(MemoryStore):
    """A store that holds a write back until the test releases it, and then fails it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.fails = False
        self.asked, self.go_on = threading.Event(), threading.Event()

    def put(self, key: str, data: Data) -> str:
        if not self.fails:
            return super().put(key, data)
        self.asked.set()
        self.go_on.wait()
        raise Unavailable("the disk is full")


def close_in_thread(producer: Producer | TopicProducer) -> None:
    """Close it from a thread that can be given up on: a producer that does not stop is what this is about."""
    failures: list[BaseException] = []

    def close() -> None:
        try:
            producer.close()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    thread = threading.Thread(target=close, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it does not stop"
    if failures:
        raise failures[0]


def every_point(act_on: Callable[[Producer, list[WriteHandle[None]]], Act], name: str) -> Iterator[None]:
    """Interrupt an action at each of its points, each time of a new producer, and check what is left of it."""
    for at in chain([-1], count(1)):  # first without one: Python 3.13 traces functions from their second call on
        store = MemoryStore(f"memory://interrupt-{name}-{at}")
        producer = Producer(store, flush_interval=0.001, limits=ProducerLimits(buffered_calls=3, buffered_bytes=300))
        handles: list[WriteHandle[None]] = []
        reached = interrupt(act_on(producer, handles), at)

        close_in_thread(producer)
        assert all(handle.done() for handle in handles), f"point {at}"
        for handle in handles:
            handle.result()
        with Consumer(store) as consumer:
            found = sum(len(batch) for batch in consumer.batches(wait=False))
        assert found >= len(handles), f"point {at}"
        if not reached and at > 0:
            assert at > 1
            return
        yield


def produce(producer: Producer, handles: list[WriteHandle[None]]) -> Act:
    return lambda: handles.append(producer.produce(ENTRY))


def produce_into_full_buffers(producer: Producer, handles: list[WriteHandle[None]]) -> Act:
    def act() -> None:
        for _ in range(8):
            handles.append(producer.produce(ENTRY))  # noqa: PERF401 - those before an interrupt are kept

    return act


def try_produce(producer: Producer, handles: list[WriteHandle[None]]) -> Act:
    def act() -> None:
        try:
            while True:
                handles.append(producer.try_produce(ENTRY))
        except Backpressure:
            pass

    return act


def wait_for_result(producer: Producer, handles: list[WriteHandle[None]]) -> Act:
    handles.append(producer.produce(ENTRY))
    return handles[0].result


def flush(producer: Producer, handles: list[WriteHandle[None]]) -> Act:
    handles.append(producer.produce(ENTRY))
    return lambda: producer.flush().result()


def close(producer: Producer, handles: list[WriteHandle[None]]) -> Act:
    handles.append(producer.produce(ENTRY))
    return producer.close


@pytest.mark.parametrize(
    "act_on", [produce, produce_into_full_buffers, try_produce, wait_for_result, flush, close], ids=lambda f: f.__name__
)
def test_producer_interrupted_anywhere_still_stops_and_loses_nothing(act_on: Any) -> None:
    points = 0
    for _ in every_point(act_on, act_on.__name__):
        points += 1
        if points == 400:  # how often it waits differs from run to run
            break
    assert points > 5


def test_error_of_a_close_that_was_interrupted_is_told_by_the_next_one() -> None:
    store = _Failing("memory://interrupt-error")
    # Closing makes the only flush, and gives up at the first failure.
    producer = Producer(store, flush_interval=1000, retry_timeout=0.001)
    producer.produce(ENTRY)
    store.fails = True
    main = threading.get_ident()
    interrupted = threading.Event()

    def press_ctrl_c() -> None:
        store.asked.wait()
        signal.pthread_kill(main, signal.SIGINT)
        # If the signal comes just before Python begins to wait, it is noticed only with the next signal.
        while not interrupted.wait(0.05):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    # A shell that starts a program in the background lets it ignore this signal.
    before_int = signal.signal(signal.SIGINT, signal.default_int_handler)
    presser = threading.Thread(target=press_ctrl_c)
    presser.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            producer.close()
    finally:
        interrupted.set()
        presser.join()
        signal.signal(signal.SIGUSR1, before)
        signal.signal(signal.SIGINT, before_int)

    store.go_on.set()
    with pytest.raises(Unavailable, match="the disk is full"):
        producer.close()
    producer.close()


def test_call_that_may_be_queued_is_not_taken_again_under_its_number() -> None:
    for at in count(1):
        store = MemoryStore(f"memory://interrupt-number-{at}")
        producer = Producer(store, writer_id="w")
        reached = interrupt(lambda producer=producer: producer.produce(ENTRY, number=1), at)  # type: ignore[misc]
        with suppress(InvalidInput):  # it may be there: only opening the producer again tells
            producer.produce(ENTRY, number=1)
        close_in_thread(producer)
        with Consumer(store) as consumer:
            assert sum(len(batch) for batch in consumer.batches(wait=False)) <= 1, f"point {at}"
        if not reached:
            return


def test_interrupted_call_of_a_topic_producer_gives_its_room_back() -> None:
    create_topic("memory://interrupt-topic", 1)
    for at in count(1):
        with TopicProducer("memory://interrupt-topic", limits=ProducerLimits(buffered_bytes=400)) as producer:
            reached = interrupt(lambda producer=producer: producer.produce(ENTRY), at)  # type: ignore[misc]
            producer.produce(b"x" * 390, timeout=PATIENCE)  # which has room alone
        if not reached:
            return


def test_partition_interrupted_while_it_is_opened_leaves_no_thread_behind() -> None:
    within = (f"{OURS}/coordinator/", f"{OURS}/write/writer.py")
    keys = [next(key for key in (b"%d" % n for n in range(99)) if partition_for(key, 2) == number) for number in (0, 1)]
    for at in count(1):
        url = f"memory://interrupt-opening-{at}"
        create_topic(url, 2)
        producer = TopicProducer(url, flush_interval=1000)

        def act(producer: TopicProducer = producer) -> None:
            for key in keys:
                producer.produce(ENTRY, key=key)

        reached = interrupt(act, at, within=within)
        close_in_thread(producer)
        for thread in threading.enumerate():
            if url in thread.name:
                thread.join(PATIENCE)
                assert not thread.is_alive(), f"point {at}"
        if not reached:
            assert at > 20
            return

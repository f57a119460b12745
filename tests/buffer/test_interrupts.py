"""An interrupt at any instruction of a read skips no batch: rfcs/0004, "The way out"."""

from __future__ import annotations

import asyncio
import dis
import sys
import threading
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any, Self

import pytest
from kinds import append_all, kind_in

from forebay.buffer.base import metrics
from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.consumer import Consumer
from forebay.buffer.manifest import Queue
from forebay.buffer.read.ahead import FetchWindow
from forebay.buffer.read.iteration import BaseConsumer
from forebay.buffer.read.position import ReadPosition
from forebay.buffer.read.threads import FetchThreads
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import Topic, TopicConsumer, create_topic

AHEAD = {method.__code__.co_filename for method in (FetchWindow.add, FetchThreads.run)}
"""The modules that fetch ahead. Their locks are taken by threads too, so an interrupt must not leave one taken."""
FILES = {
    method.__code__.co_filename
    for method in (BaseConsumer.next_batch, Consumer.look, TopicConsumer.next_descriptors, ReadPosition.hand_out)
}
"""The modules of the read path."""
BATCHES = 4
"""In all partitions together."""
CHECKING = {"RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD"}
"""After these, CPython looks for signals."""
RETURNING = {"SWAP", "POP_TOP", "RETURN_VALUE", "RETURN_CONST"}
"""What follows the last moment at which CPython raises an interrupt in a call that is about to return."""
UNCOVERED = {"NOT_TAKEN"}
"""Python 3.14 may leave these out of the `try` block around them, because they do nothing and raise nothing."""


class Interrupter:
    """Raises `KeyboardInterrupt` before the instruction of a number, counted in the read path of this thread.

    Unless `anywhere`, only those count that CPython itself can interrupt. Elsewhere, such as between the end of a
    `with` block and the release of its lock, an interrupt would leave the lock to this thread for ever.
    """

    def __init__(self, number: int, *, anywhere: bool, files: Collection[str] = FILES) -> None:
        self._left = number
        self._files = files
        self._anywhere = anywhere
        self._before: dict[FrameType, str] = {}
        self.raised = False

    def __enter__(self) -> Self:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if self.raised or frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._step

    def _step(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "opcode" and not self.raised:
            name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            before, self._before[frame] = self._before.get(frame, ""), name
            if not self._can_interrupt(frame, before, name):
                return self._step
            if self._left == 0:
                self.raised = True
                raise KeyboardInterrupt
            self._left -= 1
        return self._step

    def _can_interrupt(self, frame: FrameType, before: str, name: str) -> bool:
        if not self._anywhere:
            return before in CHECKING
        if name in UNCOVERED:
            return False
        is_outermost = frame.f_back is None or frame.f_back.f_code.co_filename not in self._files
        return not (is_outermost and name in RETURNING)


def append(store: Any, count: int) -> None:
    queue = Queue(store)
    for _ in range(count):
        number = queue.read().next_sequence
        append_all(queue, [kind_in(store).upload(store, f"data/{number}.batch", [b"%d" % number])])


Found = list[tuple[int, int]]
"""Partitions and sequences."""


def place(found: Any) -> tuple[int, int]:
    """The partition and the sequence of whatever a consumer returns."""
    return (found.partition, found[1].sequence) if isinstance(found, tuple) else (0, found.sequence)


def by_next_batch(consumer: Any) -> Found:
    batch = consumer.next_batch()
    return [] if batch is None else [place(batch)]


def by_descriptors(consumer: Any) -> Found:
    return [place(found) for found in consumer.next_descriptors(2)]


def by_for(consumer: Any) -> Found:
    batch = next(consumer.batches(), None)
    return [] if batch is None else [place(batch)]


def by_async_for(consumer: Any) -> Found:
    async def read() -> Found:
        batch = await anext(consumer.batches(), None)
        return [] if batch is None else [place(batch)]

    return asyncio.run(read())


READERS: list[Callable[[Any], Found]] = [by_next_batch, by_descriptors, by_for, by_async_for]


def fill(store: MemoryStore, partitions: int) -> None:
    """Append all batches, to a buffer, or to a topic with this number of partitions."""
    if partitions:
        create_topic(store, partitions)
        for number in range(partitions):
            append(Topic(store).partition(number), BATCHES // partitions)
    else:
        append(store, BATCHES)


def open_consumer(filled: MemoryStore, partitions: int) -> Any:
    """A consumer of a copy of everything. Close it: its threads would live on for a second, by the hundred."""
    copy = MemoryStore(f"{filled.url}-copy")
    copy.delete([found.key for found in copy.list()])
    for found in filled.list():
        copy.put(found.key, bytes(filled.get(found.key).data))
    return TopicConsumer(copy) if partitions else Consumer(copy)


def read_all(consumer: Any, read: Callable[[Any], Found], interrupter: Interrupter) -> Found:
    """Everything that is returned, reading on after an interrupt in one of the first two calls."""
    found: Found = []
    for _ in range(2):
        try:
            with interrupter:
                found += read(consumer)
        except KeyboardInterrupt:
            pass
    while got := read(consumer):
        found += got
    return found


@pytest.mark.filterwarnings("ignore:coroutine 'to_thread' was never awaited")
@pytest.mark.parametrize("partitions", [0, 1, 2], ids=["buffer", "topic of one", "topic of two"])
@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_interrupt_at_any_instruction_skips_no_batch(
    request: pytest.FixtureRequest, partitions: int, read: Callable[[Any], Found]
) -> None:
    store = MemoryStore(f"memory://{request.node.name}")
    fill(store, partitions)
    for instruction in range(100_000):
        consumer = open_consumer(store, partitions)
        interrupter = Interrupter(instruction, anywhere=not partitions and read is not by_async_for)
        found = read_all(consumer, read, interrupter)
        assert len(found) == BATCHES, f"interrupted at {instruction}: {found}"
        for number in range(max(1, partitions)):
            sequences = [sequence for partition, sequence in found if partition == number]
            assert sequences == list(range(len(sequences))), f"interrupted at {instruction}: partition {number}"
            for sequence in sequences:
                consumer.ack(*((number, sequence) if partitions else (sequence,)))
        consumer.close()
        if not interrupter.raised:
            break
    assert instruction > 10, "it was interrupted all the way"


@pytest.mark.parametrize("partitions", [0, 2], ids=["buffer", "topic"])
def test_interrupt_while_batches_are_fetched_ahead_skips_none(request: pytest.FixtureRequest, partitions: int) -> None:
    store = MemoryStore(f"memory://{request.node.name}")
    fill(store, partitions)
    for instruction in range(100_000):
        interrupter = Interrupter(instruction, anywhere=False, files=FILES | AHEAD)
        with open_consumer(store, partitions) as consumer:
            found = read_all(consumer, by_for, interrupter)
        assert len(set(found)) == len(found) == BATCHES, f"interrupted at {instruction}: {found}"
        if not interrupter.raised:
            break
    assert instruction > 10, "it was interrupted all the way"


def test_nothing_is_acknowledged_past_a_batch_that_was_lost_while_another_thread_read_on(inner: MemoryStore) -> None:
    """The one case in which the position cannot be moved back."""
    append(inner, 4)
    consumer = Consumer(inner)
    other: list[Any] = []

    class Metric:
        """Stands for the moment after the position has moved."""

        def add(self, *_: object) -> None:
            if not other:
                other.append(None)
                reader = threading.Thread(target=lambda: other.append(consumer.next_batch()))
                reader.start()
                reader.join()
                raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "descriptors_handed_out", Metric())
        with pytest.raises(KeyboardInterrupt):
            consumer.next_batch()
    assert other[1].sequence == 1, "another thread read on behind the interrupted batch 0"
    for acknowledge in (consumer.ack, consumer.ack_through):
        with pytest.raises(InvalidInput, match="open a new consumer"):
            acknowledge(1)
    assert [batch.sequence for batch in Consumer(inner)] == [0, 1, 2, 3]

"""A hold on every partition of a topic: taken and let go of together (rfcs/0005)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from forebay.buffer.base.counted import counted
from forebay.buffer.base.lifecycle import Closing, shows_unopened
from forebay.buffer.holds import hold_range
from forebay.buffer.topic.batches import PartitionDescriptor
from forebay.buffer.topic.topic import check_place, close_all, in_parallel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from forebay.buffer.holds import HeldRange
    from forebay.buffer.topic.topic import Topic

_log = logging.getLogger("forebay.holds")


class HeldTopic(Closing):
    """A range of batches in every partition that a topic had, which stays until this is closed."""

    def __init__(self, url: str, partitions: tuple[HeldRange, ...]) -> None:
        self.url = url
        """The topic."""
        self.partitions = partitions
        """The range held in each partition, by its number. To be closed here, not one by one."""

    def __len__(self) -> int:
        return sum(map(len, self.partitions))

    def __bool__(self) -> bool:
        return True  # an empty range is still held

    def check(self) -> None:
        """Return if the hold is in force in every partition.

        Raises:
            Fenced: it expired in one and was removed. Run the job again under a new hold.
            Closed: it was closed.
        """
        for held in self.partitions:
            held.check()

    def descriptors(self) -> Iterator[PartitionDescriptor]:
        """Yield the batches of one partition after the other, each partition's in order.

        Raises:
            Fenced: the hold expired and was removed.
        """
        for number, held in enumerate(self.partitions):
            for descriptor in held.descriptors():
                yield PartitionDescriptor(number, descriptor)

    def close(self) -> None:
        """Let go in every partition, and then raise what went wrong in one, if anything. Closing again does nothing.

        Raises:
            Fenced: it had expired before.
            StoreError: a manifest could not be written; the hold on that partition stays until it expires.
        """
        failures = close_all(self.partitions)
        if failures:
            raise failures[0]

    @shows_unopened
    def __repr__(self) -> str:
        return f"<HeldTopic {self.url}, {counted(len(self.partitions), 'partition')}>"


def hold_topic(
    topic: Topic, from_: str | int | datetime, upto: str | int | datetime, *, ttl: float, purpose: str
) -> HeldTopic:
    """Take a hold on every partition. If one partition refuses, let go of the others and raise its error."""
    first, last = check_place(from_), check_place(upto)
    taken: dict[int, HeldRange] = {}

    def take(number: int) -> None:
        queue = topic.open_queue(number, "hold")
        queue.read_existing()
        taken[number] = hold_range(queue, first, last, ttl=ttl, purpose=purpose, clock=topic.clock)

    try:
        # guard: refresh the partition count before taking holds
        in_parallel(take, range(topic.refresh().partitions))
    except BaseException:
        for error in close_all(taken.values()):  # guard: release the hold everywhere if one partition refuses it
            _log.warning("%s: a hold on a partition stays until it expires: %s", topic.url, error)
        raise
    return HeldTopic(topic.url, tuple(taken[number] for number in sorted(taken)))

"""Lists the lasting writers of a buffer, and forgets one of them."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from forebay.buffer.base.checks import check_name
from forebay.buffer.base.errors import ForebayError, Timeout
from forebay.buffer.manifest.head import LASTING, BelowFloor, Head, bucket_of, is_lasting

if TYPE_CHECKING:
    from forebay.buffer.manifest.head_fields import Bucket
    from forebay.buffer.manifest.queue import Queue
    from forebay.buffer.manifest.state import State

_MOST_ATTEMPTS = 5


class _BucketReplaced(ForebayError):
    """A bucket of writers is not the one that a change was made from."""


def list_lasting_writers(queue: Queue) -> dict[str, int]:
    """Return the number of every lasting writer's last append, by name. Reads every bucket."""

    def find(state: State) -> dict[str, int]:
        sealed = [queue.buckets.load(state, bucket) for bucket in state.writer_buckets]
        in_head = {known: w.number for known, w in state.writers.items() if is_lasting(known)}
        found = {known: number for numbers in sealed for known, number in numbers.items()} | in_head
        return {known.removeprefix(LASTING): found[known] for known in sorted(found)}

    return queue.look_through(find, queue.as_head(queue.read_existing()))


def forget_lasting_writer(queue: Queue, name: str) -> bool:
    """Remove a lasting writer from the manifest, and return whether it was there.

    A producer of that name counts as new from then on: its repeats are stored again.
    """
    writer_id = LASTING + check_name(name, "writer_id")
    bucket = bucket_of(writer_id)
    was_there = False
    for _ in range(_MOST_ATTEMPTS):
        head = queue.as_head(queue.read_existing())
        before = head.writer_buckets.get(bucket)
        numbers = queue.look_through(lambda state: dict(queue.buckets.load(state, bucket)), head)
        if writer_id not in head.writers and writer_id not in numbers:
            return was_there  # removed by an attempt whose answer was lost, if not by another process
        was_there = True
        after = before
        if numbers.pop(writer_id, None) is not None:
            after = queue.buckets.save(head, bucket, numbers) if numbers else None

        def is_mine(head: Head, after: Bucket | None = after) -> bool:
            return writer_id not in head.writers and head.writer_buckets.get(bucket) == after

        with suppress(_BucketReplaced, BelowFloor):
            queue.change_head(partial(_forget, writer_id, before, after), is_mine)
            return True
    raise Timeout(f"{queue.url}: the manifest kept changing, and {name!r} was not removed. Try again")


def _forget(writer_id: str, before: Bucket | None, after: Bucket | None, head: Head) -> Head:
    if head.writer_buckets.get(bucket_of(writer_id)) != before:
        raise _BucketReplaced("another process has replaced the bucket")
    return head.forget_writer(writer_id, after)

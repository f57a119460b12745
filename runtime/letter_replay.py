"""Produces the entries of dead letters again, to where they came from or to another buffer (rfcs/0007)."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from forebay.buffer.base.errors import InvalidInput, NotFound, Unsupported
from forebay.buffer.consumer import Consumer
from forebay.buffer.format.rows import RowConverter
from forebay.buffer.groups import Groups
from forebay.runtime.letters import find_letter, letters_in, list_letters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.manifest import Queue
    from forebay.buffer.producer import Producer
    from forebay.buffer.read.fetch import Batch
    from forebay.buffer.write.handle import ProduceHandle
    from forebay.runtime.letters import KeptLetter

_CALLS: Final = 1 << 30
"""A batch of letters is at most this number of calls. The number of a call is that of its batch times this, plus its
place."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay did, or would do, with one letter."""

    kept: KeptLetter
    target: str
    """The buffer that got its entries; empty if none did."""
    skipped: str = ""
    """Why it was left out; empty if it was not."""


class Replay:
    """A replay of dead letters.

    Args:
        queue: the buffer of dead letters.
        to: the buffer that gets the entries; None for the buffer that each letter came from.
        open_producer: opens a producer of a buffer, given its URL and the lasting name of the writer or None.
        group: the group of the dead letters' buffer that remembers what was replayed.
        clock: where time comes from.
    """

    def __init__(
        self,
        queue: Queue,
        to: str | None,
        open_producer: Callable[[str, str | None], Producer],
        *,
        group: str,
        clock: Clock | None = None,
    ) -> None:
        if to is not None and to.rstrip("/") == queue.store.url.rstrip("/"):
            raise InvalidInput(f"{to} holds the dead letters themselves; name another buffer with --to")
        self._queue = queue
        self._to = to
        self._open_producer = open_producer
        self._group = group
        self._clock = clock
        self._producers: dict[str, tuple[Producer, bool]] = {}

    def preview(self) -> Iterator[Replayed]:
        """Yield what `run` would do, and change nothing."""
        try:
            acked = Groups(self._queue.store).describe(self._group).acked
        except NotFound:
            acked = None
        firsts = self._find_firsts()
        for kept in list_letters(self._queue):
            if acked is None or kept.descriptor.sequence > acked:
                yield self._judge(kept, firsts)

    def preview_named(self, names: tuple[str, ...]) -> Iterator[Replayed]:
        """Yield what `run_named` would do, and change nothing."""
        for name in dict.fromkeys(names):
            yield self._judge(find_letter(self._queue, name)[0], {})

    def run(self) -> Iterator[Replayed]:
        """Produce the entries of all letters that the group has not seen, and yield each letter once it is durable.

        A run that ends early goes on, when it is repeated, after the last batch of letters that was acknowledged. What
        is durable already is not produced again: its calls have the same numbers.
        """
        firsts = self._find_firsts()
        with Consumer(self._queue.store, group=self._group, clock=self._clock) as consumer:
            reader = consumer.reader
            identity = f"{reader.source}.{reader.group}.{reader.generation}"
            writer_id = f"replay-{sha256(identity.encode()).hexdigest()[:40]}"
            try:
                for batch in consumer.batches(wait=False):
                    done = [self._judge(kept, firsts) for kept in letters_in(batch.descriptor)]
                    self._produce(done, batch, writer_id)
                    consumer.ack_through(batch.sequence)
                    yield from done
            finally:
                self._close()

    def run_named(self, names: tuple[str, ...]) -> Iterator[Replayed]:
        """Produce the entries of these letters, each time this is called, and yield each once it is durable."""
        found = [find_letter(self._queue, name) for name in dict.fromkeys(names)]
        try:
            for kept, batch in found:
                done = self._judge(kept, {})
                self._produce([done], batch, None)
                yield done
        finally:
            self._close()

    def _find_firsts(self) -> dict[object, str]:
        """By the entries of the source that letters hold, the name of the first letter that holds them."""
        firsts: dict[object, str] = {}
        for kept in list_letters(self._queue):
            firsts.setdefault(kept.letter.key, kept.name)
        return firsts

    def _judge(self, kept: KeptLetter, firsts: dict[object, str]) -> Replayed:
        """Say where a letter goes, if it goes anywhere."""
        if kept.letter.first_entry is None:
            return Replayed(kept, "", "it holds an object that could not be used, and no entries")
        first = firsts.setdefault(kept.letter.key, kept.name)
        if first != kept.name:  # guard: replay the entries of repeated letters once
            return Replayed(kept, "", f"letter {first} holds the same entries")
        return Replayed(kept, self._to or kept.letter.url)

    def _produce(self, letters: list[Replayed], batch: Batch, writer_id: str | None) -> None:
        """Produce the entries of letters in one batch, and wait until they are durable."""
        handles: list[ProduceHandle] = []
        for found in letters:
            if not found.skipped:
                producer, is_numbered = self._producer(found.target, writer_id)
                _check_target(found, batch, producer)
                for place, metadata, entries in found.kept.calls(batch):
                    # guard: number the calls of a replay
                    number = batch.sequence * _CALLS + place + 1 if is_numbered else None
                    handles.append(producer.produce(entries, metadata, number=number))
        for producer, _is_numbered in self._producers.values():
            producer.flush()
        for handle in handles:
            handle.result()  # guard: acknowledge letters after their entries are durable

    def _producer(self, url: str, writer_id: str | None) -> tuple[Producer, bool]:
        """The producer of a target, and whether its calls take numbers."""
        if url not in self._producers:
            try:
                self._producers[url] = self._open_producer(url, writer_id), writer_id is not None
            except Unsupported:  # version 1 remembers no writers
                self._producers[url] = self._open_producer(url, None), False
        return self._producers[url]

    def _close(self) -> None:
        while self._producers:
            self._producers.popitem()[1][0].close()


def _check_target(found: Replayed, batch: Batch, producer: Producer) -> None:
    """Raise `InvalidInput` if a letter's rows do not fit its target, or if one holds rows and the other bytes.

    This comes before a call is queued: the number of a call that fails is used up by the next one that is durable.
    """
    if found.kept.letter.rows != (producer.schema is not None):
        kinds = ("rows", "bytes") if found.kept.letter.rows else ("bytes", "rows")
        raise InvalidInput(
            f"letter {found.kept.name} holds {kinds[0]}, and {found.target} holds {kinds[1]}: replay it to the buffer "
            f"that it came from, or to another one that holds {kinds[0]}"
        )
    if producer.schema is not None:
        failures = RowConverter(producer.schema).convert([found.kept.entries(batch)]).failures
        if failures:
            raise InvalidInput(
                f"letter {found.kept.name} does not fit {found.target}: {failures[0]}"
                "; replay it to another buffer, or evolve the schema of this one"
            )

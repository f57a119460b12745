"""Reads the dead letters of a buffer, without claiming anything (rfcs/0007)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from forebay.buffer.base.errors import Corrupt, NotFound
from forebay.buffer.read.fetch import FetchHandle
from forebay.runtime.dead_letter import DeadLetter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.manifest import Queue
    from forebay.buffer.read.fetch import Batch

_DESCRIPTORS_PER_LOOK: Final = 64


@dataclass(frozen=True, slots=True)
class KeptLetter:
    """A dead letter, and where it is in the buffer of dead letters."""

    descriptor: BatchDescriptor
    """The batch of dead letters that it is in."""
    first: int
    """The index of its first entry in that batch."""
    time_ms: int
    """When it was written."""
    letter: DeadLetter

    @property
    def name(self) -> str:
        """What it is called in commands: its batch and the place of its first entry there."""
        return f"{self.descriptor.sequence}.{self.first}"

    def entries(self, batch: Batch) -> list[bytes]:
        """Return its entries, of the batch of dead letters that it is in."""
        return list(batch.entries[self.first : self.first + self.letter.count])

    def calls(self, batch: Batch) -> Iterator[tuple[int, bytes, list[bytes]]]:
        """Yield its entries as their producers wrote them: the place of each run, its metadata and its entries."""
        entries, starts = self.entries(batch), self.letter.metadata or [(0, b"")]
        if starts[0][0]:
            starts = [(0, b""), *starts]  # the first entries came without metadata
        ends = [start for start, _payload in starts[1:]] + [len(entries)]
        for (start, payload), end in zip(starts, ends, strict=True):
            yield self.first + start, payload, entries[start:end]


def letters_in(descriptor: BatchDescriptor) -> list[KeptLetter]:
    """Return the letters in a batch of dead letters. What somebody else put there is left out."""
    found = []
    for item in descriptor.metadata:
        try:
            letter = DeadLetter.parse(item.payload)
        except Corrupt:
            continue
        found.append(KeptLetter(descriptor, item.start_index, item.ingestion_time_ms, letter))
    return found


def list_letters(queue: Queue) -> Iterator[KeptLetter]:
    """Yield all letters that a buffer of dead letters retains, oldest first.

    A letter that was written again after a crash is yielded once.

    Raises:
        NotFound: there is no such buffer.
    """
    state = queue.read_existing()
    seen = set()
    for first in range(state.first_sequence, state.next_sequence, _DESCRIPTORS_PER_LOOK):
        for descriptor in queue.descriptors(first, _DESCRIPTORS_PER_LOOK, state=state):
            for found in letters_in(descriptor):
                reader = (found.letter.group, found.letter.generation)
                if (*reader, found.letter.key) not in seen:  # guard: show a repeated letter once
                    seen.add((*reader, found.letter.key))
                    yield found


def find_letter(queue: Queue, name: str) -> tuple[KeptLetter, Batch]:
    """Return the letter of a name, and the batch of dead letters that it is in.

    Raises:
        NotFound: there is none.
    """
    sequence, _, first = name.partition(".")
    state = queue.read_existing()
    if sequence.isdecimal() and state.first_sequence <= int(sequence) < state.next_sequence:
        (descriptor,) = queue.descriptors(int(sequence), 1, state=state)
        for found in letters_in(descriptor):
            if found.name == f"{sequence}.{first or '0'}":
                return found, FetchHandle(queue.store).fetch(descriptor)
    raise NotFound(
        f"no letter {name} is in {queue.store.url}: `forebay dead-letters list` shows the names; use one of them"
    )

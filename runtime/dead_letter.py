"""Dead letters: entries that cannot be committed, kept in a buffer of their own with the reason (rfcs/0007)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from forebay.buffer.base.errors import Corrupt, ForebayError, InvalidInput, NotFound
from forebay.buffer.format.json_rows import rows_as_json
from forebay.buffer.format.rows import RowConverter
from forebay.runtime.bad_entries import describe_entries, to_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.buffer.format.model import BatchDescriptor, Metadata, Reader
    from forebay.buffer.producer import Producer
    from forebay.buffer.read.fetch import Batch, FetchHandle
    from forebay.buffer.write.handle import ProduceHandle

_MAX_ERROR: Final = 4000
"""Maximum number of characters of an error that are kept. Letters are in the manifest, which everyone reads."""
_MAX_LETTERS: Final = 32
"""Maximum number of reasons of one batch that get a letter of their own."""
_MAX_INDEXES: Final = 4096
"""Maximum number of indexes that one letter lists."""
_MAX_METADATA: Final = 64 << 10
"""Maximum number of bytes of the producers' metadata that one letter keeps."""


class Halted(ForebayError):
    """The runtime cannot go on: see to what it says, and start it again. Nothing is lost meanwhile."""


class DeadLetter(msgspec.Struct, frozen=True):
    """What the metadata of a dead letter says, as JSON. The entries beside it are the batch's own, unchanged.

    A row of a typed buffer is kept as a JSON document that a producer of its schema takes back as the same row.
    """

    url: str
    """The buffer that the batch is in."""
    source: str
    """The buffer's id."""
    group: str
    """The reader; empty for the unnamed consumer."""
    generation: str
    """Which of the group's lives."""
    sequence: int
    """The batch."""
    location: str
    """The batch's object."""
    first_entry: int | None
    """The index of the first entry that is kept here. None if the object is no batch, or has rows that no JSON document
    can hold. Then the one entry here is the object's bytes, or empty if it is missing."""
    last_entry: int | None
    """The index of the last entry that is kept here."""
    error: str
    """Why."""
    indexes: list[int] | None = None
    """The index of each entry that is kept here. None if they are all entries from `first_entry` to `last_entry`."""
    metadata: list[tuple[int, bytes]] = []
    """What the producers attached to these entries: each payload with the place, in this letter, of the first entry
    that it covers. Empty if there was none, or more than 64 KiB."""
    rows: bool = False
    """Whether the entries are rows of a typed buffer, each as a JSON document."""

    @classmethod
    def parse(cls, metadata: bytes) -> DeadLetter:
        """Return what the metadata of a dead letter says.

        Raises:
            Corrupt: it is none.
        """
        try:
            return _decode_letter(metadata)
        except msgspec.MsgspecError as error:
            raise Corrupt(
                f"the metadata of this entry is not that of a dead letter: {error}; name the buffer that "
                "holds the dead letters"
            ) from error

    @property
    def key(self) -> tuple[object, ...]:
        """Which entries of which buffer are kept here: the same in a letter that was written again after a crash."""
        return (self.source, self.sequence, self.first_entry, self.last_entry, *(self.indexes or ()))

    @property
    def count(self) -> int:
        """How many entries are kept here."""
        if self.indexes is not None:
            return len(self.indexes)
        return 1 if self.first_entry is None or self.last_entry is None else self.last_entry - self.first_entry + 1

    @property
    def place(self) -> str:
        """Which entries of the batch are kept here, for people."""
        if self.first_entry is None or self.last_entry is None:
            return "the object"
        return describe_entries(self.indexes or range(self.first_entry, self.last_entry + 1))


# Made here, since msgspec crashes if two threads use a type for the first time at once (`manifest/envelope.py`).
_decode_letter: Final = msgspec.json.Decoder(DeadLetter).decode


def keep_entries(
    producer: Producer, batch: Batch, reasons: Mapping[int, str], *, reader: Reader, url: str
) -> list[DeadLetter]:
    """Make entries of a batch durable as dead letters, one letter for each reason, and return the letters.

    Repeating it, after an error or by another process, keeps them twice. The letters are the same then.

    Args:
        producer: writes to the buffer of dead letters.
        batch: the batch.
        reasons: why an entry is bad, by its index in the batch.
        reader: who read the batch.
        url: the buffer that the batch is in.

    Raises:
        InvalidInput: a row holds something that no JSON document can hold; nothing was kept.
    """
    parts = [
        (reason, batch.select(to_ranges(indexes[start : start + _MAX_INDEXES])))
        for reason, indexes in _by_reason(reasons)
        for start in range(0, len(indexes), _MAX_INDEXES)
    ]
    entries = [_entries_of(part) for _reason, part in parts]
    letters = [_write_letter(part, reason, reader, url) for reason, part in parts]
    handles = [
        producer.produce(kept, metadata=msgspec.json.encode(letter))
        for kept, letter in zip(entries, letters, strict=True)
    ]
    _wait(handles)
    return letters


def keep_object(
    producer: Producer, descriptor: BatchDescriptor, error: str, *, reader: Reader, fetcher: FetchHandle
) -> DeadLetter:
    """Make the object of a batch that cannot be read durable as a dead letter, and return the letter.

    Repeating it, after an error or by another process, keeps it twice.
    """
    letter = DeadLetter(
        url=fetcher.store.url,
        source=reader.source,
        group=reader.group,
        generation=reader.generation,
        sequence=descriptor.sequence,
        location=descriptor.location,
        first_entry=None,
        last_entry=None,
        error=error[:_MAX_ERROR],
    )
    try:
        data = bytes(fetcher.store.get(descriptor.location).data)
    except NotFound:
        data = b""
    _wait([producer.produce(data, metadata=msgspec.json.encode(letter))])
    return letter


def stored_indexes(batch: Batch) -> list[int]:
    """Return the index that each entry or row of a batch has in the stored batch."""
    name = "index" if batch.schema is None else "_index"
    indexes: list[int] = batch.records(columns=[name])[name].to_pylist()
    return indexes


def _entries_of(part: Batch) -> Any:
    """Return the entries of a letter: those of a batch of bytes, or a JSON document for each row."""
    if part.schema is None:
        return part.arrow
    try:
        documents = rows_as_json(part.table)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise InvalidInput(f"the rows cannot be written as JSON, which a dead letter needs: {error}") from error
    taken_back = RowConverter(part.schema).convert([documents])
    # A letter keeps only rows that a producer takes back.
    if taken_back.failures:
        raise taken_back.failures[0]
    return documents


def _wait(handles: list[ProduceHandle]) -> None:
    for handle in handles:
        handle.result()  # guard: wait until a dead letter is durable


def _by_reason(reasons: Mapping[int, str]) -> list[tuple[str, list[int]]]:
    """The indexes of each reason. Reasons beyond the first ones share the last place."""
    found: dict[str, list[int]] = {}
    for index, reason in sorted(reasons.items()):
        found.setdefault(reason, []).append(index)
    listed = list(found.items())
    rest = listed[_MAX_LETTERS - 1 :]
    if len(rest) < 2:
        return listed
    shared = f"{rest[0][0]} (and {len(rest) - 1} other reasons)"
    return [*listed[: _MAX_LETTERS - 1], (shared, sorted(index for _reason, indexes in rest for index in indexes))]


def _write_letter(part: Batch, reason: str, reader: Reader, url: str) -> DeadLetter:
    """The letter of entries that failed for one reason."""
    indexes = stored_indexes(part)
    is_run = indexes[-1] - indexes[0] + 1 == len(indexes)
    return DeadLetter(
        url=url,
        source=reader.source,
        group=reader.group,
        generation=reader.generation,
        sequence=part.sequence,
        location=part.location,
        first_entry=indexes[0],
        last_entry=indexes[-1],
        error=reason[:_MAX_ERROR],
        indexes=None if is_run else indexes,
        metadata=_merge_metadata(part.metadata),
        rows=part.schema is not None,
    )


def _merge_metadata(metadata: tuple[Metadata, ...]) -> list[tuple[int, bytes]]:
    """Where each payload begins; empty if there are none, or if they are too large to keep."""
    found: list[tuple[int, bytes]] = []
    for item in metadata:
        if not found or found[-1][1] != item.payload:
            found.append((item.start_index, item.payload))
    size = sum(len(payload) + 16 for _start, payload in found)
    return found if any(payload for _start, payload in found) and size <= _MAX_METADATA else []

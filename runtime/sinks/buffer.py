"""Another forebay buffer, or a topic."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from forebay.buffer.base.errors import Fenced, ForebayError, InvalidInput
from forebay.buffer.producer import Producer
from forebay.buffer.store import StoreUrl, open_store
from forebay.buffer.topic import Topic, partition_for
from forebay.runtime.contract import Answer, Combining, Commit, CommitIdentity, Committed, Fatal, MaybeCommitted, Sink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from forebay.buffer.write.writer import ProduceHandle

    Key: TypeAlias = Callable[[pa.Table], pa.Array | pa.ChunkedArray]

_CALLS = 1 << 20
"""A commit may be so many calls of the target's producers. Their numbers are those of the commit times that."""


class BufferSink(Sink):
    """Copies rows into a native buffer or, by a key, into the partitions of a topic, **exactly once**.

    Each source writes under a lasting name of its own, with numbered calls, and the target remembers the last number
    of each name: repeats are dropped there. With a key this holds for as long as the topic has as many partitions:
    commits that are replayed after some were added, which moves keys, may be there twice in part.

    An entry is the row's column `value`, and its metadata the column `metadata` if there is one: `raw` gives both, and
    another decoder may change them. The ingestion time is that of the copy.

    A target remembers 256 names. One that more sources than that write to may forget one that is idle.

    Args:
        url: the target, or its store if it is open already: a buffer, or with `key` a topic.
        key: gives the rows' keys, an Arrow `binary` array of them. Rows of one key stay in order, in one partition.
        combining: how batches of a group are put together into one commit; None for one batch each.
        storage_options: credentials, endpoint and client of the target's store.
    """

    in_order = True

    def __init__(
        self,
        url: StoreUrl,
        *,
        key: Key | None = None,
        combining: Combining | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        store = open_store(url, storage_options)
        self.url = store.url
        self.combining = combining
        self._key = key
        topic = None if key is None else Topic(store)
        self._targets = [store] if topic is None else [topic.partition(number) for number in range(topic.partitions)]
        self._lock = Lock()
        self._producers: dict[tuple[str, int], Producer] = {}

    def commit(self, commit: Commit) -> Answer:
        """Produce the commit's rows, and return once they are durable.

        If the process dies or an answer is lost on the way, some of the calls are durable. A replay makes the same
        calls with the same numbers, and the target takes those that it does not have.
        """
        if commit.url in {store.url for store in self._targets}:
            return Fatal(f"{commit.url} would be copied into itself, for ever: copy it to another buffer")
        try:
            parts = [(number, _calls(rows)) for number, rows in self._split(commit.table)]
        except InvalidInput as error:
            return Fatal(f"{self.url}: {error}")
        try:
            handles = [handle for number, calls in parts for handle in self._produce(commit.identity, number, calls)]
            for handle in handles:
                handle.result()
        except ForebayError as error:
            self._drop(commit.identity.reader)
            if isinstance(error, Fenced):
                # A process before this one has appended in this reader's name meanwhile. A look will tell what.
                return MaybeCommitted(str(error))
            raise
        return Committed()

    def check_committed(self, identity: CommitIdentity) -> bool:
        """Return whether the target has the commit's last call; with a key False, as a repeat is dropped anyhow."""
        if self._key is not None:
            return False
        self._drop(identity.reader)
        last_number = self._producer(identity.reader, 0).last_number
        return last_number is not None and last_number >= _final_number(identity)

    def close(self) -> None:
        """Close the target's producers."""
        with self._lock:
            producers, self._producers = list(self._producers.values()), {}
        for producer in producers:
            producer.close()

    def _split(self, table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """The rows of each partition of the target that gets any."""
        if self._key is None:
            yield 0, table
            return
        keys = _check_keys(self._key(table), table.num_rows).combine_chunks().dictionary_encode()
        homes = pa.array([partition_for(key, len(self._targets)) for key in keys.dictionary.to_pylist()], pa.int32())
        row_homes = homes.take(keys.indices)
        for number in sorted(pc.unique(row_homes).to_pylist()):
            yield number, table.filter(pc.equal(row_homes, number))

    def _produce(
        self, identity: CommitIdentity, number: int, calls: list[tuple[bytes, pa.ChunkedArray]]
    ) -> list[ProduceHandle]:
        producer = self._producer(identity.reader, number)
        first, final = identity.last * _CALLS + 1, _final_number(identity)
        numbers = [*range(first, first + len(calls) - 1), final]
        # guard: use the call numbers of the commit
        handles = [
            producer.produce(entries, metadata, number=call)
            for call, (metadata, entries) in zip(numbers, calls, strict=True)
        ]
        producer.flush()  # nothing more comes before these are durable
        return handles

    def _producer(self, reader: str, number: int) -> Producer:
        with self._lock:
            if (reader, number) not in self._producers:
                name = f"copy-{sha256(reader.encode()).hexdigest()[:40]}"
                self._producers[reader, number] = Producer(self._targets[number], writer_id=name)
            return self._producers[reader, number]

    def _drop(self, reader: str) -> None:
        """Forget the reader's producers: one that failed takes no more numbers, and one that is new has looked."""
        with self._lock:
            dropped = [self._producers.pop(found) for found in list(self._producers) if found[0] == reader]
        for producer in dropped:
            with suppress(ForebayError):
                producer.close()


def _final_number(identity: CommitIdentity) -> int:
    return (identity.last + 1) * _CALLS


def _check_keys(keys: Any, rows: int) -> pa.ChunkedArray:
    if isinstance(keys, pa.Array):
        keys = pa.chunked_array([keys])
    if not isinstance(keys, pa.ChunkedArray) or keys.type not in (pa.binary(), pa.large_binary()):
        found = keys.type if isinstance(keys, pa.ChunkedArray) else type(keys).__name__
        raise InvalidInput(f"key must give an Arrow binary array, not {found}")
    if len(keys) != rows or keys.null_count:
        raise InvalidInput(
            f"key gave {len(keys)} keys, {keys.null_count} of them null, for {rows} rows; every row needs one"
        )
    return keys


def _calls(rows: pa.Table) -> list[tuple[bytes, pa.ChunkedArray]]:
    """The rows as calls of a producer: a call for each run of equal metadata."""
    if "value" not in rows.column_names:
        raise InvalidInput(f"rows to copy need the column value, and these have {', '.join(rows.column_names)}")
    entries = rows["value"]
    if entries.type not in (pa.binary(), pa.large_binary()) or entries.null_count:
        raise InvalidInput(
            f"the column value must be binary without nulls, not {entries.type} with {entries.null_count}"
        )
    if "metadata" not in rows.column_names:
        return [(b"", entries)]
    runs = pc.run_end_encode(rows["metadata"].combine_chunks())
    ends = runs.run_ends.to_pylist()
    if len(ends) > _CALLS:
        raise InvalidInput(f"metadata changes {len(ends)} times in one commit; the most is {_CALLS}")
    return [
        (metadata or b"", entries[start:end])
        for metadata, start, end in zip(runs.values.to_pylist(), [0, *ends], ends, strict=False)
    ]

"""Another forebay buffer, or a topic."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from forebay.buffer.base.errors import Fenced, ForebayError, InvalidInput
from forebay.buffer.format.rows import RowConverter
from forebay.buffer.format.schema import RESERVED
from forebay.buffer.producer import Producer
from forebay.buffer.read.records import RECORDS_SCHEMA
from forebay.buffer.store import StoreUrl, open_store
from forebay.buffer.topic import Topic, partition_for
from forebay.runtime.contract import Answer, Combining, Commit, CommitIdentity, Committed, Fatal, MaybeCommitted, Sink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from forebay.buffer.write.handle import ProduceHandle

    Key: TypeAlias = Callable[[pa.Table], pa.Array | pa.ChunkedArray]

_CALLS = 1 << 20
"""Maximum number of calls in one commit. The calls of commit number n are numbered from n times this on."""


class BufferSink(Sink):
    """Copies rows into a native buffer or, by a key, into the partitions of a topic, **exactly once**.

    Each source writes under a lasting name of its own, with numbered calls, and the target remembers the last number
    of each name: repeats are dropped there. With a key this holds for as long as the topic has as many partitions:
    commits that are replayed after some were added, which moves keys, may be there twice in part.

    Into a buffer of bytes, an entry is the row's column `value`, and its metadata the column `metadata` if there is
    one: `raw` gives both, and another decoder may change them. The ingestion time is that of the copy.

    Into a typed buffer, the rows are copied as they are. The first commit of a source, and each one whose schema is
    another, is compared with the target's schema before anything is written. If it does not fit, the runtime halts and
    names the columns. The columns that `Batch.records` adds are left out, and `_call_metadata` becomes the metadata:
    the decoder `Batch.records` keeps it, and `raw` does not.

    The target remembers every name until `forebay writers forget` removes it.

    Args:
        url: the target, or its store if it is open already: a buffer, or with `key` a topic.
        key: gives the rows' keys, an Arrow `binary` array of them. Rows of one key stay in order, in one partition.
        evolve: whether the target takes the schema of the rows: a buffer that nothing was written to becomes a typed
            one, and new nullable columns and wider types become a new version of its schema. If not, a buffer that
            nothing was written to takes bytes, and a typed one only rows that fit. A topic is evolved by its own
            producers.
        combining: how batches of a group are put together into one commit; None for one batch each.
        storage_options: credentials, endpoint and client of the target's store.
    """

    in_order = True

    def __init__(
        self,
        url: StoreUrl,
        *,
        key: Key | None = None,
        evolve: bool = False,
        combining: Combining | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        store = open_store(url, storage_options)
        self.url: str = store.url
        self.combining = combining
        self._key = key
        self._evolve = evolve
        topic = None if key is None else Topic(store)
        self._targets = [store] if topic is None else [topic.partition(number) for number in range(topic.partitions)]
        self._lock = Lock()
        self._producers: dict[tuple[str, int], tuple[Producer, pa.Schema]] = {}
        """By reader and target, a producer and the schema of the rows that it was opened for."""

    def commit(self, commit: Commit) -> Answer:
        """Produce the commit's rows, and return once they are durable.

        If the process dies or an answer is lost on the way, some of the calls are durable. A replay makes the same
        calls with the same numbers, and the target takes those that it does not have.
        """
        if commit.url in {store.url for store in self._targets}:
            return Fatal(f"{commit.url} would be copied into itself, for ever: copy it to another buffer")
        try:
            parts = [
                (producer, _calls(rows, producer, commit))
                for number, rows in self._split(commit.table)
                for producer in [self._producer(commit.identity.reader, number, commit.table.schema)]
            ]
        except InvalidInput as error:
            return Fatal(f"{self.url}: {error}")
        try:
            handles = [handle for producer, calls in parts for handle in _produce(commit.identity, producer, calls)]
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
        with Producer(self._targets[0], writer_id=_writer_name(identity.reader)) as look:
            last_number = look.last_number
        return last_number is not None and last_number >= _final_number(identity)

    def close(self) -> None:
        """Close the target's producers."""
        with self._lock:
            producers, self._producers = list(self._producers.values()), {}
        for producer, _schema in producers:
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

    def _producer(self, reader: str, number: int, schema: pa.Schema) -> Producer:
        """The producer of a reader and a target, which takes rows of a schema or bytes.

        Raises:
            InvalidInput: the target holds rows of another schema.
        """
        with self._lock:
            found = self._producers.get((reader, number))
            if found is None or (found[0].schema is not None and not found[1].equals(schema)):
                if found is not None:
                    del self._producers[reader, number]
                    found[0].close()
                found = self._open(_writer_name(reader), number, schema), schema
                self._producers[reader, number] = found
            return found[0]

    def _open(self, name: str, number: int, schema: pa.Schema) -> Producer:
        target = self._targets[number]
        producer = Producer(target, writer_id=name)
        is_bytes = schema.names == RECORDS_SCHEMA.names
        if producer.schema is None and (is_bytes or not self._evolve):
            return producer
        producer.close()
        if is_bytes:
            raise InvalidInput(
                f"the rows to copy must have a schema, since {producer.url} holds rows of one: they are "
                "entries of bytes, so decode them first"
            )
        schema = pa.schema([field for field in schema if field.name not in RESERVED])
        return Producer(target, writer_id=name, schema=schema, evolve=self._evolve)

    def _drop(self, reader: str) -> None:
        """Forget the reader's producers: one that failed takes no more numbers, and one that is new has looked."""
        with self._lock:
            dropped = [self._producers.pop(found) for found in list(self._producers) if found[0] == reader]
        for producer, _schema in dropped:
            with suppress(ForebayError):
                producer.close()


def _writer_name(reader: str) -> str:
    return f"copy-{sha256(reader.encode()).hexdigest()[:40]}"


def _produce(
    identity: CommitIdentity, producer: Producer, calls: list[tuple[bytes, pa.ChunkedArray | pa.Table]]
) -> list[ProduceHandle]:
    first, final = identity.last * _CALLS + 1, _final_number(identity)
    numbers = [*range(first, first + len(calls) - 1), final]
    # guard: use the call numbers of the commit
    handles = [
        producer.produce(entries, metadata, number=call)
        for call, (metadata, entries) in zip(numbers, calls, strict=True)
    ]
    producer.flush()  # nothing more comes before these are durable
    return handles


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


def _calls(rows: pa.Table, producer: Producer, commit: Commit) -> list[tuple[bytes, pa.ChunkedArray | pa.Table]]:
    """The rows as calls of a producer: a call for each run of equal metadata."""
    if producer.schema is not None:
        metadata = rows["_call_metadata"] if "_call_metadata" in rows.column_names else None
        found = RowConverter(producer.schema).convert(
            [rows.drop_columns([n for n in RESERVED if n in rows.column_names])]
        )
        # No call may fail alone: its number would be used up by the next one.
        if found.failures:
            raise found.failures[0]
        return _split_runs(found.table, metadata)
    if "value" not in rows.column_names and any(batch.schema is not None for batch in commit.batches):
        raise InvalidInput(
            f"it holds bytes or nothing yet, and {commit.url} holds rows of a schema: copy them to a typed buffer, or "
            "to a new one with evolve=True (in a job file: evolve = true)"
        )
    if "value" not in rows.column_names:
        raise InvalidInput(f"rows to copy need the column value, and these have {', '.join(rows.column_names)}")
    entries = rows["value"]
    if entries.type not in (pa.binary(), pa.large_binary()) or entries.null_count:
        raise InvalidInput(
            f"the column value must be binary without nulls, not {entries.type} with {entries.null_count}"
        )
    return _split_runs(entries, rows["metadata"] if "metadata" in rows.column_names else None)


def _split_runs(
    entries: pa.ChunkedArray | pa.Table, metadata: pa.ChunkedArray | None
) -> list[tuple[bytes, pa.ChunkedArray | pa.Table]]:
    if metadata is None:
        return [(b"", entries)]
    runs = pc.run_end_encode(metadata.combine_chunks())
    ends = runs.run_ends.to_pylist()
    if len(ends) > _CALLS:
        raise InvalidInput(f"metadata changes {len(ends)} times in one commit; the most is {_CALLS}")
    return [
        (payload or b"", entries.slice(start, end - start))
        for payload, start, end in zip(runs.values.to_pylist(), [0, *ends], ends, strict=False)
    ]

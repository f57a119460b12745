"""The write side of a topic: a writer for each partition, one memory bound and one set of threads (rfcs/0005)."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Final, overload

from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.errors import Backpressure, Closed, ForebayError, InvalidInput, StoreError, Timeout
from forebay.buffer.base.lifecycle import AsyncClosing, shows_unopened
from forebay.buffer.base.waiting import deadline_in
from forebay.buffer.coordinator import CoordinatorGroup
from forebay.buffer.format.rows import RowConverter
from forebay.buffer.manifest.schemas import Schemas
from forebay.buffer.store.retry import RETRY_SECONDS
from forebay.buffer.topic.arrivals import Arrivals
from forebay.buffer.topic.keys import partition_for
from forebay.buffer.topic.schemas import follow_topic, open_topic_format
from forebay.buffer.topic.split import SplitHandle, split_rows
from forebay.buffer.topic.topic import LOOK_SECONDS, Topic
from forebay.buffer.write.accumulator import check_call
from forebay.buffer.write.rows import check_rows, row_bytes_of
from forebay.buffer.write.settings import FLUSH_SIZE_BYTES, ProducerLimits, WriterSettings
from forebay.buffer.write.writer import BufferWriter, refuse_child

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator, Mapping, Sequence
    from typing import Any

    import pyarrow as pa

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.coordinator import Durability, FlushHandle
    from forebay.buffer.format.batch import Compression
    from forebay.buffer.store import ObjectStore, StoreUrl
    from forebay.buffer.write.accumulator import Call, Entries
    from forebay.buffer.write.handle import ProduceHandle
    from forebay.buffer.write.rows import RowCall, Rows

_log = logging.getLogger("forebay.producer")

_FLUSH_THREADS = 24
"""Maximum number of threads that upload batches and write manifests, unless a partition may have more uploads at once.

Enough for one batch and one manifest write of each of 64 partitions in every 0.1 s, if a request takes 20 ms.
"""


class TopicProducer(AsyncClosing):
    """Writes entries to a topic. Any number of producers, threads and processes may share one topic.

    Calls with a key go to the key's partition, so that they are read in the order produced. Calls without a key go to
    one partition until a batch is flushed, and then to the next one. This makes at most two batches per interval,
    regardless of the number of partitions. A partition is opened when it is first needed. New partitions are noticed
    within ten seconds.

    Args:
        url: the topic, such as `s3://lake/clicks`, or its store if it is open already.
        schema: the Arrow schema of the rows, or a class that describes it (docs/typed.md), for a topic that was
            created with one; None uses its newest schema. Nullable columns may be missing.
        evolve: whether a schema with new nullable columns or wider types changes the topic's schema, permanently.
            Otherwise such a schema is refused.
        flush_interval: maximum time in seconds between two flushes; by default 0.1, and 1 in a typed topic.
        flush_size_bytes: size of the entries, before compression, at which a batch is stored.
        compression: `zstd` or `none`.
        compression_level: zstd's level; by default 3, and 1 in a typed topic.
        limits: how much this producer may hold and do at once; None for the defaults of `ProducerLimits`.
        retry_timeout: maximum time in seconds for which an upload, and then the write of a manifest, is retried while
            the store fails. After that its calls fail.
        storage_options: credentials, endpoint and client of the store.

    Raises:
        NotFound: there is no topic; `create_topic` makes one.
        StoreError: the topic's store cannot be reached, or refuses.
    """

    def __init__(
        self,
        url: StoreUrl,
        *,
        schema: pa.Schema | type | None = None,
        evolve: bool = False,
        flush_interval: float | None = None,
        flush_size_bytes: int = FLUSH_SIZE_BYTES,
        compression: Compression = "zstd",
        compression_level: int | None = None,
        limits: ProducerLimits | None = None,
        retry_timeout: float = RETRY_SECONDS,
        storage_options: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._random = random or system_random()
        self._settings = WriterSettings(
            flush_interval=flush_interval,
            flush_size_bytes=flush_size_bytes,
            compression=compression,
            compression_level=compression_level,
            retry_timeout=retry_timeout,
            limits=ProducerLimits() if limits is None else limits,
            clock=self._clock,
            random=self._random,
        )
        self._topic = Topic(url, storage_options=storage_options, clock=clock, random=random)
        self.url: str = self._topic.url
        self._rows = open_topic_format(self._topic, schema, evolve=evolve)
        self.schema: Final = None if self._rows is None else self._rows.schema
        """The schema that rows have to fit; None in a topic of bytes."""
        self._check_call: Callable[[Any, bytes, int], Call | RowCall] = (
            check_call
            if self._rows is None
            else partial(
                check_rows, converter=RowConverter(self._rows.schema), row_bytes=row_bytes_of(self._rows.stored)
            )
        )
        self._schemas = Schemas(self._topic.store, clock=self._clock)
        self._flush_interval = self._settings.resolve(typed=self._rows is not None).flush_interval
        self._group = self._new_group()
        self._opening = Lock()
        self._writers: dict[int, BufferWriter] = {}
        self._looked_at = self._turn_began = self._clock.monotonic()
        # Somewhere, so that many producers that start together do not meet at the first partition.
        self._turn = self._random.randrange(self._topic.partitions)
        self._turn_bytes = 0
        self._turning = Lock()
        self._arrivals = Arrivals()
        self._closed = False
        self._first = self._open(self._turn)  # a store that refuses is found out now, not at the first call

    @overload
    def produce(
        self,
        entries: Entries | Rows,
        metadata: bytes = ...,
        *,
        key: bytes | None = ...,
        key_column: None = ...,
        timeout: float | None = ...,
    ) -> ProduceHandle: ...
    @overload
    def produce(
        self, entries: Rows, metadata: bytes = ..., *, key_column: str, timeout: float | None = ...
    ) -> SplitHandle: ...
    def produce(
        self,
        entries: Entries | Rows,
        metadata: bytes = b"",
        *,
        key: bytes | None = None,
        key_column: str | None = None,
        timeout: float | None = None,
    ) -> ProduceHandle | SplitHandle:
        """Queue entries, and return a handle: `handle.result(timeout)` or `await handle` return once they are durable.

        Blocks while the buffers are full, for at most `timeout` seconds if given.

        Args:
            entries: one entry as bytes, a list of them, or an Arrow `binary` or `large_binary` array; in a typed topic
                rows, as `Producer.produce` takes them. They stay together in one batch, unless `key_column` is given.
            metadata: kept with these entries and given to their reader.
            key: calls of one key are read in the order produced: all of them go to one partition, which
                `forebay.buffer.topic.partition_for` tells.
            key_column: of a typed topic: the column that has each row's key. The rows are split over the partitions;
                the handle is a `SplitHandle`, which has a part for each partition.
            timeout: seconds to wait for room, for each partition.

        Raises:
            InvalidInput: these entries can never be stored. Or there is no room, and this call must not wait for it,
                because it would block a `produce_async` of the same thread that waits before it. Nothing of this call
                was queued, or with `key_column` only the parts before.
            Timeout: there was no room in time; the entries are in its `write`.
            Backpressure: the partition retains more than `limits.backlog_bytes`; the entries are in its `write`.
            Closed: this producer was closed.
        """
        if key_column is not None:
            if key is not None:
                raise InvalidInput("key and key_column exclude each other: give one of them")
            return self._produce_split(entries, metadata, key_column, timeout)
        call = self._check_call(entries, metadata, self._clock.now_ms())
        writer = self._choose(call, entries, key)
        try:
            handle: ProduceHandle = writer.channel.write(call, timeout=timeout, cost=call.memory)  # type: ignore[assignment]
        except Timeout as error:
            raise Timeout(str(error), write=entries) from None
        return handle

    async def produce_async(
        self,
        entries: Entries | Rows,
        metadata: bytes = b"",
        *,
        key: bytes | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 -- by the producer's clock, and the error has the entries
    ) -> ProduceHandle:
        """Queue entries as `produce` does, and return the same handle. Awaits room, and does not block the event loop.

        `handle = await producer.produce_async(…)` returns once the call is queued, and `await handle` once it is
        durable. The calls of one task are queued in their order. So are calls of one key from several tasks of one
        event loop, in the order in which they were made. A call that is cancelled while it waits has queued nothing.

        Raises:
            InvalidInput, Timeout, Backpressure, Closed: as `produce` does.
        """
        call = self._check_call(entries, metadata, self._clock.now_ms())
        writer = await self._choose_async(call, entries, key)
        try:
            handle: ProduceHandle = await writer.channel.write_async(call, timeout=timeout, cost=call.memory)  # type: ignore[assignment]
        except Timeout as error:
            raise Timeout(str(error), write=entries) from None
        return handle

    def _produce_split(self, rows: Any, metadata: bytes, column: str, timeout: float | None) -> SplitHandle:
        if self._rows is None:
            raise InvalidInput(f"{self.url} is a topic of bytes, which have no columns: give key instead of key_column")
        self._check_open()
        self._look_for_partitions()
        partitions = self._topic.partitions
        parts = split_rows(rows, column, partitions, self._rows.schema)
        calls = {number: self._check_call(part, metadata, self._clock.now_ms()) for number, part in parts.items()}
        handles: dict[int, ProduceHandle | ForebayError] = {}
        for number, call in calls.items():
            try:
                writer = self._writers.get(number) or self._open(number)
                writer.check_backlog(parts[number])
                handles[number] = writer.channel.write(call, timeout=timeout, cost=call.memory)  # type: ignore[assignment]
            except (Timeout, Backpressure) as error:
                handles[number] = type(error)(str(error), write=parts[number])
            except ForebayError as error:
                handles[number] = error
        if all(isinstance(handle, ForebayError) for handle in handles.values()):
            raise next(handle for handle in handles.values() if isinstance(handle, ForebayError))
        return SplitHandle(handles, self._clock)

    def try_produce(self, entries: Entries | Rows, metadata: bytes = b"", *, key: bytes | None = None) -> ProduceHandle:
        """Queue entries if there is room now, as `produce` does.

        Raises:
            Backpressure: there is none; the entries are in its `write`.
        """
        call = self._check_call(entries, metadata, self._clock.now_ms())
        writer = self._choose(call, entries, key)
        try:
            handle: ProduceHandle = writer.channel.try_write(call, cost=call.memory)  # type: ignore[assignment]
        except Backpressure as error:
            raise Backpressure(str(error), write=entries) from None
        return handle

    def flush(self) -> TopicFlush:
        """Store what is queued without waiting for the interval; the handle is done once all of it is durable."""
        self._check_open()
        self._turn_bytes = self._settings.flush_size_bytes  # the next call without a key goes to the next partition
        return TopicFlush([writer.flush() for writer in list(self._writers.values())], self._clock)

    def close(self, timeout: float | None = None) -> None:
        """Make everything queued durable, and stop. Closing again does nothing.

        Called from a done callback it cannot wait, and only begins the close.

        Raises:
            Timeout: it took longer than `timeout` seconds; it goes on, and `close` can be called again.
            ForebayError: something of the last flush could not be stored.
        """
        if self._first.inherited:
            return  # the parent's to close
        deadline = deadline_in(self._clock, timeout)
        with self._opening:
            self._closed = True
            writers = list(self._writers.values())
        steps: list[Callable[[float | None], object]] = []
        for writer in writers if not self._group.runs_here() else ():  # a done callback must not wait
            with suppress(ForebayError):  # which its own close tells
                steps.append(writer.flush().result)  # all at once, and then wait for one after the other
        steps += [writer.close for writer in writers]
        failures: list[ForebayError] = []
        for wait in steps:
            try:
                wait(None if deadline is None else max(0.0, deadline - self._clock.monotonic()))
            except ForebayError as error:
                failures.append(error)
        for failure in failures[1:]:
            _log.error("%s: closing failed in another way too: %s", self.url, failure)
        if failures:
            raise failures[0]

    @property
    def partitions(self) -> int:
        """How many partitions this producer knows of."""
        return self._topic.partitions

    @property
    def conflict_rate(self) -> float:
        """The highest share, of all partitions, of manifest writes, from 0 to 1, that met another writer."""
        return max(writer.conflict_rate for writer in list(self._writers.values()))

    @property
    def buffered_bytes(self) -> int:
        """About how much memory is held by entries that are not durable yet."""
        return self._group.held_cost

    @shows_unopened
    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.buffered_bytes} bytes buffered"
        return f"<TopicProducer of {self.url}, {state}>"

    # Which partition

    def _choose(self, call: Call | RowCall, entries: Entries | Rows, key: bytes | None) -> BufferWriter:
        self._check_key(key)
        self._look_for_partitions()
        number = self._pick(call, key)
        writer = self._writers.get(number) or self._open(number)
        writer.check_backlog(entries)
        return writer

    async def _choose_async(self, call: Call | RowCall, entries: Entries | Rows, key: bytes | None) -> BufferWriter:
        """Do what `_choose` does. What asks the store runs on another thread.

        No call overtakes another one of its event loop that waits for its partition: after the last await here, the
        caller queues its call at once.
        """
        from asyncio import get_running_loop, to_thread  # noqa: PLC0415 -- a producer in threads alone need not load it

        self._check_key(key)
        loop, number = get_running_loop(), None
        # guard: queue no call while earlier ones wait for their partition
        if loop not in self._arrivals and not self._is_look_due():
            number = self._pick(call, key)
            if (opened := self._writers.get(number)) is not None:
                opened.check_backlog(entries)
                return opened
        with self._arrivals.join(loop) as line:
            # guard: choose no partition while an earlier call looks for new ones
            async with line.looking:
                if self._is_look_due():
                    await to_thread(self._look_for_partitions)
                number = self._pick(call, key) if number is None else number
            async with line.opening[number]:
                opened = self._writers.get(number)
                writer = await to_thread(self._open, number) if opened is None else opened
        writer.check_backlog(entries)
        return writer

    def _check_key(self, key: bytes | None) -> None:
        self._check_open()
        if key is not None and not isinstance(key, bytes):
            raise InvalidInput(f"a key must be bytes, not {type(key).__name__}: encode it first")

    def _pick(self, call: Call | RowCall, key: bytes | None) -> int:
        return self._take_turn(call.raw_bytes) if key is None else partition_for(key, self._topic.partitions)

    def _take_turn(self, raw_bytes: int) -> int:
        """The partition that calls without a key go to, until a flush of it is due by size or by time."""
        settings = self._settings
        with self._turning:
            now = self._clock.monotonic()
            if self._turn_bytes >= settings.flush_size_bytes or now - self._turn_began >= self._flush_interval:
                self._turn = (self._turn + 1) % self._topic.partitions
                self._turn_bytes, self._turn_began = 0, now
            self._turn_bytes += raw_bytes
            return self._turn

    def _is_look_due(self) -> bool:
        return self._clock.monotonic() - self._looked_at >= LOOK_SECONDS

    def _look_for_partitions(self) -> None:
        if not self._is_look_due():
            return
        self._looked_at = self._clock.monotonic()
        before = self._topic.partitions
        try:
            self._topic.refresh()
        except StoreError:
            _log.warning("%s: looking for new partitions failed; going on with %d", self.url, before, exc_info=True)
            return
        if self._topic.partitions != before:
            _log.warning("%s: %d partitions instead of %d; keys move", self.url, self._topic.partitions, before)

    def _open(self, number: int) -> BufferWriter:
        with self._opening:
            if self._closed:
                self._check_open()
            if number not in self._writers:
                store = self._topic.partition(number)
                try:
                    self._writers[number] = self._new_writer(store)
                except Closed:
                    if not self._group.ended:
                        raise
                    # Every other writer of the group has failed, perhaps while this one was being opened.
                    self._group = self._new_group()
                    self._writers[number] = self._new_writer(store)
            return self._writers[number]

    def _new_writer(self, store: ObjectStore) -> BufferWriter:
        open_rows = partial(follow_topic, rows=self._rows, schemas=self._schemas)
        return BufferWriter(store, self._settings, group=self._group, open_rows=open_rows)

    def _new_group(self) -> CoordinatorGroup:
        limits = self._settings.limits
        return CoordinatorGroup(
            flush_threads=max(_FLUSH_THREADS, limits.concurrent_uploads + 1),
            max_cost=limits.buffered_bytes,
            clock=self._clock,
            name=f"producer of {self.url}",
        )

    def _check_open(self) -> None:
        if self._first.inherited:
            raise refuse_child(self.url)
        if self._closed:
            raise Closed(f"{self.url}: this producer was closed; open a new one")


class TopicFlush:
    """A flush of every partition that is under way; wait for it from threads or with `await`."""

    def __init__(self, handles: Sequence[FlushHandle], clock: Clock) -> None:
        self._handles = handles
        self._clock = clock

    def done(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return all(handle.done() for handle in self._handles)

    def wait(self, durability: Durability | None = None, timeout: float | None = None) -> None:
        """Return once everything queued before the flush is durable, or has come to the level named.

        Raises:
            Timeout: it was not in `timeout` seconds; it may still be.
            ForebayError: what kept a batch from it.
        """
        deadline = deadline_in(self._clock, timeout)
        for handle in self._handles:
            left = None if deadline is None else max(0.0, deadline - self._clock.monotonic())
            handle.wait(durability, left)

    def result(self, timeout: float | None = None) -> None:
        """Wait as `wait` does."""
        self.wait(timeout=timeout)

    def __await__(self) -> Generator[asyncio.Future[None], None, None]:
        """Wait as `wait` does without blocking the event loop."""
        for handle in self._handles:
            yield from handle.__await__()

"""The write side of a topic: a producer for each partition, one memory bound over all of them (rfcs/0005)."""

# ruff: noqa: SLF001 - the partitions' producers are this one's other half

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

from forebay.buffer.base.checks import check_seconds, check_timeout
from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.errors import Backpressure, Closed, ForebayError, InvalidInput, StoreError, Timeout
from forebay.buffer.base.lifecycle import AsyncClosing, shows_unopened
from forebay.buffer.format.batch import DEFAULT_LEVEL
from forebay.buffer.producer import Producer
from forebay.buffer.store.retry import RETRY_SECONDS
from forebay.buffer.topic.keys import partition_for
from forebay.buffer.topic.topic import LOOK_SECONDS, Topic
from forebay.buffer.write.accumulator import check_call
from forebay.buffer.write.limits import check_limits

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator, Mapping, Sequence
    from typing import Any

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.coordinator import Durability, FlushHandle
    from forebay.buffer.format.batch import Compression
    from forebay.buffer.producer import ProduceHandle
    from forebay.buffer.store import StoreUrl
    from forebay.buffer.write.accumulator import Call, Entries
    from forebay.buffer.write.limits import ProducerLimits

_log = logging.getLogger("forebay.producer")


class TopicProducer(AsyncClosing):
    """Writes entries to a topic. Any number of producers, threads and processes may share one topic.

    Calls with a key go to the key's partition, so that they are read in the order produced. Calls without one go to one
    partition until a batch is due and then to the next, however many there are, which makes two batches an interval at
    the most. A partition is opened when it is first needed. New partitions are noticed within ten seconds.

    Args:
        url: the topic, such as `s3://lake/clicks`, or its store if it is open already.
        flush_interval: a batch is stored at the latest so many seconds after the flush before.
        flush_size_bytes: a batch is stored when its entries take so many bytes before compression.
        compression: `zstd` or `none`.
        compression_level: zstd's level.
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
        flush_interval: float = 0.1,
        flush_size_bytes: int = 64 << 20,
        compression: Compression = "zstd",
        compression_level: int = DEFAULT_LEVEL,
        limits: ProducerLimits | None = None,
        retry_timeout: float = RETRY_SECONDS,
        storage_options: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        check_seconds(flush_interval, "flush_interval")
        limits = check_limits(limits)
        self._clock = clock or SystemClock()
        self._random = random or system_random()
        self._topic = Topic(url, storage_options=storage_options, clock=clock, random=random)
        self.url = self._topic.url
        self._settings: dict[str, Any] = {
            "flush_interval": flush_interval,
            "flush_size_bytes": flush_size_bytes,
            "compression": compression,
            "compression_level": compression_level,
            "limits": replace(limits, backlog_bytes=None),
            "retry_timeout": retry_timeout,
            "clock": clock,
            "random": random,
        }
        self._flush_interval = flush_interval
        self._flush_size_bytes = flush_size_bytes
        self._max_buffered_bytes = limits.buffered_bytes
        self._max_backlog_bytes = limits.backlog_bytes
        self._lock = Lock()
        self._producers: dict[int, Producer] = {}
        self._entering: dict[int, int] = {}
        """Memory of each call that is on its way into a partition's producer, by the call's id.

        Removing a call is one step that no interrupt can split.
        """
        self._looked_at = self._turn_began = self._clock.monotonic()
        # Somewhere, so that many producers that start together do not meet at the first partition.
        self._turn = self._random.randrange(self._topic.partitions)
        self._turn_bytes = 0
        self._process = os.getpid()
        self._closed = False
        self._open(self._turn)  # refuses what cannot be set, now and not at the first call

    def produce(
        self, entries: Entries, metadata: bytes = b"", *, key: bytes | None = None, timeout: float | None = None
    ) -> ProduceHandle:
        """Queue entries, and return a handle: `handle.result(timeout)` or `await handle` return once they are durable.

        Blocks while the buffers are full, for at most `timeout` seconds if given.

        Args:
            entries: one entry as bytes, a list of them, or an Arrow `binary` or `large_binary` array. They stay
                together in one batch.
            metadata: kept with these entries and given to their reader.
            key: calls of one key are read in the order produced: all of them go to one partition, which
                `forebay.buffer.topic.partition_for` tells.
            timeout: seconds to wait for room.

        Raises:
            InvalidInput: these entries can never be stored; nothing was queued.
            Timeout: there was no room in time; the entries are in its `write`.
            Backpressure: the partition retains more than `limits.backlog_bytes`; the entries are in its `write`.
            Closed: this producer was closed.
        """
        check_timeout(timeout)
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        call = check_call(entries, metadata, self._clock.now_ms())
        producer = self._choose(call, entries, key)
        place = id(call)
        try:
            try:
                while not self._take_room(place, call.memory):
                    self._make_room(deadline)
                handle: ProduceHandle = producer._channel.write(  # type: ignore[assignment]
                    call, timeout=self._left(deadline), cost=call.memory
                )
            finally:
                self._entering.pop(place, None)  # from here on the partition's own producer counts it, or nobody does
        except Timeout as error:
            raise Timeout(str(error), write=entries) from None
        return handle

    def try_produce(self, entries: Entries, metadata: bytes = b"", *, key: bytes | None = None) -> ProduceHandle:
        """Queue entries if there is room now, as `produce` does.

        Raises:
            Backpressure: there is none; the entries are in its `write`.
        """
        call = check_call(entries, metadata, self._clock.now_ms())
        producer = self._choose(call, entries, key)
        place = id(call)
        try:
            if not self._take_room(place, call.memory):
                raise Backpressure(
                    f"{self.url}: {self.buffered_bytes} bytes of at most {self._max_buffered_bytes} are held"
                )
            handle: ProduceHandle = producer._channel.try_write(call, cost=call.memory)  # type: ignore[assignment]
        except Backpressure as error:
            raise Backpressure(str(error), write=entries) from None
        finally:
            self._entering.pop(place, None)
        return handle

    def flush(self) -> TopicFlush:
        """Store what is queued without waiting for the interval; the handle is done once all of it is durable."""
        self._check_open()
        with self._lock:
            self._turn_bytes = self._flush_size_bytes  # the next call without a key goes to the next partition
            producers = list(self._producers.values())
        return TopicFlush([producer.flush() for producer in producers], self._clock)

    def close(self, timeout: float | None = None) -> None:
        """Make everything queued durable, and stop. Closing again does nothing.

        Raises:
            Timeout: it took longer than `timeout` seconds; it goes on, and `close` can be called again.
            ForebayError: something of the last flush could not be stored.
        """
        if os.getpid() != self._process:
            return  # the parent's to close
        check_timeout(timeout)
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        with self._lock:
            self._closed = True
            producers = list(self._producers.values())
        flushes: list[FlushHandle] = []
        for producer in producers:
            with suppress(ForebayError):  # which its own close tells
                flushes.append(producer.flush())  # all at once, and then wait for one after the other
        steps: list[Callable[[float | None], None]] = [partial(flush.wait, None) for flush in flushes]
        steps += [producer.close for producer in producers]
        failures: list[ForebayError] = []
        for wait in steps:
            try:
                wait(self._left(deadline))
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
        return max((producer.conflict_rate for producer in list(self._producers.values())), default=0.0)

    @property
    def buffered_bytes(self) -> int:
        """About how much memory is held by entries that are not durable yet."""
        return sum(producer.buffered_bytes for producer in list(self._producers.values()))

    @shows_unopened
    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.buffered_bytes} bytes buffered"
        return f"<TopicProducer of {self.url}, {state}>"

    # Which partition

    def _choose(self, call: Call, entries: Entries, key: bytes | None) -> Producer:
        self._check_open()
        if key is not None and not isinstance(key, bytes):
            raise InvalidInput(f"a key must be bytes, not {type(key).__name__}: encode it first")
        self._look_for_partitions()
        number = self._take_turn(call.raw_bytes) if key is None else partition_for(key, self._topic.partitions)
        producer = self._open(number)
        if self._max_backlog_bytes is not None:
            producer._check_backlog(entries, self._max_backlog_bytes)
        return producer

    def _take_turn(self, raw_bytes: int) -> int:
        """The partition that calls without a key go to, until a flush of it is due by size or by time."""
        with self._lock:
            now = self._clock.monotonic()
            if self._turn_bytes >= self._flush_size_bytes or now - self._turn_began >= self._flush_interval:
                self._turn = (self._turn + 1) % self._topic.partitions
                self._turn_bytes, self._turn_began = 0, now
            self._turn_bytes += raw_bytes
            return self._turn

    def _look_for_partitions(self) -> None:
        now = self._clock.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        before = self._topic.partitions
        try:
            self._topic.refresh()
        except StoreError:
            _log.warning("%s: looking for new partitions failed; going on with %d", self.url, before, exc_info=True)
            return
        if self._topic.partitions != before:
            _log.warning("%s: %d partitions instead of %d; keys move", self.url, self._topic.partitions, before)

    def _open(self, number: int) -> Producer:
        producer = self._producers.get(number)
        if producer is not None:
            return producer
        with self._lock:
            if self._closed:
                self._check_open()
            if number not in self._producers:
                self._producers[number] = Producer(self._topic.partition(number), **self._settings)
            return self._producers[number]

    # How much memory

    def _take_room(self, place: int, memory: int) -> bool:
        """Count a call in, if all partitions together have room for it."""
        with self._lock:
            held = self.buffered_bytes + sum(list(self._entering.values()))
            if held and held + memory > self._max_buffered_bytes:
                return False
            self._entering[place] = memory
            return True

    def _make_room(self, deadline: float | None) -> None:
        """Wait until the partition that holds most has stored it."""
        if deadline is not None and self._clock.monotonic() >= deadline:
            raise Timeout(
                f"{self.url}: {self.buffered_bytes} of {self._max_buffered_bytes} bytes are held, and no room"
            )
        fullest = max(list(self._producers.values()), key=lambda producer: producer.buffered_bytes)
        held = fullest.buffered_bytes
        try:
            fullest.flush().wait(timeout=self._left(deadline))
        except Timeout:
            raise
        except ForebayError:
            # Its own handles tell. What it could not store it no longer holds, unless it has stopped.
            if fullest.buffered_bytes >= held:
                raise

    def _left(self, deadline: float | None) -> float | None:
        return None if deadline is None else max(0.0, deadline - self._clock.monotonic())

    def _check_open(self) -> None:
        if os.getpid() != self._process:
            raise Closed(
                f"{self.url}: this producer belongs to process {self._process}, and its threads did not come along "
                "into this one; open a producer here"
            )
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
        check_timeout(timeout)
        deadline = None if timeout is None else self._clock.monotonic() + timeout
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

"""forebay itself."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from forebay import Consumer, Producer, ProducerLimits, open_store
from rivals.rival import INTERVAL, THREADS, Rival

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Forebay(Rival):
    client = "obstore"

    def __init__(self, folder: str, options: dict[str, Any]) -> None:
        super().__init__(folder, options)
        self._store = open_store(folder, options and options | {"client": self.client})

    @cached_property
    def _producer(self) -> Producer:
        return self._open(flush_interval=INTERVAL)

    def append(self, entries: list[bytes]) -> None:
        durable = self._producer.produce(entries)
        self._producer.flush()
        durable.result()

    def write(self, calls: Iterator[list[bytes]], calls_each: int) -> None:
        first = next(calls)
        size = calls_each * sum(len(entry) + 4 for entry in first)
        with self._open(flush_size_bytes=size, flush_interval=60.0) as producer:
            for call in chain([first], calls):
                producer.produce(call)

    def write_paced(self, calls: Iterator[list[bytes]], record: Callable[[float], None]) -> None:
        with self._open(flush_interval=INTERVAL) as producer:
            for call in calls:
                began = time.perf_counter()
                producer.produce(call).add_done_callback(partial(_report, record, began))

    def close(self) -> None:
        if "_producer" in self.__dict__:
            self._producer.close()

    def _open(self, **settings: Any) -> Producer:
        return Producer(self._store, limits=ProducerLimits(concurrent_uploads=THREADS), **settings)

    def read(self) -> int:
        total = 0
        with Consumer(self._store) as consumer, ThreadPoolExecutor(THREADS) as pool:
            fetch = consumer.fetch_handle().fetch
            while found := consumer.next_descriptors(1000):
                total += sum(pool.map(lambda batch: len(fetch(batch).arrow), found))
                consumer.ack_through(found[-1].sequence)
        return total


class ForebayS3fs(Forebay):
    client = "s3fs"


def _report(record: Callable[[float], None], began: float, _handle: object) -> None:
    record(began)

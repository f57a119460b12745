"""What processor time do producers and Spark need with forebay and with Kafka, and how soon is an event readable?

Both get the same JSON events, in calls of a thousand, from a Python client:

- *Kafka*: one broker with KRaft, from Maven, and a topic of four partitions with replication factor 1. The client is
  `confluent-kafka` with `acks=all`, zstd, `linger.ms=100` and batches of up to 1 MB, as librdkafka sets them. Spark
  reads the topic with its own Kafka source.
- *forebay, bytes*: a buffer of the same documents, on a real S3 server (SeaweedFS), with forebay's default settings.
- *typed from JSON*, *typed from Arrow*: a typed buffer on the same server. The producer gets the same documents, or
  Arrow tables.
- *typed, format*: Spark reads the typed buffer through the format `forebay`.
- *typed, read*: `forebay.runtime.spark.read` of the same rows in a folder. On S3 it needs Hadoop's jars for S3.

Each `AvailableNow` stream is a separate query. For each query over forebay, Spark starts one Python process; for Kafka
it starts none. The less there is to read, the more this weighs. The notes show this time, and the ratio without it.

Ratios are of processor time, summed over the client, Spark's JVM and Python processes, and the server that the case
uses. The MB/s beside them count JSON bytes, by elapsed time. Latencies are elapsed time.

The broker has no followers and does not sync its files. So Kafka costs less here, and its latency is lower, than in a
cluster of three brokers. The S3 server is on this machine and does not sync either: a put takes milliseconds here and
tens of milliseconds in a cloud. In a cloud, users do not pay for the processor time of the S3 server. The notes show
that time separately.

The script needs Maven and Java 17, and fetches 130 MB into build/kafka once. Without them it is skipped. No test runs
it.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, cycle, islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.streaming.readwriter import DataStreamReader
from rivals.broker import fetch, start_broker
from rivals.spark import Arrived
from spark_read import events, processes, session, take_turns

from forebay import Producer
from forebay.runtime.spark import read
from forebay.testing.servers import SeaweedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from harness import Bench
    from pyspark.sql import DataFrame, SparkSession

_BROKER = ("org.apache.kafka:kafka_2.13:4.1.0",)
# All that the connector needs and Spark does not bring. Maven must not search for it: the connector's parent names a
# repository that not everyone can reach. The token provider of 4.2.0 could not be fetched; 4.0.0 works with it.
_CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.0",
)
_CALL = 1000
"""Entries in each call."""
_PARTITIONS = 4
"""Of the topic, and tasks of Spark for either."""
_LINGER_MS = 100
_SCHEMA = pa.schema([("user", pa.int64()), ("page", pa.string()), ("ms", pa.int64()), ("rest", pa.string())])
_KAFKA = "Kafka"
_BYTES = "forebay, bytes"
_FROM_JSON = "forebay, typed from JSON"
_FROM_ARROW = "forebay, typed from Arrow"
_TYPED = "forebay, typed, format"
_READ = "forebay, typed, read"
_LEAST = {_BYTES: 1.0, _TYPED: 4.0, _READ: 6.0}
"""Least speed as a multiple of Kafka's, by processor time."""
_numbers = count()


def run(bench: Bench) -> None:
    jars = {
        "broker": fetch("broker", _BROKER, alone=False),
        "connector": fetch("connector", _CONNECTOR, alone=True),
    }
    bench.note(f"versions: {', '.join(name.partition(':')[2] for name in (*_BROKER, *_CONNECTOR[:3]))}")
    sizes = {1024: 16 << 20, 100: 8 << 20} if bench.quick else {1024: 256 << 20, 100: 128 << 20}
    folder = Path(tempfile.mkdtemp(prefix="forebay-bench-"))
    try:
        with SeaweedServer() as server:
            weed = _only_child()
            with start_broker(jars["broker"], folder) as (broker, address):
                ground = _Ground(folder, address, server.create_bucket("bench"), dict(server.storage_options))
                written = (_BYTES, _FROM_JSON, _FROM_ARROW)
                ground.servers = {_KAFKA: broker, **dict.fromkeys(written, weed)}
                ground.unused = {_KAFKA: weed, **dict.fromkeys((*written, _TYPED, _READ), broker)}
                loads = [_Load(length, size) for length, size in sizes.items()]
                for load in loads:
                    _produce(bench, ground, load)
                _time_to_durable(bench, ground)
                with session(2, jars["connector"]) as spark:
                    _time_to_visible(bench, ground, spark)
                    starts = _time_to_start(bench, ground, spark)
                    for load in loads:
                        _read(bench, ground, load, spark, starts)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Load:
    """The events of one length: as calls of documents, and as calls of Arrow tables."""

    def __init__(self, length: int, size: int) -> None:
        self.name = "1 KiB" if length == 1024 else f"{length} B"
        once = events(length)
        documents = [once[first : first + _CALL] for first in range(0, len(once) - _CALL + 1, _CALL)]
        self._calls: dict[bool, list[Any]] = {
            False: documents,
            True: [pa.Table.from_pylist(list(map(json.loads, each)), schema=_SCHEMA) for each in documents],
        }
        self._number = size // (length * _CALL)
        self.entries = self._number * _CALL
        self.bytes = self.entries * length
        self.written: dict[str, str] = {}
        """The topic or the buffer of each case that was written last."""

    def calls(self, *, arrow: bool = False) -> Iterator[Any]:
        return islice(cycle(self._calls[arrow]), self._number)


@dataclass(slots=True)
class _Ground:
    """The two servers, and how to reach them."""

    folder: Path
    broker: str
    bucket: str
    storage: dict[str, Any]
    unused: Mapping[str, int] = field(default_factory=dict)
    """The server that each case does not use."""
    servers: Mapping[str, int] = field(default_factory=dict)
    """The server that each case uses."""

    def client(self, linger_ms: int) -> confluent_kafka.Producer:
        return confluent_kafka.Producer(
            {
                "bootstrap.servers": self.broker,
                "acks": "all",
                "compression.type": "zstd",
                "linger.ms": linger_ms,
                "queue.buffering.max.messages": 1_000_000,
            }
        )

    def create_topic(self, partitions: int) -> str:
        name = f"bench-{next(_numbers)}"
        admin = AdminClient({"bootstrap.servers": self.broker})
        admin.create_topics([NewTopic(name, num_partitions=partitions, replication_factor=1)])[name].result()
        return name

    def new_buffer(self) -> str:
        return f"{self.bucket}/buffer-{next(_numbers)}"

    def checkpoint(self) -> str:
        return f"{self.folder}/checkpoint-{next(_numbers)}"

    def load(self, reader: Any, case: str, where: str, columns: str = "value binary") -> DataFrame:
        """What a topic or a buffer holds, or what arrives there: `reader` is Spark's `read` or `readStream`."""
        if case.startswith(_KAFKA):
            options = {"kafka.bootstrap.servers": self.broker, "subscribe": where, "startingOffsets": "earliest"}
            topic: DataFrame = reader.format("kafka").options(**options).load()
            return topic
        options = {f"storage.{name}": value for name, value in self.storage.items()}
        if isinstance(reader, DataStreamReader):
            options["group"] = f"bench-{next(_numbers)}"
        options["minPartitions"] = str(_PARTITIONS)
        buffer: DataFrame = reader.format("forebay").schema(columns).options(**options).load(where)
        return buffer


# Producing


def _produce(bench: Bench, ground: _Ground, load: _Load) -> None:
    shares: dict[str, list[float]] = {case: [] for case in ground.servers}

    def write(case: str) -> None:
        before = processes()[ground.servers[case]].own
        load.written[case] = _write_kafka(ground, load) if case == _KAFKA else _write_buffer(ground, load, case)
        ticks = processes()[ground.servers[case]].own - before
        shares[case].append(ticks / os.sysconf("SC_CLK_TCK"))

    cases = {case: partial(write, case) for case in ground.servers}
    group = f"produce until durable, {load.name}"
    found = take_turns(bench, group, load.bytes, cases, _KAFKA, leave_out=ground.unused)
    for case in cases:
        row = next(row for row in bench.rows if (row.group, row.case) == (group, case))
        total, server = min(row.seconds) * 1e9 / load.bytes, min(shares[case]) * 1e9 / load.bytes
        bench.note(f"{group}, {case}: {row.rate:.0f} MB/s, {total:.1f} CPU s/GB, of which the server {server:.1f}")
    bench.require(f"{group}: bytes, times Kafka by processor time", found[_BYTES], least=1.0)


def _write_kafka(ground: _Ground, load: _Load) -> str:
    topic = ground.create_topic(_PARTITIONS)
    client = ground.client(_LINGER_MS)
    for call in load.calls():
        for event in call:
            while True:
                try:
                    client.produce(topic, event)
                    break
                except BufferError:  # its queue is full
                    client.poll(0.1)
    assert client.flush() == 0
    return topic


def _write_buffer(ground: _Ground, load: _Load, case: str) -> str:
    url = ground.new_buffer()
    schema = None if case == _BYTES else _SCHEMA
    with Producer(url, schema=schema, storage_options=ground.storage) as producer:
        for call in load.calls(arrow=case == _FROM_ARROW):
            producer.produce(call)
        producer.flush().result()
    return url


# Reading in Spark


def _time_to_start(bench: Bench, ground: _Ground, spark: SparkSession) -> dict[str, float]:
    """Return the processor seconds of a stream that finds one call of entries: what a query takes to start and end."""
    one = _Load(1024, 1024 * _CALL)
    places = {_KAFKA: _write_kafka(ground, one), _BYTES: _write_buffer(ground, one, _BYTES)}
    places[_TYPED] = _write_buffer(ground, one, _FROM_ARROW)
    group = "AvailableNow: one call of entries"

    def count_all(frame: DataFrame) -> None:
        assert frame.count() == one.entries

    cases = {case: partial(_stream_once, ground, spark, case, where, count_all) for case, where in places.items()}
    take_turns(bench, group, one.bytes, cases, _KAFKA, leave_out=ground.unused)
    return {row.case: min(row.seconds) for row in bench.rows if row.group == group}


def _open(ground: _Ground, reader: Any, case: str, where: str) -> DataFrame:
    return ground.load(reader, case, where, "page string, ms bigint" if case == _TYPED else "value binary")


def _stream_once(ground: _Ground, spark: SparkSession, case: str, where: str, ask: Callable[[DataFrame], None]) -> None:
    writer = _open(ground, spark.readStream, case, where).writeStream.foreachBatch(lambda frame, _: ask(frame))
    query = writer.option("checkpointLocation", ground.checkpoint()).trigger(availableNow=True).start()
    query.awaitTermination()
    assert len(query.recentProgress) == 1, "the backlog was to be one micro-batch"


def _read(bench: Bench, ground: _Ground, load: _Load, spark: SparkSession, starts: Mapping[str, float]) -> None:
    folder = f"file://{ground.folder}/typed-{next(_numbers)}"
    with Producer(folder, schema=_SCHEMA) as producer:
        for call in load.calls(arrow=True):
            producer.produce(call)
        producer.flush().result()
    places = {_KAFKA: load.written[_KAFKA], _BYTES: load.written[_BYTES], _TYPED: load.written[_FROM_ARROW]}
    averages: list[list[tuple[Any, ...]]] = []

    def add_up(frame: DataFrame) -> None:
        (row,) = frame.selectExpr("count(*)", "sum(length(value))").collect()
        assert tuple(row) == (load.entries, load.bytes), row

    def average(frame: DataFrame) -> None:
        if "value" in frame.columns:
            frame = frame.selectExpr("from_json(string(value), 'page string, ms long') AS e").select("e.page", "e.ms")
        averages.append(sorted(map(tuple, frame.groupBy("page").agg({"ms": "avg"}).collect())))
        assert averages[-1] == averages[0]

    def batch(ask: Callable[[DataFrame], None], case: str) -> None:
        ask(read(spark, folder) if case == _READ else _open(ground, spark.read, case, places[case]))

    def stream(ask: Callable[[DataFrame], None], case: str) -> None:
        _stream_once(ground, spark, case, places[case], ask)

    sums, all_of = (_KAFKA, _BYTES), (_KAFKA, _BYTES, _TYPED)
    for group, ask, way, cases in (
        ("batch: count, sum(length)", add_up, batch, sums),
        ("batch: average by page", average, batch, (*all_of, _READ)),
        ("AvailableNow: count, sum(length)", add_up, stream, sums),
        ("AvailableNow: average by page", average, stream, all_of),
    ):
        name = f"{group}, {load.name}"
        calls = {case: partial(way, ask, case) for case in cases}
        found = take_turns(bench, name, load.bytes, calls, _KAFKA, leave_out=ground.unused)
        for case in cases[1:]:
            bench.require(f"{name}: {case}, times Kafka", found[case], least=_LEAST[case])
        if way is stream:
            _note_starts(bench, name, cases[1:], starts)


def _note_starts(bench: Bench, group: str, cases: Sequence[str], starts: Mapping[str, float]) -> None:
    """Say how much of each stream's time went into starting and ending the query."""
    took = {row.case: min(row.seconds) for row in bench.rows if row.group == group}
    rest = {case: seconds - starts[case] for case, seconds in took.items()}
    for case in cases:
        bench.note(
            f"{group}: {case} takes {took[case]:.2f} CPU s, of which {starts[case]:.2f} to start and end the query "
            f"(Kafka {took[_KAFKA]:.2f} and {starts[_KAFKA]:.2f}); without that it is {rest[_KAFKA] / rest[case]:.2f} "
            "times Kafka"
        )


# Latencies


class _Sender:
    """Writes one event at a time, and returns when it is durable."""

    def __init__(self, where: str, send: Callable[[bytes], None], close: Callable[[], object]) -> None:
        self.where = where
        self.send = send
        self.close = close


def _kafka_sender(ground: _Ground, linger_ms: int) -> _Sender:
    topic, client = ground.create_topic(1), ground.client(linger_ms)

    def send(event: bytes) -> None:
        failures: list[confluent_kafka.KafkaError | None] = []
        # Not flush(): it would end the time that the client lingers.
        client.produce(topic, event, on_delivery=lambda failure, _: failures.append(failure))
        while not failures:
            client.poll(1.0)
        assert failures == [None], failures

    return _Sender(topic, send, client.flush)


def _buffer_sender(ground: _Ground) -> _Sender:
    url = ground.new_buffer()
    producer = Producer(url, storage_options=ground.storage)

    def send(event: bytes) -> None:
        producer.produce([event]).result()

    return _Sender(url, send, producer.close)


@contextmanager
def _senders(ground: _Ground) -> Iterator[dict[str, _Sender]]:
    senders = {
        f"Kafka, linger.ms={_LINGER_MS}": _kafka_sender(ground, _LINGER_MS),
        "Kafka, linger.ms=5": _kafka_sender(ground, 5),
        "forebay, flush_interval=0.1": _buffer_sender(ground),
    }
    try:
        yield senders
    finally:
        for sender in senders.values():
            sender.close()


def _sample(sender: _Sender, samples: int, arrived: Arrived | None = None) -> list[float]:
    """Seconds from the call until the event is durable, or until it has arrived, at random moments."""
    random = Random(0)
    found = []
    for number in range(samples + 1):
        time.sleep(random.uniform(0.1, 0.4))
        event = f"event {number}".encode()
        began = time.perf_counter()
        sender.send(event)
        found.append((time.perf_counter() if arrived is None else arrived.wait_for(event)) - began)
    return found[1:]


def _time_to_durable(bench: Bench, ground: _Ground) -> None:
    bench.progress("time to durable")
    with _senders(ground) as senders:
        times = {case: _sample(sender, 10 if bench.quick else 100) for case, sender in senders.items()}
    _record(bench, "time to durable", times)


def _time_to_visible(bench: Bench, ground: _Ground, spark: SparkSession) -> None:
    bench.progress("time to visible in Spark")
    times: dict[str, list[float]] = {}
    with _senders(ground) as senders:
        for case, sender in senders.items():
            arrived = Arrived()
            sender.send(b"first")
            frame = ground.load(spark.readStream, case, sender.where).select("value")
            writer = frame.writeStream.foreachBatch(arrived.take)
            query = writer.option("checkpointLocation", ground.checkpoint()).start()
            try:
                arrived.wait_for(b"first")
                times[case] = _sample(sender, 5 if bench.quick else 50, arrived)
            finally:
                query.stop()
    _record(bench, "time to visible in a stream of Spark", times)


def _record(bench: Bench, group: str, times: dict[str, list[float]]) -> None:
    bench.record(group, times, ceiling=next(iter(times)))
    for case, each in times.items():
        cuts = statistics.quantiles(each, n=20, method="inclusive")
        bench.note(f"{group}, {case}: p50 {cuts[9] * 1e3:.0f} ms, p95 {cuts[18] * 1e3:.0f} ms")


def _only_child() -> int:
    (found,) = (number for number, process in processes().items() if process.parent == os.getpid())
    return found

"""What a stream needs and costs: partitions, flush interval, latency, processors and dollars, from what was measured.

Prices and guesses stand at the top, to be checked and changed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache

from contention import Appends, Store, predict
from cost import DOLLARS_PER_GB_MONTH, dollars

from forebay.buffer.base.waiting import POLL_FLOOR
from forebay.buffer.manifest.head import MAX_WRITERS
from forebay.runtime import RuntimeConfig

# CHECK THEM. Requests and storage are those of cost.py.
DOLLARS_PER_CORE_HOUR = 0.0408
"""Half of an m7g.large on demand, us-east-1, June 2026: https://aws.amazon.com/ec2/pricing/on-demand/"""
DOLLARS_PER_GB_BETWEEN_ZONES = 0.02
"""EC2 to EC2, $0.01 on each side, 2026: the same page. EC2 to S3 within a region costs nothing."""
DOLLARS_PER_GB_MONTH_OF_DISK = 0.08
"""EBS gp3, us-east-1, 2026: https://aws.amazon.com/ebs/pricing/"""

# What S3 publishes for each prefix: https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html
S3_WRITES_A_SECOND = 3500
S3_READS_A_SECOND = 5500

# Guesses. S3 says of small requests that their median is often tens of milliseconds, and no more than that:
# https://docs.aws.amazon.com/whitepapers/latest/s3-optimizing-performance-best-practices/ (timeouts and retries)
S3 = Store(put=0.05, get=0.03)
BUSY = 0.5
"""How much of a processor one plans to use."""
MOST_TRIES = 1.5
"""Manifest writes for each append that one plans with: past that, waiting grows faster than partitions save."""
MOST_PARTITIONS = 1 << 16
"""Of a topic that one would plan."""
DOLLARS_WORTH_IT = 5.0
"""Of requests for each TB: a tenth of what a Kafka of one's own pays to copy that TB between zones."""

INTERVALS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
FLUSH_SIZE = 64 << 20
"""The largest batch of a plan: eight times a producer's default, for fewer requests."""
MONTH = 30 * 86_400
TERABYTE = 1e12


@dataclass(frozen=True, slots=True)
class Measured:
    """What the rest is computed from."""

    turns: float = 1.0
    """Batches that a topic's producer makes in each flush interval."""
    seconds_in: float = 0.0
    """Of a processor, for each GB produced."""
    seconds_out: float = 0.0
    """Of a processor, for each GB that a group reads."""
    smaller: float = 1.0
    """How many times compression makes it smaller."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream to plan for."""

    rate: float
    """Bytes a second before compression."""
    producers: int
    measured: Measured
    groups: int = 1
    retention: float = 24 * 3600.0
    """Seconds that batches stay in the bucket."""
    store: Store = S3


@dataclass(frozen=True, slots=True)
class Requests:
    """For each batch, of all that take part."""

    writes: float
    reads: float


def predict_requests(producers: int, interval: float, store: Store, *, groups: int = 1) -> Requests:
    """What one buffer's producers and its groups ask of the store, for each batch."""
    appends = predict(producers, interval, store)
    batches = producers / interval
    tries = appends.tries * appends.rate / batches
    looks, found = _looks(batches, store)
    acks = min(found, 1 / RuntimeConfig().ack_seconds)
    return Requests(
        writes=1 + tries + groups * (found + acks) / batches,
        reads=(tries if producers > 1 else 0.0) + groups * (1 + 2 * looks / batches),
    )


def _looks(batches: float, store: Store) -> tuple[float, float]:
    """How often a second a group looks (two reads), and how often it finds something (and writes down a plan)."""
    cycle = 2 * store.get + store.put
    found = min(batches, 1 / cycle)
    spent, delay, empty = cycle, POLL_FLOOR, 0
    while spent + delay < 1 / found:
        spent += delay + 2 * store.get
        delay = min(2 * delay, RuntimeConfig().max_poll_interval)
        empty += 1
    return found * (1 + empty), found


@dataclass(frozen=True, slots=True)
class Plan:
    """What that needs, and what it costs."""

    interval: float
    topics: int
    partitions: int
    """Of each topic."""
    batch: float
    """Bytes before compression."""
    batches_a_second: float
    appends: Appends
    """Of one partition."""
    requests: Requests
    cores: float
    durable: float
    """Seconds until an entry is durable, on average."""
    durable_p99: float
    visible: float
    """Seconds until a group has it, on average."""
    request_dollars: float
    """For each TB before compression, as those that follow."""
    storage_dollars: float
    core_dollars: float

    @property
    def dollars(self) -> float:
        """For each TB, all together."""
        return self.request_dollars + self.storage_dollars + self.core_dollars


@cache
def plan(stream: Stream, interval: float) -> Plan:
    """The least partitions at which producers seldom meet, and what follows from them."""
    measured, store = stream.measured, stream.store
    topics = math.ceil(stream.producers / MAX_WRITERS)
    producers = math.ceil(stream.producers / topics)
    # A batch that is full is flushed before its time.
    interval = min(interval, FLUSH_SIZE * stream.producers / stream.rate)

    def between_appends(partitions: int) -> float:
        """Seconds between two appends of a producer to one partition."""
        return interval if partitions == 1 else interval * partitions / measured.turns

    def is_enough(partitions: int) -> bool:
        return predict(producers, between_appends(partitions), store).tries <= MOST_TRIES

    partitions = 1 + bisect_left(range(1, MOST_PARTITIONS), True, key=is_enough)
    each = between_appends(partitions)
    appends = predict(producers, each, store)
    requests = predict_requests(producers, each, store, groups=stream.groups)
    batches = topics * partitions * producers / each
    looks, _ = _looks(producers / each, store)
    # Until the batch is due, stored, next to be listed, and listed.
    waiting = max(0.0, producers / appends.rate - each)
    durable = interval / 2 + store.put + waiting / 2 + appends.seconds
    cores = (measured.seconds_in + stream.groups * measured.seconds_out) * stream.rate / 1e9 / BUSY
    seconds_a_terabyte = TERABYTE / stream.rate
    return Plan(
        interval=interval,
        topics=topics,
        partitions=partitions,
        batch=stream.rate / batches,
        batches_a_second=batches,
        appends=appends,
        requests=requests,
        cores=cores,
        durable=durable,
        durable_p99=interval + store.put + waiting + appends.seconds_p99,
        visible=durable + 1 / looks / 2 + 3 * store.get,
        request_dollars=dollars(requests.writes * batches, requests.reads * batches) * seconds_a_terabyte,
        storage_dollars=1000 / measured.smaller * stream.retention / MONTH * DOLLARS_PER_GB_MONTH,
        core_dollars=cores * seconds_a_terabyte / 3600 * DOLLARS_PER_CORE_HOUR,
    )


def choose(stream: Stream) -> Plan:
    """The shortest flush interval whose requests are worth it."""
    plans = [plan(stream, interval) for interval in INTERVALS]
    return next((found for found in plans if found.request_dollars <= DOLLARS_WORTH_IT), plans[-1])

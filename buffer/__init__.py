"""Buffers: stores, formats, manifest, the write and the read path.

What most programs need is in `forebay` itself; these names are for those that go further.
"""

from __future__ import annotations

from forebay.buffer.consumer import Collect
from forebay.buffer.either.dispatch import buffers_at
from forebay.buffer.either.ranges import read_range
from forebay.buffer.format.batch import DecodedBatch, decode_batch, encode_batch
from forebay.buffer.groups import Groups
from forebay.buffer.inspect.migrate import migrate
from forebay.buffer.read.fetch import RECORDS_SCHEMA, FetchHandle
from forebay.buffer.topic import TopicConsumer, TopicProducer, add_partitions, create_topic, describe_topic

__all__ = [
    "RECORDS_SCHEMA",
    "Collect",
    "DecodedBatch",
    "FetchHandle",
    "Groups",
    "TopicConsumer",
    "TopicProducer",
    "add_partitions",
    "buffers_at",
    "create_topic",
    "decode_batch",
    "describe_topic",
    "encode_batch",
    "migrate",
    "read_range",
]

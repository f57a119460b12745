"""The public names of buffers beyond those in `forebay`: producer, consumer, groups, holds, topics, inspection.

The modules that lie here serve one buffer. They build on the folders `base` to `write`; RFC 0002 draws the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.buffer.base.lazy import load_on_demand

if TYPE_CHECKING:
    from forebay.buffer.base.tracing import add_trace_context, split_trace_context, trace_links
    from forebay.buffer.consumer import Collect
    from forebay.buffer.either.dispatch import buffers_at
    from forebay.buffer.either.ranges import read_range
    from forebay.buffer.format.batch import DecodedBatch, decode_batch, encode_batch
    from forebay.buffer.groups import Groups
    from forebay.buffer.inspect.describe import describe_topic
    from forebay.buffer.inspect.migrate import migrate
    from forebay.buffer.read.ahead import ReadAhead
    from forebay.buffer.read.fetch import FetchHandle
    from forebay.buffer.read.records import RECORDS_SCHEMA
    from forebay.buffer.topic import TopicConsumer, TopicProducer, add_partitions, create_topic
    from forebay.buffer.write.settings import ProducerLimits

__all__ = [
    "RECORDS_SCHEMA",
    "Collect",
    "DecodedBatch",
    "FetchHandle",
    "Groups",
    "ProducerLimits",
    "ReadAhead",
    "TopicConsumer",
    "TopicProducer",
    "add_partitions",
    "add_trace_context",
    "buffers_at",
    "create_topic",
    "decode_batch",
    "describe_topic",
    "encode_batch",
    "migrate",
    "read_range",
    "split_trace_context",
    "trace_links",
]

_HOMES = {
    "Collect": "forebay.buffer.consumer",
    "DecodedBatch": "forebay.buffer.format.batch",
    "FetchHandle": "forebay.buffer.read.fetch",
    "Groups": "forebay.buffer.groups",
    "ProducerLimits": "forebay.buffer.write.settings",
    "RECORDS_SCHEMA": "forebay.buffer.read.records",
    "ReadAhead": "forebay.buffer.read.ahead",
    "TopicConsumer": "forebay.buffer.topic",
    "TopicProducer": "forebay.buffer.topic",
    "add_partitions": "forebay.buffer.topic",
    "add_trace_context": "forebay.buffer.base.tracing",
    "buffers_at": "forebay.buffer.either.dispatch",
    "create_topic": "forebay.buffer.topic",
    "decode_batch": "forebay.buffer.format.batch",
    "describe_topic": "forebay.buffer.inspect.describe",
    "encode_batch": "forebay.buffer.format.batch",
    "migrate": "forebay.buffer.inspect.migrate",
    "read_range": "forebay.buffer.either.ranges",
    "split_trace_context": "forebay.buffer.base.tracing",
    "trace_links": "forebay.buffer.base.tracing",
}
"""Where each name is. They are loaded when asked for: a process that Spark plans in needs few of them."""

if not TYPE_CHECKING:  # a type checker would take any name for one of them
    __getattr__, __dir__ = load_on_demand(__name__, _HOMES)

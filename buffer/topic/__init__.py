"""Topics: a folder of buffers that is written and read as one (rfcs/0005).

Builds on writers, consumers, groups and holds of single buffers. None of them imports this folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.buffer.base.lazy import load_on_demand

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from forebay.buffer.topic.batches import PartitionBatch, PartitionDescriptor, TopicFetchHandle, TopicLag
    from forebay.buffer.topic.consumer import TopicConsumer
    from forebay.buffer.topic.groups import TopicGroups, TopicGroupState
    from forebay.buffer.topic.growth import Growth, add_partitions, create_topic
    from forebay.buffer.topic.holds import HeldTopic
    from forebay.buffer.topic.keys import partition_for
    from forebay.buffer.topic.producer import TopicFlush, TopicProducer
    from forebay.buffer.topic.split import SplitHandle
    from forebay.buffer.topic.topic import Topic

__all__ = [
    "Growth",
    "HeldTopic",
    "PartitionBatch",
    "PartitionDescriptor",
    "SplitHandle",
    "Topic",
    "TopicConsumer",
    "TopicFetchHandle",
    "TopicFlush",
    "TopicGroupState",
    "TopicGroups",
    "TopicLag",
    "TopicProducer",
    "add_partitions",
    "buffers_at",
    "create_topic",
    "describe_topic",
    "partition_for",
]

_HOMES = {
    "Growth": "forebay.buffer.topic.growth",
    "HeldTopic": "forebay.buffer.topic.holds",
    "PartitionBatch": "forebay.buffer.topic.batches",
    "PartitionDescriptor": "forebay.buffer.topic.batches",
    "SplitHandle": "forebay.buffer.topic.split",
    "Topic": "forebay.buffer.topic.topic",
    "TopicConsumer": "forebay.buffer.topic.consumer",
    "TopicFetchHandle": "forebay.buffer.topic.batches",
    "TopicFlush": "forebay.buffer.topic.producer",
    "TopicGroupState": "forebay.buffer.topic.groups",
    "TopicGroups": "forebay.buffer.topic.groups",
    "TopicLag": "forebay.buffer.topic.batches",
    "TopicProducer": "forebay.buffer.topic.producer",
    "add_partitions": "forebay.buffer.topic.growth",
    "buffers_at": "forebay.buffer.either.dispatch",
    "create_topic": "forebay.buffer.topic.growth",
    "describe_topic": "forebay.buffer.inspect.describe",
    "partition_for": "forebay.buffer.topic.keys",
}
"""Where each name is: `buffers_at` and `describe_topic` take a buffer's URL too, so they are in folders that build on
this one. All are loaded when asked for: a process that Spark plans in needs few of them."""

__getattr__: Callable[[str], Any]
__dir__: Callable[[], list[str]]
__getattr__, __dir__ = load_on_demand(__name__, _HOMES)

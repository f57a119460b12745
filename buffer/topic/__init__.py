"""Topics: a folder of buffers that is written and read as one (rfcs/0005).

Builds on writers, consumers, groups and holds of single buffers. None of them imports this folder.
"""

from __future__ import annotations

from forebay.buffer.topic.batches import PartitionBatch, PartitionDescriptor, TopicFetchHandle, TopicLag
from forebay.buffer.topic.consumer import TopicConsumer
from forebay.buffer.topic.groups import TopicGroups, TopicGroupState
from forebay.buffer.topic.growth import Growth, add_partitions, create_topic
from forebay.buffer.topic.holds import HeldTopic
from forebay.buffer.topic.keys import partition_for
from forebay.buffer.topic.producer import TopicFlush, TopicProducer
from forebay.buffer.topic.topic import Topic

__all__ = [
    "Growth",
    "HeldTopic",
    "PartitionBatch",
    "PartitionDescriptor",
    "Topic",
    "TopicConsumer",
    "TopicFetchHandle",
    "TopicFlush",
    "TopicGroupState",
    "TopicGroups",
    "TopicLag",
    "TopicProducer",
    "add_partitions",
    "create_topic",
    "partition_for",
]

"""Topics: a folder of buffers that is written and read as one (rfcs/0005).

Builds on writers, consumers, groups and holds of single buffers. None of them imports this folder.
"""

from __future__ import annotations

from importlib import import_module
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

# Public here, although they take a buffer's URL too and are therefore in folders that build on this one.
_HOMES = {"buffers_at": "either.dispatch", "describe_topic": "inspect.describe"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"forebay.buffer.{_HOMES[name]}"), name)

"""The record of a topic: what stands at the place of a manifest where a URL is a folder of buffers (rfcs/0005).

One object says what a URL is, a buffer or a topic, so it can never be both.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from forebay.buffer.base.checks import Whole  # noqa: TC001 - msgspec reads the annotation
from forebay.buffer.base.counted import counted
from forebay.buffer.base.errors import Corrupt, InvalidInput, Unsupported
from forebay.buffer.manifest.envelope import pack, unpack
from forebay.buffer.manifest.schema_history import TYPED_BATCHES, check_history

MAX_PARTITIONS: Final = 100_000
"""As many as five digits can name."""
KNOWN_FEATURES: Final[frozenset[str]] = frozenset({TYPED_BATCHES})
_PARTITION: Final = re.compile("p-[0-9]{5}")


class TopicRecord(Struct, frozen=True, array_like=True, tag="topic"):
    """One state of a topic's record; every change returns the next one."""

    topic_id: str
    """Random, made once."""
    number: Whole = 1
    """Grows with every write, so that no two states are the same bytes."""
    required_features: tuple[str, ...] = ()
    partitions: int = 0
    """How many there are; 0 while the topic is being created. It never falls."""
    groups: dict[str, str] = {}
    """By name, where each one started: `earliest`, `latest` or a time. In partitions added later it starts at 0."""
    schemas: tuple[str, ...] = ()
    """The ids of all versions of the schema, oldest first; empty in a topic of bytes (rfcs/0010)."""

    def to_bytes(self) -> bytes:
        """The object as stored."""
        return pack(self)

    def with_partitions(self, total: int) -> TopicRecord:
        """The record with more partitions."""
        return replace(self, number=self.number + 1, partitions=total)

    def with_schemas(self, schemas: tuple[str, ...]) -> TopicRecord:
        """The record with a longer history of schemas."""
        features = tuple(sorted({*self.required_features, TYPED_BATCHES}))
        return replace(self, number=self.number + 1, schemas=schemas, required_features=features)

    def with_group(self, name: str, start: str) -> TopicRecord:
        """The record with one more group."""
        return replace(self, number=self.number + 1, groups={**self.groups, name: start})

    def without_group(self, name: str) -> TopicRecord:
        """The record without a group."""
        groups = {known: start for known, start in self.groups.items() if known != name}
        return replace(self, number=self.number + 1, groups=groups)


class IsTopic(InvalidInput):
    """A topic stands where a buffer was looked for. Who can work on one partition after the other catches it."""

    def __init__(self, message: str, *, record: TopicRecord) -> None:
        super().__init__(message)
        self.record = record
        """What was found. `check_record` says whether this release can work with it."""


def partition_name(partition: int) -> str:
    """The folder of a partition: `p-00000` and so on."""
    return f"p-{partition:05}"


def is_partition(url: str) -> bool:
    """Whether a URL ends like that of a topic's partition."""
    return _PARTITION.fullmatch(url.rpartition("/")[2]) is not None


def read_record(data: bytes | memoryview, location: str) -> TopicRecord:
    """Return the topic's record that the bytes hold.

    Raises:
        Corrupt: they are damaged, or something else.
        Unsupported: the topic needs a release that knows more.
    """
    return check_record(unpack(data, TopicRecord, location), location)


def check_record(record: TopicRecord, location: str) -> TopicRecord:
    """Return a topic's record if this release can work with it.

    Raises:
        Corrupt: its number of partitions is impossible.
        Unsupported: the topic needs a release that knows more.
    """
    unknown = set(record.required_features) - KNOWN_FEATURES
    if unknown:
        raise Unsupported(f"{location} needs {', '.join(sorted(unknown))}, which this release does not know: upgrade")
    if not 0 <= record.partitions <= MAX_PARTITIONS:
        raise Corrupt(f"{location}: {record.partitions} partitions; expected 0 to {MAX_PARTITIONS}")
    check_history(record.schemas, record.required_features, location)
    return record


def refuse_topic(data: bytes | memoryview, location: str) -> None:
    """Raise `IsTopic` if the bytes are a topic's record: the caller took its URL for a buffer's."""
    try:
        record = unpack(data, TopicRecord, location)
    except Corrupt:
        return
    url = location.rpartition("/")[0]
    raise IsTopic(
        f"{url} is a topic of {counted(record.partitions, 'partition')}, not a buffer: use TopicProducer, "
        "TopicConsumer and TopicGroups of forebay.buffer.topic, or one of its partitions, such as "
        f"{url}/{partition_name(0)}",
        record=record,
    )

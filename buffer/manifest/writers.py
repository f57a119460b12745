"""Lasting writers that are idle: sealed into buckets, so that a head does not grow with every name ever used."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from forebay.buffer.base import names
from forebay.buffer.base.errors import Corrupt
from forebay.buffer.base.reread import read_sound
from forebay.buffer.manifest.decode import read_writer_node
from forebay.buffer.manifest.envelope import pack
from forebay.buffer.manifest.head_fields import Bucket
from forebay.buffer.manifest.nodes import WriterNode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.manifest.head import Head
    from forebay.buffer.store.base import ObjectStore

FOLDER: Final = "writers"
ENDING: Final = ".writers"
"""What the name of every bucket's object ends with."""
_KEPT_NODES: Final = 4


class WriterBuckets:
    """The buckets of one buffer. Their objects never change, so those read last are kept."""

    def __init__(self, store: ObjectStore, *, clock: Clock, random: Random) -> None:
        self._store = store
        self._clock = clock
        self._random = random
        self._kept: OrderedDict[str, Mapping[str, int]] = OrderedDict()

    def load(self, head: Head, bucket: int) -> Mapping[str, int]:
        """Return the numbers of all writers in a bucket, by writer id.

        Raises:
            NotFound: its object is gone: the head is old, or the buffer is damaged.
            Corrupt: it is not what the head says.
        """
        ref = head.writer_buckets.get(bucket)
        if ref is None:
            return {}
        if ref.name not in self._kept:
            node = read_sound(lambda: self._read(ref.name), self._clock)
            if (node.buffer_id, node.bucket, len(node.numbers)) != (head.buffer_id, bucket, ref.count):
                raise Corrupt(f"{self._store.url}/{bucket_key(ref.name)} is not what the manifest says of it")
            self._kept[ref.name] = node.numbers
            while len(self._kept) > _KEPT_NODES:
                self._kept.popitem(last=False)
        return self._kept[ref.name]

    def _read(self, name: str) -> WriterNode:
        key = bucket_key(name)
        return read_writer_node(self._store.get(key).data, f"{self._store.url}/{key}")

    def save(self, head: Head, bucket: int, numbers: Mapping[str, int]) -> Bucket:
        """Store a bucket under a new name, and return the reference to it."""
        name = names.mint(self._clock, self._random, above=head.lowest_new_name)
        self._store.put(bucket_key(name), pack(WriterNode(head.buffer_id, bucket, dict(numbers))))
        return Bucket(name, len(numbers))


def bucket_key(name: str) -> str:
    """The key of a bucket's object."""
    return f"{FOLDER}/{name}{ENDING}"

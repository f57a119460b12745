"""Lasting writers that are idle: sealed into buckets, so that a head does not grow with every name ever used."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from forebay.buffer.base import names
from forebay.buffer.base.errors import NotFound, Unavailable, damaged
from forebay.buffer.base.reread import read_sound
from forebay.buffer.manifest.decode import read_writer_node
from forebay.buffer.manifest.envelope import pack
from forebay.buffer.manifest.head import Head, bucket_of, is_lasting
from forebay.buffer.manifest.head_fields import Bucket, Writer
from forebay.buffer.manifest.nodes import WriterNode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.manifest.either_version import EitherVersion
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
        self._missing = ""

    def find(self, state: EitherVersion, writer_id: str) -> Writer | None:
        """Return a writer's last append, from the manifest or from its bucket; None if it is in neither.

        Raises:
            Unavailable: its bucket was replaced since the manifest was read: read the manifest again.
            Corrupt: its bucket is damaged or missing.
        """
        writer = state.writers.get(writer_id)
        if writer is not None or not is_lasting(writer_id):  # guard: look for a lasting writer in its bucket
            return writer
        bucket = bucket_of(writer_id)
        try:
            number = self.load(state, bucket).get(writer_id)
        except NotFound as error:
            name, url = state.writer_buckets[bucket].name, self._store.url
            if name == self._missing:
                raise damaged(
                    f"{url}: its manifest refers to a bucket of writers that is not there ({error})"
                ) from error
            self._missing = name
            raise Unavailable(
                f"{url}: a bucket of writers was replaced while it was read ({error}). Try again"
            ) from error
        return None if number is None else Writer(number, 0, sealed=True)

    def load(self, state: EitherVersion, bucket: int) -> Mapping[str, int]:
        """Return the numbers of all writers in a bucket, by writer id.

        Raises:
            NotFound: its object is gone: the manifest is old, or the buffer is damaged.
            Corrupt: it is not what the manifest says.
        """
        ref = state.writer_buckets.get(bucket)
        if ref is None:
            return {}
        if ref.name not in self._kept:
            key = bucket_key(ref.name)
            location = f"{self._store.url}/{key}"
            node = read_sound(lambda: read_writer_node(self._store.get(key).data, location), self._clock)
            if (node.buffer_id, node.bucket, len(node.numbers)) != (state.buffer_id, bucket, ref.count):
                raise damaged(f"{location} is not what the manifest says of it")
            self._kept[ref.name] = node.numbers
            while len(self._kept) > _KEPT_NODES:
                self._kept.popitem(last=False)
        return self._kept[ref.name]

    def save(self, head: Head, bucket: int, numbers: Mapping[str, int]) -> Bucket:
        """Store a bucket under a new name, and return the reference to it."""
        name = names.mint(self._clock, self._random, above=head.lowest_new_name)
        self._store.put(bucket_key(name), pack(WriterNode(head.buffer_id, bucket, dict(numbers))))
        return Bucket(name, len(numbers))


def bucket_key(name: str) -> str:
    """The key of a bucket's object."""
    return f"{FOLDER}/{name}{ENDING}"

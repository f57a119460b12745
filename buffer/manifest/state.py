"""A manifest of either version, as found in the store: reading one, and what a missing one means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from forebay.buffer.base.errors import Corrupt, InvalidInput
from forebay.buffer.manifest import envelope, v1
from forebay.buffer.manifest.decode import read_head
from forebay.buffer.manifest.head import Head
from forebay.buffer.manifest.schemas import FOLDER as SCHEMAS
from forebay.buffer.manifest.segments import FOLDER as SEGMENTS
from forebay.buffer.manifest.topic import partition_name, refuse_topic
from forebay.buffer.manifest.v1 import Manifest
from forebay.buffer.manifest.writers import FOLDER as WRITERS
from forebay.buffer.store.base import check_key

if TYPE_CHECKING:
    from forebay.buffer.store.base import ObjectStore

CURSORS = "cursors"
OPENDATA_MANIFEST_PATH = "ingest/manifest"
OPENDATA_DATA_PREFIX = "ingest"
"""Where OpenData Buffer keeps the manifest by default, below the bucket's root."""

Profile: TypeAlias = Literal["native", "opendata"]
"""What the first writer makes of a buffer: version 2, or version 1, which OpenData Buffer shares."""

State: TypeAlias = Manifest | Head


def read_state(data: bytes | memoryview, location: str) -> State:
    """Return the manifest that the bytes hold, of whichever version they say they are.

    Raises:
        Corrupt: they are of no known version, damaged, or contradict themselves.
        IsTopic: they are a topic's record.
    """
    version = int.from_bytes(data[-2:], "little") if len(data) >= 2 else 0
    if version == envelope.VERSION:
        try:
            return read_head(data, location)
        except Corrupt:
            refuse_topic(data, location)  # guard: refuse a topic where a buffer is expected
            raise
    if version == v1.VERSION:
        return Manifest(data, location)
    raise Corrupt(
        f"manifest {location}: {len(data)} bytes that end as version {version}; it is truncated, no manifest, or of a "
        "later release (this one reads versions 1 and 2)"
        "; restore it, or upgrade"
    )


def check_layout(manifest_path: str, data_prefix: str) -> None:
    """Raise `InvalidInput` if batches would be stored, or swept, where the buffer keeps other things."""
    check_key(manifest_path)
    check_key(data_prefix)
    folders = {path.partition("/")[0] for path in (manifest_path, data_prefix)}
    if data_prefix == manifest_path or folders & {SEGMENTS, CURSORS, WRITERS, SCHEMAS}:
        raise InvalidInput(
            f"manifest_path {manifest_path!r} and data_prefix {data_prefix!r} must differ, and be outside {SEGMENTS}/, "
            f"{CURSORS}/, {WRITERS}/ and {SCHEMAS}/, which a buffer keeps for itself"
        )


def check_no_remains(store: ObjectStore, manifest_path: str) -> None:
    """Raise `Corrupt` if a manifest that is missing has been there: then it does not stand for an empty buffer."""
    for folder in (SEGMENTS, CURSORS, WRITERS, partition_name(0)):
        remains = next(iter(store.list(f"{folder}/")), None)
        if remains is None:
            continue
        # A process that creates a buffer writes the manifest first, so it must exist if other objects do.
        if any(found.key == manifest_path for found in store.list(manifest_path)):
            return
        raise Corrupt(
            f"{store.url}/{manifest_path} is missing, but {remains.key} is there: the manifest was deleted. Restore "
            "it, or remove the rest to start anew"
        )

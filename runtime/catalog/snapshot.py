"""Snapshots: a catalog's view at one moment, with the offsets that were applied to it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta, Struct

from forebay.buffer.base.checks import MOST
from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import ForebayError, NotFound
from forebay.buffer.base.reread import read_sound
from forebay.buffer.manifest.envelope import pack, unpack
from forebay.runtime.catalog.view import PartitionDump  # noqa: TC001 - msgspec reads the annotation

if TYPE_CHECKING:
    from forebay.buffer.base.clock import Clock
    from forebay.buffer.store import ObjectStore

_log = logging.getLogger("forebay.catalog")

SNAPSHOT_KEY: Final = "catalog.snapshot"


class CatalogSnapshot(Struct, frozen=True, tag="catalog"):
    """A saved view, from which a catalog starts instead of a replay of the whole log."""

    topic: str
    applied: list[Annotated[int, Meta(ge=-1, le=MOST)]]
    """The last offset applied, of every partition of the topic; -1 where there is none."""
    partitions: list[PartitionDump]


def write_snapshot(store: ObjectStore, snapshot: CatalogSnapshot) -> None:
    """Replace the stored snapshot by this one, as a whole or not at all."""
    store.put(SNAPSHOT_KEY, pack(snapshot))


def load_snapshot(
    store: ObjectStore, topic: str, partitions: int, *, clock: Clock | None = None
) -> CatalogSnapshot | None:
    """Return the stored snapshot; None if there is none or it cannot be used, so that everything is replayed."""
    location = f"{store.url}/{SNAPSHOT_KEY}"
    try:
        snapshot = read_sound(
            lambda: unpack(store.get(SNAPSHOT_KEY).data, CatalogSnapshot, location), clock or SystemClock()
        )
    except NotFound:
        return None
    except ForebayError:
        _log.warning("%s cannot be used; everything is replayed", location, exc_info=True)
        return None
    if snapshot.topic != topic or len(snapshot.applied) != partitions or min(snapshot.applied) < -1:
        _log.warning(
            "%s is of topic %s with %d partitions, not of %s with %d; everything is replayed",
            location,
            snapshot.topic,
            len(snapshot.applied),
            topic,
            partitions,
        )
        return None
    return snapshot

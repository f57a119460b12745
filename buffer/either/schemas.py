"""The schema of a typed buffer or topic: its versions, and how to change it without writing rows (rfcs/0010)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import Unsupported
from forebay.buffer.either.dispatch import open_buffer_or_topic
from forebay.buffer.format.schema import check_schema, compare_schemas, widen
from forebay.buffer.manifest.schemas import Schemas
from forebay.buffer.store import ObjectStore, StoreUrl, open_store
from forebay.buffer.topic.schemas import open_topic_format
from forebay.buffer.topic.topic import Topic
from forebay.buffer.write.formats import open_format, refuse_partition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import pyarrow as pa

    from forebay.buffer.format.schema import SchemaChange


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version of the schema of a buffer or topic."""

    number: int
    """Counted from 0."""
    schema_id: str
    """The name of its object in `schemas/`."""
    schema: pa.Schema
    changes: tuple[SchemaChange, ...]
    """How it differs from the version before."""


def schema_versions(
    url: StoreUrl, *, manifest_path: str = "manifest", storage_options: Mapping[str, Any] | None = None
) -> list[SchemaVersion]:
    """Return every version of the schema of a buffer or topic, oldest first; none if it holds bytes.

    Raises:
        NotFound: there is neither.
        Corrupt: a schema is damaged or missing.
    """
    store = open_store(url, storage_options)
    ids = _schema_ids(store, manifest_path)
    schemas = Schemas(store, clock=SystemClock())
    versions: list[SchemaVersion] = []
    for number, schema_id in enumerate(ids):
        schema = schemas.load(schema_id)
        changes = compare_schemas(versions[-1].schema, schema) if versions else []
        versions.append(SchemaVersion(number, schema_id, schema, tuple(changes)))
    return versions


def newest_schema(store: ObjectStore) -> pa.Schema | None:
    """Return the newest schema of a buffer or topic; None if it holds bytes.

    Raises:
        NotFound: there is neither.
        Corrupt: the schema is damaged or missing.
    """
    ids = _schema_ids(store, "manifest")
    return Schemas(store, clock=SystemClock()).load(ids[-1]) if ids else None


def _schema_ids(store: ObjectStore, manifest_path: str) -> Sequence[str]:
    found = open_buffer_or_topic(store, manifest_path, must_exist=True)
    return found.record.schemas if isinstance(found, Topic) else found.read().schemas


def evolve_schema(
    url: StoreUrl,
    schema: pa.Schema,
    *,
    dry_run: bool = False,
    manifest_path: str = "manifest",
    storage_options: Mapping[str, Any] | None = None,
) -> list[SchemaChange]:
    """Widen the schema of a typed buffer or topic so that it holds rows of `schema`, and return what changes.

    Producers and readers may be at work meanwhile. Repeating it changes nothing.

    Args:
        url: the buffer or topic, or its store if it is open already.
        schema: what rows will have; nullable columns that it lacks stay.
        dry_run: only say what would change.
        manifest_path: the buffer's manifest below `url`.
        storage_options: credentials, endpoint and client of the store.

    Raises:
        InvalidInput: the schema does not fit the present one. The message names the columns and both types.
        Unsupported: there are bytes, or it is a partition of a topic.
        NotFound: there is neither a buffer nor a topic.
    """
    store = open_store(url, storage_options)
    versions = schema_versions(store, manifest_path=manifest_path)
    if not versions:
        raise Unsupported(
            f"{store.url} holds entries of bytes, which have no schema; use a buffer that was made with a schema"
        )
    newest, wanted = versions[-1].schema, check_schema(schema)
    changes = compare_schemas(newest, widen(newest, wanted))
    if changes:
        refuse_partition(store.url)
    if changes and not dry_run:
        found = open_buffer_or_topic(store, manifest_path, must_exist=True)
        if isinstance(found, Topic):
            open_topic_format(found, wanted, evolve=True)
        else:
            open_format(found, found.read(), schema=wanted, evolve=True)
    return changes

"""The schema of a typed topic: in the record first, and in each partition with its next append (rfcs/0010)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import Unsupported
from forebay.buffer.manifest.schemas import Schemas
from forebay.buffer.topic.topic import required
from forebay.buffer.write.formats import settle_format

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay.buffer.manifest import Queue, State
    from forebay.buffer.manifest.topic import TopicRecord
    from forebay.buffer.topic.topic import Topic
    from forebay.buffer.write.rows import RowFormat


def open_topic_format(topic: Topic, schema: pa.Schema | type | None, *, evolve: bool) -> RowFormat | None:
    """Return what a producer of a topic writes; None if the topic holds bytes. See `open_format`.

    Raises:
        InvalidInput: the schema does not fit the topic's, or needs `evolve`.
        Unsupported: there is a schema, and the topic holds bytes.
    """
    looks = 0

    def read() -> tuple[str, ...] | None:
        nonlocal looks
        looks += 1
        known = (topic.record if looks == 1 else topic.refresh()).schemas  # the caller has just opened the topic
        if not known and schema is not None:
            raise Unsupported(
                f"{topic.url} is a topic of bytes, and cannot get a schema later: create another topic "
                "with create_topic(url, partitions, schema=…)"
            )
        return known or None

    def extend(before: tuple[str, ...], after: tuple[str, ...]) -> tuple[str, ...]:
        def change(record: TopicRecord | None) -> TopicRecord | None:
            record = required(record, topic.url)
            # guard: extend only the history of the record that was read
            return record.with_schemas(after) if record.schemas == before else None

        found = topic.register.update(change, lambda record: after[-1] in record.schemas)
        return required(found.value, topic.url).schemas

    schemas = Schemas(topic.store, clock=topic.clock or SystemClock())
    return settle_format(schemas, schema, read, extend, evolve=evolve, url=topic.url)


def follow_topic(queue: Queue, state: State, rows: RowFormat | None, schemas: Schemas) -> RowFormat | None:
    """Return what a topic's producer writes to a partition; before that, store there what the partition lacks.

    The append names the ids, so the schemas have to be there first: a reader of the partition alone needs them.
    """
    if rows is not None:
        schemas.copy([schema_id for schema_id in rows.ids if schema_id not in state.schemas], queue.store)
    return rows

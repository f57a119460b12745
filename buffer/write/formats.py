"""Which schema a producer writes in: finding it, making it, and evolving it (rfcs/0010).

A history is a head's or a topic record's list of schema ids. The schema is stored before a history names it, and a
history is changed by compare-and-swap only if it is still the one that the change was decided on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay.buffer.base.errors import InvalidInput, Timeout, Unsupported
from forebay.buffer.format.schema import check_schema, compare_schemas, widen
from forebay.buffer.manifest import Head
from forebay.buffer.manifest.schemas import Schemas
from forebay.buffer.manifest.topic import is_partition
from forebay.buffer.write.rows import RowFormat

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from forebay.buffer.manifest import Queue, State

    History = tuple[str, ...]

_MAX_ATTEMPTS: Final = 100
"""Maximum number of times that others may evolve the schema while it is being evolved here."""
_SHOWN: Final = 5


def open_format(
    queue: Queue, state: State, *, schema: pa.Schema | type | None = None, evolve: bool = False
) -> RowFormat | None:
    """Return what a producer of a buffer writes; None if the buffer holds bytes.

    Args:
        queue: the buffer's manifest.
        state: the manifest as it was just read.
        schema: the schema that the producer's rows are in; None for the newest one of the buffer. A buffer that nothing
            was written to gets it.
        evolve: whether a wider schema becomes a new version.

    Raises:
        InvalidInput: the schema does not fit the buffer's, or needs `evolve`.
        Unsupported: there is a schema, and the buffer holds bytes or is of version 1.
    """
    if schema is None and evolve:
        raise InvalidInput("evolve=True needs a schema: pass the one that the rows are in")

    looked_at: State | None = state

    def read() -> History | None:
        nonlocal looked_at
        state = queue.as_written(queue.read() if looked_at is None else looked_at)
        looked_at = None
        if not isinstance(state, Head):
            if schema is not None:
                raise Unsupported(f"{queue.url} is of version 1, which holds bytes: use another buffer for rows")
            return None
        if state.schemas:
            return state.schemas
        if schema is not None and state.next_sequence:
            raise Unsupported(f"{queue.url} holds entries of bytes, and rows need another buffer")
        return () if schema is not None else None

    def extend(before: History, after: History) -> History:
        refuse_partition(queue.store.url)

        def change(head: Head) -> Head | None:
            # guard: extend only the history that the change was decided on
            return head.evolve(after) if head.schemas == before else None

        return queue.change_head(change, lambda head: after[-1] in head.schemas).schemas

    return settle_format(Schemas(queue.store, clock=queue.clock), schema, read, extend, evolve=evolve, url=queue.url)


def refuse_partition(url: str) -> None:
    """Raise `Unsupported` if a URL is that of a topic's partition, whose schema changes only with the topic's."""
    if is_partition(url):
        raise Unsupported(
            f"{url} is named like a partition of a topic, and gets its schema from the topic: create the topic with a "
            "schema, and evolve that"
        )


def settle_format(
    schemas: Schemas,
    schema: pa.Schema | type | None,
    read: Callable[[], History | None],
    extend: Callable[[History, History], History],
    *,
    evolve: bool,
    url: str,
) -> RowFormat | None:
    """Return what a producer writes whose rows are in `schema`.

    Args:
        schemas: where the schemas are stored.
        schema: what the producer's rows are in; None for the newest version.
        read: returns the history as it is now; None if there are bytes, and nobody asked for rows.
        extend: replaces one history by a longer one, only if it is still there, and returns what is there then.
        evolve: whether a wider schema becomes a new version.
        url: for messages.
    """
    wanted = None if schema is None else check_schema(schema)
    for _ in range(_MAX_ATTEMPTS):
        history = read()
        if history is None:
            return None
        if wanted is None:
            newest = schemas.load(history[-1])
            return RowFormat(newest, newest, history)
        if history:
            found = _find_version(schemas, history, wanted)
            if found is not None:
                return found
            new = _widen(schemas.load(history[-1]), wanted, evolve=evolve, url=url)
        else:
            new = wanted
        after = (*history, schemas.save(new))
        extend(history, after)  # if others came first, the next look finds what they made
    raise Timeout(
        f"{url}: its schema was changed {_MAX_ATTEMPTS} times by other processes meanwhile; "
        "nothing was changed here. Try again"
    )


def _find_version(schemas: Schemas, history: History, wanted: pa.Schema) -> RowFormat | None:
    """Return what is written for a schema that the buffer holds already; None if it does not."""
    for version in range(len(history) - 1, -1, -1):
        stored = schemas.load(history[version])
        changes = compare_schemas(stored, wanted)
        if not changes:
            return RowFormat(wanted, stored, history[: version + 1])
        # Only columns of the newest version may be missing. To write an older one, its whole schema must be given.
        if version == len(history) - 1 and all(change.kind == "missing" for change in changes):
            return RowFormat(wanted, stored, history)
    return None


def _widen(newest: pa.Schema, wanted: pa.Schema, *, evolve: bool, url: str) -> pa.Schema:
    try:
        wider = widen(newest, wanted)
    except InvalidInput as error:
        raise InvalidInput(f"{url}: {error}") from None
    if not evolve:
        changes = [str(change) for change in compare_schemas(newest, wanted) if change.evolves]
        more = f", and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
        raise InvalidInput(
            f"{url}: this schema differs from the buffer's: {'; '.join(changes[:_SHOWN])}{more}. To change the "
            "buffer's schema for good, open the producer with evolve=True, or run `forebay schema evolve`"
        )
    return wider

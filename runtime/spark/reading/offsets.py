"""A stream's offsets: for each buffer, what is read next, as Spark keeps it in the checkpoint.

An offset that ends a micro-batch also says where that began. Spark asks for the initial offset again when it repeats
the first micro-batch after a crash, and `latest` is another place by then: the end alone says what was planned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from forebay.buffer.base.errors import Corrupt, Unsupported
from forebay.buffer.format.model import Reader

if TYPE_CHECKING:
    from collections.abc import Mapping

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Position:
    """A place in one buffer."""

    reader: Reader
    """Who reads there: a checkpoint of another buffer, or of another life of the group, is not taken for ours."""
    next: int
    """The first sequence behind what was read."""
    began: int | None = None
    """The first sequence of the micro-batch that ends here; None until a micro-batch has read something."""


Offset: TypeAlias = dict[int, Position]
"""By partition; a buffer on its own is partition 0."""


def to_json(offset: Offset, schema_id: str | None = None) -> dict[str, Any]:
    """The offset as Spark writes it down, with the newest schema of a typed buffer."""
    return {
        "version": _VERSION,
        **({} if schema_id is None else {"schema": schema_id}),
        "partitions": {
            str(number): {
                "buffer": position.reader.source,
                "group": position.reader.group,
                "generation": position.reader.generation,
                **({} if position.began is None else {"from": position.began}),
                "next": position.next,
            }
            for number, position in sorted(offset.items())
        },
    }


def from_json(data: Mapping[str, Any]) -> Offset:
    """Return what `to_json` made, now or in an earlier run.

    Raises:
        Unsupported: a later release wrote it.
        Corrupt: it is no offset.
    """
    if data.get("version") != _VERSION:
        raise Unsupported(
            f"the checkpoint holds an offset of version {data.get('version')!r}; this release reads 1"
            ". Upgrade forebay, or start with a new checkpoint"
        )
    try:
        return {
            int(number): Position(
                Reader(found["buffer"], found["group"], found["generation"]), int(found["next"]), found.get("from")
            )
            for number, found in data["partitions"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(
            f"the checkpoint holds {data!r}, which is not an offset of a forebay stream. Start with a new checkpoint"
        ) from error

"""How far a reader has come in an Iceberg table (rfcs/0011).

Each commit of a reader writes its position twice: as a table property, which survives the expiry of snapshots, and into
the summary of its snapshot, which shows whether the rows are still part of the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from forebay.buffer.base.errors import Corrupt

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

_PROPERTY: Final = "forebay.position."
"""Followed by the reader: the key of the table property."""
READER: Final = "forebay.reader"
FIRST: Final = "forebay.first-sequence"
LAST: Final = "forebay.last-sequence"
"""Keys in the summary of a snapshot: whose rows it added, and of which sequences."""


@dataclass(frozen=True, slots=True)
class Position:
    """A reader's last commit, as the table has it."""

    sequence: int
    """The last sequence of the source whose rows are in the table."""
    snapshot_id: int
    """The snapshot that added them."""
    sequence_number: int
    """Iceberg's number of that snapshot. It grows with every snapshot of the table, on all branches."""

    def __str__(self) -> str:
        return f"sequence {self.sequence} (snapshot {self.snapshot_id})"


class RolledBack(Exception):
    """The table no longer holds rows that the reader has committed. It names both positions and what to do."""


def property_of(reader: str, position: Position) -> dict[str, str]:
    """Return the table property that says how far the reader has come."""
    return {f"{_PROPERTY}{reader}": msgspec.json.encode(position).decode()}


def read_position(metadata: TableMetadata, reader: str) -> Position | None:
    """Return how far the reader has come; None if it has committed nothing.

    Raises:
        RolledBack: the rows up to there were in the table, and are no longer.
        Corrupt: the table's property is not what a commit writes.
    """
    found = _committed(metadata, reader)
    newest = max(found, key=lambda position: position.sequence, default=None)
    # guard: refuse a table that was rolled back behind the position
    if newest is not None and not _is_in_main(metadata, newest):
        raise RolledBack(_explain(newest, _left(metadata, found)))
    return newest


def _committed(metadata: TableMetadata, reader: str) -> list[Position]:
    """Every commit of the reader that the metadata still tells of, whatever became of its rows."""
    found = []
    told = metadata.properties.get(f"{_PROPERTY}{reader}")
    if told is not None:
        try:
            found.append(msgspec.json.decode(told.encode(), type=Position))
        except msgspec.MsgspecError as error:
            raise Corrupt(
                f"the table's property {_PROPERTY}{reader} is {told!r}, which is not a position"
                "; restore the property from older metadata of the table"
            ) from error
    # guard: look for commits in the summaries of snapshots too
    for snapshot in metadata.snapshots:
        summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
        if summary.get(READER) == reader:
            found.append(Position(int(summary[LAST]), snapshot.snapshot_id, snapshot.sequence_number or 0))
    return found


def _is_in_main(metadata: TableMetadata, position: Position) -> bool:
    """Whether the snapshot of a position is part of what readers of the table see.

    Numbers shrink from each snapshot to its parent. So if a smaller one is met before the wanted snapshot, main does
    not come from it. If main's known history ends before that, the snapshot has expired, which removes no rows: some
    programs then leave a parent that is unknown, and others leave none. But a snapshot without a parent may also be
    the first of a table that was replaced, whose old snapshots are still there.
    """
    known = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    snapshot = metadata.current_snapshot()
    while snapshot is not None and snapshot.snapshot_id != position.snapshot_id:
        if (snapshot.sequence_number or 0) < position.sequence_number:
            return False
        if snapshot.parent_snapshot_id is None:
            return position.snapshot_id not in known
        if snapshot.parent_snapshot_id not in known:
            return True
        snapshot = known[snapshot.parent_snapshot_id]
    return snapshot is not None


def _left(metadata: TableMetadata, found: list[Position]) -> Position | None:
    """The reader's newest commit that is still part of the table, as far as the metadata tells."""
    kept = [position for position in found if _is_in_main(metadata, position)]
    return max(kept, key=lambda position: position.sequence, default=None)


def _explain(newest: Position, left: Position | None) -> str:
    holds = "none of them" if left is None else f"those up to {left}"
    return (
        f"rows up to {newest} were committed, and the table now holds {holds}: it was rolled back or replaced. Either "
        f"roll it forward to snapshot {newest.snapshot_id}, or reset the group to the sequence that it should read "
        f"next (forebay groups reset … --to {0 if left is None else left.sequence + 1} reads again what is missing)"
    )

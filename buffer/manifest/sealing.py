"""What a writer seals before it appends: older listings into nodes, idle lasting writers into buckets (rfcs/0005)."""

from __future__ import annotations

import logging
from functools import partial, reduce
from typing import TYPE_CHECKING

from forebay.buffer.base.errors import Corrupt, StoreError
from forebay.buffer.manifest.head import Head

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.buffer.manifest.segments import Segments
    from forebay.buffer.manifest.writers import WriterBuckets

_log = logging.getLogger("forebay.manifest")

_HEAVY_BYTES = 256 << 10
"""A head larger than that holds much metadata: it is sealed sooner."""
_MOST_SEALS = 8
"""Maximum number of nodes that one append stores; ordinary ones store none or one."""


class Sealing:
    """The sealed objects that one writer has stored, and that its next write makes the head refer to."""

    def __init__(self, url: str, segments: Segments, buckets: WriterBuckets, writer_id: str) -> None:
        self._url = url
        self._segments = segments
        self._buckets = buckets
        self._writer_id = writer_id
        self._seals: list[Callable[[Head], Head]] = []

    def store_due(self, head: Head, head_bytes: int) -> None:
        """Store what is due to be sealed, given the head as last seen and its size. A failure is logged."""
        still_due, self._seals = self._seals, []
        for seal in still_due:  # of an append that failed
            head = self._add(head, seal)
        heavy = head_bytes > _HEAVY_BYTES
        if head.plan_seal(heavy=heavy) is None and not head.is_writer_seal_due():
            return  # nothing is due at anybody's turn, and finding out the turn costs more than this
        turn = head.seal_turn(self._writer_id)  # guard: writers take turns at sealing
        try:
            while len(self._seals) < _MOST_SEALS and (node := head.plan_seal(heavy=heavy, turn=turn)) is not None:
                ref = self._segments.store_node(node, above=head.lowest_new_name)
                head = self._add(head, partial(Head.seal, ref=ref, children=node.refs))
            planned = head.plan_writer_seal(self._writer_id) if head.is_writer_seal_due(turn) else {}
            for bucket, idle in planned.items():
                before = head.writer_buckets.get(bucket)
                numbers = {**self._buckets.load(head, bucket), **{known: w.number for known, w in idle.items()}}
                after = self._buckets.save(head, bucket, numbers)
                head = self._add(head, partial(Head.seal_writers, bucket=bucket, before=before, after=after, idle=idle))
        except (StoreError, Corrupt):
            # The append does not need it, and the next one will try again.
            _log.warning("%s: sealing older listings or idle writers failed", self._url, exc_info=True)

    def _add(self, head: Head, seal: Callable[[Head], Head]) -> Head:
        sealed = seal(head)
        if sealed is not head:
            self._seals.append(seal)
        return sealed

    def apply(self, head: Head) -> Head:
        """The head with references to what was stored; left out is what no longer fits."""
        return reduce(lambda head, seal: seal(head), self._seals, head)

    def note_written(self) -> None:
        """Forget what was stored: a head that refers to it was written."""
        self._seals = []

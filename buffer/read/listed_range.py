"""A range of a manifest, fixed when it was looked at, and its batches fetched ahead in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay.buffer.base.errors import NotFound
from forebay.buffer.manifest.head import trimmed
from forebay.buffer.read.ahead import fetch_ahead
from forebay.buffer.read.descriptors import descriptors_between
from forebay.buffer.read.missing import check_still_listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.manifest import Queue
    from forebay.buffer.read.ahead import AheadLimits
    from forebay.buffer.read.fetch import Batch, FetchHandle


class ListedRange:
    """What a buffer's manifest listed from one place to another, when this was made."""

    def __init__(self, queue: Queue, first: str | int | datetime, last: str | int | datetime) -> None:
        """Look at the manifest.

        Raises:
            NotFound: there is no such buffer.
            Trimmed: `first` is gone.
        """
        self.queue = queue
        self.state: Final = queue.read_existing()
        """The manifest as it was read."""
        self.first: int = queue.sequence_of(first, state=self.state)
        """The first sequence of the range."""
        if self.first < self.state.first_sequence:
            raise trimmed(self.first, self.state.first_sequence)
        self.end: int = max(self.first, queue.end_of(last, state=self.state))
        """The sequence after the last one of the range."""

    def __len__(self) -> int:
        return self.end - self.first

    def descriptors(self) -> Iterator[BatchDescriptor]:
        """Yield what the manifest listed, read piece by piece."""
        return descriptors_between(self.queue, self.first, self.end, state=self.state)

    def fetch(
        self, descriptors: Iterable[BatchDescriptor], fetcher: FetchHandle, limits: AheadLimits, *, name: str
    ) -> Iterator[Batch]:
        """Yield the batches of these descriptors in order, fetched ahead by threads whose names begin with `name`.

        Raises:
            Trimmed: retention dropped a batch before it could be read.
            NotFound: an object is missing that should be there.
        """
        for descriptor, coming in fetch_ahead(fetcher, descriptors, limits, name=name):
            try:
                batch = coming.result()
            except NotFound as error:
                check_still_listed(descriptor, error, self.queue)
                raise
            yield batch
            del batch, coming  # before the next one is waited for

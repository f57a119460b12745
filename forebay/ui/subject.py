"""What the dashboard looks at: a buffer, or every partition of a topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.buffer.base.errors import ForebayError
from forebay.buffer.either.dispatch import buffer_or_topic
from forebay.buffer.inspect.describe import Observer
from forebay.buffer.manifest.schemas import Schemas
from forebay.buffer.topic.topic import Topic, in_parallel

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.format.model import BatchDescriptor
    from forebay.buffer.inspect.stats import BufferStats
    from forebay.buffer.store import ObjectStore


@dataclass(frozen=True, slots=True)
class Part:
    """One buffer: the only one, or a topic's partition."""

    url: str
    stats: BufferStats | None
    """As of the last look that succeeded; None if none has yet."""
    error: ForebayError | None = None
    """Why the last look failed; None if it succeeded."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A batch and where it is listed."""

    partition: int
    """0 in a buffer."""
    batch: BatchDescriptor


class Subject:
    """The buffer or topic at a URL, which need not be there yet, looked at again and again."""

    def __init__(self, store: ObjectStore, *, manifest_path: str = "manifest", clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._topic: Topic | None = None
        self._schemas = Schemas(store, clock=clock)
        self._observers = [Observer(store, manifest_path=manifest_path, clock=clock)]
        self._last: dict[str, BufferStats] = {}
        self.url: str = store.url

    @property
    def is_topic(self) -> bool:
        """Whether the last look found a topic."""
        return self._topic is not None

    def look(self) -> list[Part]:
        """Return the buffer, or a topic's partitions in order, some of which may have failed.

        Raises:
            ForebayError: what the store says, if there is nothing new to show of any.
        """
        if self.is_topic:
            return self._look_at_topic()
        return buffer_or_topic(lambda: [Part(self.url, self._observers[0].look())], self._look_at_topic)

    def newest(self, limit: int) -> list[Listed]:
        """Return the newest batches of the last look, newest first."""
        listed = [
            Listed(partition, batch)
            for partition, observer in enumerate(self._observers)
            for batch in observer.newest(limit)
        ]
        if self.is_topic:
            listed.sort(key=lambda found: found.batch.last_time_ms or 0)
        return listed[: -limit - 1 : -1]

    def schema(self) -> tuple[int, pa.Schema] | None:
        """Return the number and the columns of the newest version of the schema, as of the last look; None for bytes.

        Raises:
            Corrupt: the schema is damaged or missing.
            StoreError: it could not be read.
        """
        ids = self._observers[0].schemas if self._topic is None else self._topic.record.schemas
        return (len(ids) - 1, self._schemas.load(ids[-1])) if ids else None

    def _look_at_topic(self) -> list[Part]:
        if self._topic is None:
            self._topic = Topic(self._store, clock=self._clock)
            self._observers = []
        for number in range(len(self._observers), self._topic.refresh().partitions):
            self._observers.append(Observer(self._topic.partition(number), clock=self._clock))
        parts = in_parallel(self._look_at, self._observers)
        errors = [part.error for part in parts if part.error is not None]
        if errors and len(errors) == len(parts):
            raise errors[0]
        return parts

    def _look_at(self, observer: Observer) -> Part:
        try:
            stats = self._last[observer.url] = observer.look()
        except ForebayError as error:
            return Part(observer.url, self._last.get(observer.url), error)
        return Part(observer.url, stats)

"""Buffers with something in them, a runtime that does not wait, and one in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from kinds import BYTES, Kind, append_all, kind_in
from msgspec import structs
from patience import PATIENCE

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.format.batch import raw_size
from forebay.buffer.format.checksum import crc32c
from forebay.buffer.format.model import Facts, Metadata, NewBatch
from forebay.buffer.groups import Groups
from forebay.buffer.manifest import Manifest, Queue
from forebay.buffer.store import ObjectStore
from forebay.buffer.store.memory import MemoryStore
from forebay.runtime import Runtime, RuntimeConfig, RuntimeStatus, Sink, Source
from forebay.runtime.contract import CommitIdentity

TIME = 1_700_000_000_000


class NoPauses(Random):
    """Chance that always draws the shortest pause."""

    def uniform(self, a: float, b: float) -> float:
        return a


class NoBackoff(SystemClock):
    """The machine's clock, on which a retry follows at once."""

    def sleep(self, seconds: float) -> None:
        """Return at once."""


def fill(store: ObjectStore, count: int = 10, *, entries: int = 2, size: int = 0) -> list[bytes]:
    """Append batches of the buffer's kind; value j of batch i is `i:j`, padded to `size`. Returns all values."""
    queue, kind = Queue(store), kind_in(store)
    first = queue.read().next_sequence
    batches, said = [], []
    for number in range(first, first + count):
        held = [f"{number}:{index}".encode().ljust(size, b".") for index in range(entries)]
        batch = kind.upload(store, f"data/{number}", held, TIME + number, TIME + number)
        batches.append(structs.replace(batch, metadata=(Metadata(0, TIME + number, b""),)))
        said += held
    append_all(queue, batches)
    return said


def append_data(store: ObjectStore, number: int, data: bytes, held: list[bytes]) -> NewBatch:
    store.put(f"data/{number}", data)
    facts = Facts(len(data), raw_size(held), len(held), crc32c(data), TIME + number, TIME + number)
    return NewBatch(f"data/{number}", (Metadata(0, TIME + number, b""),), facts)


def new_buffer(
    name: str, count: int = 10, *, profile: str = "native", kind: Kind = BYTES, **settings: Any
) -> MemoryStore:
    store = MemoryStore(f"memory://runtime-{name}" if kind is BYTES else f"memory://runtime-{name}-{kind.name}")
    kind.begin(store)
    if profile == "opendata":
        store.create("manifest", Manifest.empty("new").to_bytes())
    if count:
        fill(store, count, **settings)
    return store


def run(store: Any, sink: Sink, *, group: str | None = "etl", config: Any = None, **settings: Any) -> RuntimeStatus:
    """Read what is there, with no pause between tries."""
    config = RuntimeConfig(**(config or {}))
    source = Source(store, group=group) if isinstance(store, ObjectStore) else store
    settings = {"random": NoPauses(1), **settings}
    return Runtime([source], sink, config, **settings).run(until_caught_up=True, show_progress=False)


def acked(store: ObjectStore, group: str | None = "etl") -> int | None:
    if group is not None:
        return Groups(store).describe(group).acked
    return Queue(store).read().acked


def identity(first: int, last: int | None = None) -> CommitIdentity:
    return CommitIdentity("5" * 32, "etl", "9" * 32, first, first if last is None else last)


@contextmanager
def running(runtime: Runtime, **settings: Any) -> Iterator[list[Any]]:
    """Run it in a thread, stop it at the end; gives what `run` returned or raised."""
    outcome: list[Any] = []

    def go() -> None:
        try:
            outcome.append(runtime.run(show_progress=False, **settings))
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            outcome.append(error)

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    try:
        yield outcome
    finally:
        runtime.stop(drain=5)
        thread.join(PATIENCE)
        assert not thread.is_alive(), "run() did not return"

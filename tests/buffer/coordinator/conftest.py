"""A delta of keys and values, a flusher that stops where a test says, and a rig that puts them together."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from patience import PATIENCE, wait_for

from forebay.buffer.coordinator import CoordinatorConfig, Durability, WriteCoordinator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay.buffer.coordinator import CoordinatorGroup


@dataclass
class Put:
    key: str
    value: int = 0
    size: int = 10
    refused: bool = False


class Reader:
    def __init__(self) -> None:
        self.data: dict[str, int] = {}

    def get(self, key: str) -> int | None:
        return self.data.get(key)


class KeyValues:
    """Numbers its puts on and on from one delta to the next."""

    def __init__(self, next_number: int = 0, before_apply: Callable[[Put], None] | None = None) -> None:
        self.next_number = next_number
        self.before_apply = before_apply
        self.puts: list[tuple[str, int, int]] = []
        self.shown = Reader()
        self.total = 0

    def apply(self, put: Put) -> int:
        if self.before_apply is not None:
            self.before_apply(put)
        if put.refused:
            raise ValueError(f"apply error: {put.key}")
        number = self.next_number
        self.next_number += 1
        self.puts.append((put.key, number, put.value))
        self.shown.data[put.key] = put.value
        self.total += put.size
        return number

    def size(self) -> int:
        return self.total

    def reader(self) -> Reader:
        return self.shown

    def freeze(self) -> tuple[list[tuple[str, int, int]], KeyValues]:
        return self.puts, KeyValues(self.next_number, self.before_apply)


class Gate:
    """A place in the flusher where a thread waits until the test lets it go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.error: BaseException | None = None

    def pass_through(self) -> None:
        self.entered.set()
        assert self.opened.wait(PATIENCE), "nobody opened the gate"
        if self.error is not None:
            raise self.error

    def await_entry(self) -> None:
        assert self.entered.wait(PATIENCE), "nobody came to the gate"

    def open(self, error: BaseException | None = None) -> None:
        self.error = error
        self.opened.set()


class Storage:
    """A flusher onto a dict; a gate for a delta is found by the key of its first put."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows: dict[str, tuple[int, int]] = {}
        self.flushed: list[tuple[range, list[tuple[str, int, int]]]] = []
        self.storage_flushes: list[list[range]] = []
        self.delta_gates: dict[str, Gate] = {}
        self.storage_gates: list[Gate] = []
        self.reject_at_storage: Callable[[range], Exception | None] = lambda epochs: None
        self.on_flush: Callable[[list[tuple[str, int, int]], range], None] = lambda frozen, epochs: None
        self.smaller_cost: int | None = None
        self.running = 0
        self.most_running = 0

    def flush_delta(
        self, frozen: list[tuple[str, int, int]], epochs: range, shrink: Callable[[int], None]
    ) -> dict[str, tuple[int, int]]:
        with self.lock:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            if self.smaller_cost is not None:
                shrink(self.smaller_cost)
            gate = self.delta_gates.get(frozen[0][0])
            if gate is not None:
                gate.pass_through()
            self.on_flush(frozen, epochs)
        finally:
            with self.lock:
                self.running -= 1
        with self.lock:
            self.rows.update({key: (number, value) for key, number, value in frozen})
            self.flushed.append((epochs, frozen))
            return dict(self.rows)

    def flush_storage(self, written: Any) -> dict[range, Exception]:
        with self.lock:
            self.storage_flushes.append([stamped.epochs for stamped in written])
            gate = self.storage_gates.pop(0) if self.storage_gates else None
        if gate is not None:
            gate.pass_through()
        errors = {stamped.epochs: self.reject_at_storage(stamped.epochs) for stamped in written}
        return {epochs: error for epochs, error in errors.items() if error is not None}

    def gate(self, key: str) -> Gate:
        """A gate before the write of the delta whose first put has this key."""
        return self.delta_gates.setdefault(key, Gate())

    def gate_storage(self) -> Gate:
        """A gate in the next storage flush."""
        self.storage_gates.append(Gate())
        return self.storage_gates[-1]

    @property
    def ranges(self) -> list[range]:
        return [epochs for epochs, _ in self.flushed]


@dataclass
class Rig:
    coordinator: WriteCoordinator[Put, int, Any, Reader, Any]
    storage: Storage
    clock: Any
    gates: list[Gate] = field(default_factory=list)

    def put(self, key: str, value: int = 0, *, channel: str = "default", cost: int = 0, **more: Any) -> Any:
        """Hand a put in, if there is room now."""
        return self.coordinator.channel(channel).try_write(Put(key, value, **more), cost=cost)

    def write(self, key: str, *, timeout: float | None = None, channel: str = "default", cost: int = 0) -> Any:
        """Hand a put in, waiting for room."""
        return self.coordinator.channel(channel).write(Put(key), timeout=timeout, cost=cost)

    def flush(self, *, durable: bool | None = None) -> Any:
        return self.coordinator.flush(durable=durable)

    def watermarks(self) -> tuple[int, int, int]:
        applied, written, durable = (self.coordinator.watermark(level) for level in Durability)
        return applied, written, durable

    def await_blocked_writer(self) -> None:
        wait_for(lambda: self.blocked_writers() > 0)

    def blocked_writers(self) -> int:
        state = self.coordinator._state
        return len(state.room._waiters) + len(state.group.room._waiters)


class Outcome:
    """What a call in another thread returned or raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.value: Any = None
        self.error: BaseException | None = None

        def run() -> None:
            try:
                self.value = call()
            except BaseException as error:  # noqa: BLE001
                self.error = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def join(self) -> Outcome:
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "the call never came back"
        return self


@pytest.fixture
def parts() -> SimpleNamespace:
    """The names above, for tests (which cannot import from each other)."""
    return SimpleNamespace(
        Put=Put,
        KeyValues=KeyValues,
        Storage=Storage,
        Gate=Gate,
        Outcome=Outcome,
        eventually=wait_for,
        PATIENCE=PATIENCE,
    )


@pytest.fixture
def rig() -> Iterator[Callable[..., Rig]]:
    """Makes coordinators, started unless told otherwise, that flush on command alone unless told otherwise."""
    made: list[Rig] = []
    before = set(threading.enumerate())

    def make(
        *,
        start: bool = True,
        channels: tuple[str, ...] = ("default",),
        clock: Any = None,
        before_apply: Callable[[Put], None] | None = None,
        storage_pace: Callable[[], float] = lambda: 0.0,
        group: CoordinatorGroup | None = None,
        **config: Any,
    ) -> Rig:
        settings = {"queue_capacity": 100, "flush_interval": None, "flush_size": None, **config}
        storage = Storage()
        coordinator = WriteCoordinator(
            KeyValues(before_apply=before_apply),
            storage,
            CoordinatorConfig(**settings),
            channels=channels,
            snapshot={},
            storage_pace=storage_pace,
            group=group,
            clock=clock,
            name="test",
        )
        made.append(Rig(coordinator, storage, clock))
        if start:
            coordinator.start()
        return made[-1]

    yield make
    for one in made:
        for gate in (*one.storage.delta_gates.values(), *one.storage.storage_gates):
            gate.open()
        Outcome(one.coordinator.stop).join()
    wait_for(lambda: not [t for t in threading.enumerate() if t not in before and t.name.startswith("forebay-")])

"""A catalog of Iceberg tables that injects faults, as `FaultyStore` does. Needs `pyiceberg`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ServiceUnavailableError,
    TooManyRequestsError,
)

from forebay.testing.faults import WRITE_FAULTS, Fault, FaultSchedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import CommitTableResponse, Table

    from forebay.buffer.base.clock import Clock

_T = TypeVar("_T")


class FaultyCatalog(FaultSchedule, NoopCatalog):
    """A wrapper that adds faults to any catalog of pyiceberg. It has only the calls that an `IcebergSink` makes.

    The calls are `load_table`, `create_table`, `create_namespace` and `commit_table`. They are numbered from 0, and the
    script chooses faults by these numbers. A commit whose answer is lost raises `CommitStateUnknownException`, as a
    REST catalog does. Override `next_fault` to choose faults by another rule, or to do something between two calls.

    Args:
        inner: the wrapped catalog.
        script: the faults, by the number of the call.
        only: names of the calls that count and may fail, such as `{"commit_table"}`; all of them by default.
        clock: what `DELAY` sleeps on.
    """

    def __init__(
        self,
        inner: Catalog,
        script: Mapping[int, Fault] | None = None,
        *,
        only: Iterable[str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        FaultSchedule.__init__(self, script, only=only, clock=clock)
        NoopCatalog.__init__(self, inner.name, **inner.properties)
        self.inner = inner

    @classmethod
    def seeded(
        cls,
        inner: Catalog,
        seed: int,
        *,
        rate: float = 0.3,
        faults: Iterable[Fault] = WRITE_FAULTS,
        only: Iterable[str] | None = None,
        clock: Clock | None = None,
    ) -> FaultyCatalog:
        """Return a catalog in which a random share `rate` of the calls fail: the same ones for the same seed."""
        catalog = cls(inner, only=only, clock=clock)
        catalog.fail_at_random(seed, rate, faults)
        return catalog

    def load_table(self, identifier: Any) -> Table:
        """Load a table from the wrapped catalog, unless a fault is injected."""
        return self._with_faults(self._call("load_table", lambda: self.inner.load_table(identifier)))

    def create_table(self, identifier: Any, schema: Any, *args: Any, **kwargs: Any) -> Table:
        """Create a table in the wrapped catalog; the answer may be lost."""
        return self._with_faults(
            self._write("create_table", lambda: self.inner.create_table(identifier, schema, *args, **kwargs))
        )

    def create_namespace(self, namespace: Any, properties: Any = None) -> None:
        """Create a namespace in the wrapped catalog; the answer may be lost."""
        self._write("create_namespace", lambda: self.inner.create_namespace(namespace, properties or {}))

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        """Commit to the wrapped catalog. The answer may be lost; a commit may land later if its requirements hold."""
        return self._write("commit_table", lambda: self.inner.commit_table(table, requirements, updates))

    def close(self) -> None:
        """Close the wrapped catalog."""
        self.inner.close()

    def _with_faults(self, table: Table) -> Table:
        table.catalog = self  # so that refresh() and pyiceberg's own commits meet faults too
        return table

    def _call(self, kind: str, do: Callable[[], _T]) -> _T:
        fault = self.next_fault(kind)
        match fault:
            case None | Fault.DELAY | Fault.STALL | Fault.CRASH | Fault.CRASH_AFTER | Fault.KILL | Fault.KILL_AFTER:
                return self._do(fault, do)
            case _:
                raise ServiceUnavailableError(f"injected into {kind}: {fault.value}")

    def _write(self, kind: str, do: Callable[[], _T]) -> _T:
        fault = self.next_fault(kind)
        match fault:
            case Fault.FAIL:
                raise ConnectionError(f"injected into {kind}: {fault.value}")
            case Fault.OVERLOADED:
                raise ServiceUnavailableError(f"injected into {kind}: {fault.value}")
            case Fault.THROTTLED:
                raise TooManyRequestsError(f"injected into {kind}: {fault.value}")
            case Fault.BUSY:
                raise CommitFailedException(f"injected into {kind}: {fault.value}")
            case Fault.LOSE_ANSWER:
                do()
                raise CommitStateUnknownException(f"injected into {kind}: {fault.value}")
            case Fault.OWN_RETRY:
                do()
                raise CommitFailedException(f"injected into {kind}: {fault.value}")
            case Fault.DROP:
                raise CommitStateUnknownException(f"injected into {kind}: {fault.value}")
            case Fault.LATE:
                self._send_late(lambda: self._land(do))
                raise CommitStateUnknownException(f"injected into {kind}: {fault.value}")
            case _:
                return self._do(fault, do)

    def _land(self, do: Callable[[], object]) -> None:
        with suppress(Exception):  # nobody receives the answer
            do()

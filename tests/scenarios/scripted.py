"""Product code as a process that stops at every request to the store, for explorers that copy processes.

Python cannot copy a running function. So it is run again from its start, with the answers that it got so far, up to
the first request that has no answer yet. Its clock stands still and its random numbers are always the same, so it
makes the same requests each time.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn

from forebay.buffer.base.errors import Unsupported
from forebay.buffer.manifest import Queue
from forebay.buffer.store.base import Data, ObjectStore, Outcome, StoredObject
from forebay.buffer.write.formats import open_format
from forebay.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

Request = tuple[Any, ...]
"""A method of the store, and what it was called with; or "opened" and the ids, or "refused"."""


class Asks(BaseException):
    """There is no answer yet to this request; a `BaseException`, so that nothing handles it."""

    def __init__(self, *request: Any) -> None:
        self.request = request


class ScriptedStore(ObjectStore):
    """A store that gives these answers, one after the other, and then raises `Asks`."""

    url = "memory://scripted"

    def __init__(self, answers: Iterable[Any]) -> None:
        self._answers = list(reversed(list(answers)))

    def _ask(self, *request: Any) -> Any:
        if not self._answers:
            raise Asks(*request)
        return self._answers.pop()

    def get(self, key: str) -> StoredObject:
        found: StoredObject = self._ask("get", key)
        return found

    def get_if_changed(self, key: str, version: str) -> StoredObject | None:
        found: StoredObject = self._ask("get", key)
        return None if found.version == version else found

    def put(self, key: str, data: Data) -> str:
        version: str = self._ask("put", key, bytes(data))
        return version

    def replace(self, key: str, data: Data, version: str) -> Outcome:
        outcome: Outcome = self._ask("replace", key, bytes(data), version)
        return outcome

    def create(self, key: str, data: Data) -> NoReturn:
        raise NotImplementedError

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[Any]:
        raise NotImplementedError

    def delete(self, keys: Iterable[str]) -> NoReturn:
        raise NotImplementedError


@cache
def open_rows(schema: pa.Schema, answers: tuple[Any, ...]) -> Request:
    """Open a buffer with a schema, which the buffer's may have to grow for; return what this asks for next."""
    queue = Queue(ScriptedStore(answers), clock=ManualClock(), random=Random(0))
    try:
        rows = open_format(queue, queue.read(), schema=schema, evolve=True)
    except Asks as asks:
        return asks.request
    except Unsupported:
        return ("refused",)
    assert rows is not None
    return ("opened", rows.ids)

"""Every error forebay raises, by what the caller can do next.

    ForebayError
    ├── InvalidInput     fix the call; nothing was queued, sent or changed
    ├── Backpressure     try again later; the refused write is in `.write`
    ├── Timeout          try again; what was not taken in time is in `.write`
    ├── Closed           open a new one: this one was closed
    ├── Fenced           stop: another process owns it now
    ├── NotReady         try again soon: it is still catching up
    ├── Trimmed          start again at `.first`: what came before is gone
    ├── StoreError       the object store
    │   ├── NotFound     the bucket, folder or object is not there
    │   ├── Denied       the credentials are missing, wrong or too weak
    │   ├── Unavailable  it could not be reached or would not serve; nothing was applied
    │   └── Unknown      a write may or may not have been applied: read before repeating it
    ├── Corrupt          the bytes are not what the format says
    └── Unsupported      this store, scheme, version or installation cannot do it

A caller's mistake is never a `StoreError`. Messages name the buffer or the object, say what was expected and what was
found, and never hold credentials. Every error pickles with its message and fields, so it survives the way home from a
worker process.
"""

from __future__ import annotations

from typing import Any


class ForebayError(Exception):
    """The root: catching it catches everything forebay raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[ForebayError], args: tuple[Any, ...], fields: dict[str, Any]) -> ForebayError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class InvalidInput(ForebayError, ValueError):
    """The call cannot be carried out as given; nothing was queued, sent or changed."""


class _CarriesWrite(ForebayError):
    """An error that hands the refused write back."""

    write: Any
    """What was not taken, for the caller to keep or to try again; None where there was nothing to hand back."""

    def __init__(self, message: str, *, write: Any = None) -> None:
        super().__init__(message)
        self.write = write


class Backpressure(_CarriesWrite):
    """There is no room now; the write was not taken and is in `write`."""


class Timeout(_CarriesWrite, TimeoutError):
    """It did not happen in the time given. A write that was not taken is in `write`."""


class Closed(ForebayError):
    """The producer, consumer or coordinator was closed."""


class Fenced(ForebayError):
    """Another process took over; this one changed nothing after that and must stop."""


class NotReady(ForebayError):
    """The answer is not known yet; try again soon."""


class Trimmed(ForebayError):
    """What was asked for was trimmed; reading can start again at `first`."""

    first: int
    """The lowest sequence that is still there."""

    def __init__(self, message: str, *, first: int) -> None:
        super().__init__(message)
        self.first = first


class StoreError(ForebayError):
    """Something between here and the object store."""


class NotFound(StoreError):
    """The bucket, folder or object does not exist."""

    bucket: bool
    """Whether it is the bucket that is missing: then nothing is known of any object."""

    def __init__(self, message: str, *, bucket: bool = False) -> None:
        super().__init__(message)
        self.bucket = bucket


class Denied(StoreError):
    """The store refused: credentials are missing, wrong or too weak. Nothing was applied."""


class Unavailable(StoreError):
    """The store could not be reached or would not serve. Nothing was applied; trying again later may work."""


class Unknown(StoreError):
    """A write may or may not have been applied; read before repeating it."""


class Corrupt(ForebayError):
    """The bytes are not what their format says."""


def damaged(said: str) -> Corrupt:
    """Return the error for a stored object that is damaged or missing, with what to do about it."""
    return Corrupt(f"{said}; restore it (docs/operations.md)")


class Unsupported(ForebayError):
    """This store, scheme, version or installation cannot do what was asked."""

"""The one interface to object storage: every layer above knows this and nothing of S3, fsspec or paths.

A write ends in one of three ways, and its type says which (rfcs/0001):

- `Applied`: it took effect, and this is the version it made;
- `NotApplied`: it did not and never will: its condition failed, or the store turned it away;
- `InDoubt`: nobody can say. The request may have taken effect, may yet do so, or never will.

A conditional write *returns* one of these. It *raises* only where the write was not applied and asking again at once
would not help (`Denied`, `NotFound` for a missing bucket, `Unavailable`).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from forebay.buffer.base.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from forebay.buffer.base.errors import StoreError

Data: TypeAlias = bytes | bytearray | memoryview
"""Bytes in any form that need not be copied."""

MAX_KEY_BYTES = 1024
_CLIMBING = re.compile(r"(?:^|/)\.{0,2}(?:/|$)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\\]")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object's bytes and the version they belong to, read in one request."""

    data: bytes | memoryview
    """The whole object; a view where the client library would have made us copy it."""
    version: str
    """What `replace` and `get_if_changed` compare with. Opaque."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One row of a listing."""

    key: str
    """Relative to the store's URL."""
    size: int
    """In bytes."""
    modified_ms: int
    """When the store says that it was last written, in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The write took effect."""

    version: str
    """The version that it made."""


@dataclass(frozen=True, slots=True)
class NotApplied:
    """The write did not take effect and never will."""

    reason: str
    """What the store said, for logs and errors."""
    condition_failed: bool = True
    """False where the store did not judge its condition (409, 429): the same write may be tried again."""
    throttled: bool = False
    """Whether the store turned it away because this object, or the bucket, is written too often (429)."""
    retry_after: float = 0.0
    """Seconds that the store asks to wait before the next try; 0 if it does not say."""


@dataclass(frozen=True, slots=True)
class InDoubt:
    """The write may have taken effect, may yet do so, or never will: read, and look for it."""

    reason: str
    """What went wrong, for logs and errors."""
    throttled: bool = False
    """Whether the store says that it is asked too often (503 SlowDown)."""
    retry_after: float = 0.0
    """Seconds that the store asks to wait before the next try; 0 if it does not say."""


Outcome: TypeAlias = Applied | NotApplied | InDoubt


class ObjectStore(ABC):
    """Objects below one URL. Handles pickle, survive a fork and may be used from many threads."""

    url: str
    """What the store was opened with, free of credentials."""

    @abstractmethod
    def get(self, key: str) -> StoredObject:
        """Return the object and its version.

        Raises:
            NotFound: there is no such object, or no such bucket.
        """

    @abstractmethod
    def get_if_changed(self, key: str, version: str) -> StoredObject | None:
        """Return the object, or None while its version is still `version`. Raises `NotFound` as `get` does."""

    @abstractmethod
    def put(self, key: str, data: Data) -> str:
        """Write the object whatever was there, and return its version.

        Meant for names that nobody else writes: there a repeat is harmless.

        Raises:
            Unknown: it may or may not have been written.
        """

    @abstractmethod
    def create(self, key: str, data: Data) -> Outcome:
        """Write the object only if there is none."""

    @abstractmethod
    def replace(self, key: str, data: Data, version: str) -> Outcome:
        """Write the object only if its version is still `version`. On a missing object the condition fails."""

    @abstractmethod
    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose keys start with `prefix` and sort after `start_after`, in the keys' UTF-8 order.

        Pages are fetched as they are needed, never from a cache.
        """

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> Mapping[str, StoreError]:
        """Delete objects, and return the failures by key. A key that does not exist is no failure."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


def check_key(key: str) -> str:
    """Return the key if every store can hold it, or raise `InvalidInput`."""
    problem = _key_problem(key)
    if problem:
        raise InvalidInput(f"object key {key!r} {problem}; choose another key")
    return key


def check_prefix(prefix: str) -> str:
    """Return the prefix if keys can start with it, or raise `InvalidInput`."""
    # A prefix may end anywhere in a key, so it is judged as if one more character followed.
    problem = _key_problem(prefix + "x")
    if problem:
        raise InvalidInput(f"key prefix {prefix!r} {problem}; choose another prefix")
    return prefix


def _key_problem(key: str) -> str | None:
    if not key:
        return "is empty"
    if _CLIMBING.search(key):  # guard: refuse keys that escape the buffer
        return "must be relative to the store's URL, without empty, '.' or '..' segments"
    if _CONTROL.search(key):
        return "holds a control character, or a backslash, which some stores take for a slash"
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if size > MAX_KEY_BYTES:
        return f"is {size} bytes long; the most is {MAX_KEY_BYTES}"
    return None

"""A folder of a store, as a store: one client serves all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.buffer.store.base import Data, ObjectInfo, ObjectStore, Outcome, StoredObject, check_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from forebay.buffer.base.errors import StoreError


class FolderStore(ObjectStore):
    """The objects below one folder of another store, whose client it shares."""

    def __init__(self, inner: ObjectStore, folder: str) -> None:
        self.url: str = f"{inner.url}/{check_key(folder)}"
        self._inner = inner
        self._root = f"{folder}/"

    def get(self, key: str) -> StoredObject:
        """Return the object and its version."""
        return self._inner.get(self._root + key)

    def get_if_changed(self, key: str, version: str) -> StoredObject | None:
        """Return the object, or None while its version is still `version`."""
        return self._inner.get_if_changed(self._root + key, version)

    def put(self, key: str, data: Data) -> str:
        """Write the object whatever was there."""
        return self._inner.put(self._root + key, data)

    def create(self, key: str, data: Data) -> Outcome:
        """Write the object only if there is none."""
        return self._inner.create(self._root + key, data)

    def replace(self, key: str, data: Data, version: str) -> Outcome:
        """Write the object only if its version is still `version`."""
        return self._inner.replace(self._root + key, data, version)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield the folder's objects, by their keys in it."""
        after = self._root + start_after if start_after else ""
        for found in self._inner.list(self._root + prefix, start_after=after):
            yield ObjectInfo(found.key.removeprefix(self._root), found.size, found.modified_ms)

    def delete(self, keys: Iterable[str]) -> Mapping[str, StoreError]:
        """Delete objects of the folder, and return the failures by key."""
        failures = self._inner.delete(self._root + key for key in keys)
        return {key.removeprefix(self._root): error for key, error in failures.items()}

"""From a URL to a store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeAlias

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.store.base import ObjectStore
from forebay.buffer.store.choice import make_client
from forebay.buffer.store.file import FileStore
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.store.options import NativeOptions, S3Options, parse_s3_options, unseal
from forebay.buffer.store.remote import RemoteStore
from forebay.buffer.store.urls import parse_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.buffer.store.urls import Location

StoreUrl: TypeAlias = str | os.PathLike[str] | ObjectStore
"""Where objects are: a URL, a local folder as a path or a `pathlib.Path`, or a store that is open already."""


def open_store(url: StoreUrl, storage_options: Mapping[str, Any] | None = None) -> ObjectStore:
    """Return the store at a URL. Nothing is sent yet: the first call finds out whether it can be reached.

    Args:
        url: such as `s3://bucket/folder`, or a path, which is the same as its `file://` URL. Spellings that fsspec
            knows work too (`s3a://`, `gcs://`, `abfss://`; `urls.py` lists them). The store's `url` is the one
            spelling that forebay shows and compares. A store that is open already is returned as it is.
        storage_options: credentials, endpoint and client of the store.

    Raises:
        InvalidInput: the URL or an option is wrong.
        Unsupported: no such scheme, or the library for it is not installed or cannot be loaded.
    """
    if isinstance(url, ObjectStore):
        return url
    given = dict(storage_options or {})
    location = parse_url(url)
    if not location.takes_options:
        if given:
            names = ", ".join(sorted(map(str, given)))
            raise InvalidInput(
                f"{location.url}: {location.scheme}:// takes no storage options, got {names}; leave them out"
            )
        return MemoryStore(location.url) if location.scheme == "memory" else FileStore(location.url)
    options = parse_options(location, given)
    return RemoteStore(location.url, location.folder, make_client(location, options), options, reopen_store)


def parse_options(location: Location, given: Mapping[str, Any]) -> S3Options | NativeOptions:
    """Return the options of a remote store, with those that its URL implies."""
    for name, value in location.options.items():
        if given.get(name, value) != value:
            raise InvalidInput(
                f"{location.url}: the URL and the storage option {name} name a different {name}; give one of them"
            )
    given = {**given, **location.options}
    return parse_s3_options(given) if location.scheme == "s3" else NativeOptions.split(given)


def reopen_store(url: str, sealed_options: bytes) -> ObjectStore:
    """Return the store that a pickled handle stood for."""
    return open_store(url, unseal(sealed_options))

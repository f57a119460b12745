"""From a URL to a store."""

from __future__ import annotations

import importlib.util
import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from forebay.buffer.base.errors import InvalidInput, Unsupported
from forebay.buffer.store.base import ObjectStore, check_key
from forebay.buffer.store.file import FileStore
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.store.options import NativeOptions, S3Options, parse_s3_options, unseal
from forebay.buffer.store.remote import RemoteStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from forebay.buffer.store.remote import ObjectClient

_SCHEMES = "memory://name, file:///folder, s3://bucket/folder, gs://bucket/folder, az://container/folder"


StoreUrl: TypeAlias = str | os.PathLike[str] | ObjectStore
"""Where objects are: a URL, a local folder as a `pathlib.Path`, or a store that is open already."""


def open_store(url: StoreUrl, storage_options: Mapping[str, Any] | None = None) -> ObjectStore:
    """Return the store at a URL. Nothing is sent yet: the first call finds out whether it can be reached.

    Args:
        url: such as `s3://bucket/folder`. A `pathlib.Path` is a local folder, the same as its `file://` URL. A store
            that is open already is returned as it is.
        storage_options: credentials, endpoint and client of the store.

    Raises:
        InvalidInput: the URL or an option is wrong.
        Unsupported: no such scheme, or the library for it is not installed.
    """
    if isinstance(url, ObjectStore):
        return url
    given = dict(storage_options or {})
    url = _as_url(url)
    scheme, bucket, folder = _split_url(url)
    if scheme in {"memory", "file"}:
        if given:
            raise InvalidInput(f"{url}: {scheme}:// takes no storage options, got {', '.join(sorted(map(str, given)))}")
        return MemoryStore(url) if scheme == "memory" else FileStore(url)
    url = f"{scheme}://{bucket}" + (f"/{folder}" if folder else "")
    options: S3Options | NativeOptions = parse_s3_options(given) if scheme == "s3" else NativeOptions.split(given)
    return RemoteStore(url, folder, _make_client(scheme, url, bucket, options), options, reopen_store)


def reopen_store(url: str, sealed_options: bytes) -> ObjectStore:
    """Return the store that a pickled handle stood for."""
    return open_store(url, unseal(sealed_options))


def _make_client(scheme: str, url: str, bucket: str, options: S3Options | NativeOptions) -> ObjectClient:
    # The libraries are extras, and slow to import: loaded when a URL needs them.
    if isinstance(options, S3Options) and options.client == "s3fs":
        with _explained("s3fs", "s3"):
            from forebay.buffer.store.s3 import S3fsClient  # noqa: PLC0415

        return S3fsClient(bucket, options)
    with _explained("obstore", "fast"):
        from forebay.buffer.store.native import ObstoreClient  # noqa: PLC0415

    client = ObstoreClient(scheme, bucket, options)
    client.check_config(url)
    return client


@contextmanager
def _explained(module: str, extra: str) -> Iterator[None]:
    """Raise `Unsupported` for a library that is not installed, or is and cannot be loaded."""
    if importlib.util.find_spec(module) is None:
        raise Unsupported(f'this store needs {module}, which is not installed: pip install "forebay[{extra}]"')
    try:
        yield
    except (ImportError, AttributeError, TypeError) as error:
        raise Unsupported(
            f"{module} or a library below it cannot be loaded ({type(error).__name__}: {error}); their versions may "
            f'be incompatible: pip install --upgrade "forebay[{extra}]"'
        ) from error


def _as_url(url: object) -> str:
    """Return a URL as it is, and a path as its `file://` URL."""
    if isinstance(url, str):
        return url
    path = os.fspath(url) if isinstance(url, os.PathLike) else None
    if not isinstance(path, str):
        raise InvalidInput(f"a store is given as a URL or as a pathlib.Path, not as {type(url).__name__}")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{path!r} is not valid UTF-8: no file:// URL can name this folder") from None
    return Path(path).absolute().as_uri()


def _split_url(url: str) -> tuple[str, str, str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidInput(
            f"this is not a store's URL: no bucket has a '[' or ']'; expected one of {_SCHEMES}"
        ) from None
    if "@" in parts.netloc or ":" in parts.netloc:
        # The URL is not repeated here: it may hold a password, of which a slash ends what is taken for the host.
        raise InvalidInput(
            "the store's URL holds credentials, or a port; pass them as storage_options (key, secret, endpoint_url), "
            "not in the URL"
        )
    scheme = parts.scheme
    shown = _hide_secrets(url)
    if not scheme or "://" not in url:
        raise InvalidInput(f"{shown!r} is not a store's URL; expected one of {_SCHEMES}")
    if scheme in {"s3a", "s3n"}:
        raise Unsupported(f"{shown}: write s3:// instead of {scheme}://")
    if scheme not in {"memory", "file", "s3", "gs", "az"}:
        raise Unsupported(f"{shown}: there is no store for {scheme}://; expected one of {_SCHEMES}")
    if "?" in url or "#" in url:
        raise InvalidInput(f"{shown}: a store's URL has no '?' or '#'; options go into storage_options")
    if scheme != "file" and not parts.netloc:
        raise InvalidInput(f"{url}: the name of the bucket is missing; expected {scheme}://bucket/folder")
    folder = parts.path.strip("/") if scheme != "file" else ""
    if folder:
        check_key(folder)
    return scheme, parts.netloc, folder


def _hide_secrets(url: str) -> str:
    """The URL, right or wrong, without what people put into URLs and nobody should read: `user:password@`, `?key=…`."""
    return re.sub(r".*@", "***@", re.split(r"[?#]", url, maxsplit=1)[0])

"""The places that a URL or a path can name, each in one spelling.

| written | means |
| --- | --- |
| `s3://bucket/folder`, `s3a://…`, `s3n://…` | `s3://bucket/folder` |
| `gs://bucket/folder`, `gcs://…` | `gs://bucket/folder` |
| `az://container/folder`, `abfs://…`, `abfss://…` | `az://container/folder` |
| `abfss://container@account.dfs.core.windows.net/folder` | the same, with the storage option `account_name` |
| `file:///folder`, `/folder`, `folder`, `~/folder`, a `pathlib.Path` | `file:///absolute/folder` |
| `memory://name` | itself |
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from forebay.buffer.base.errors import InvalidInput, Unsupported
from forebay.buffer.store.base import check_key

if TYPE_CHECKING:
    from collections.abc import Mapping

_EXPECTED = (
    "memory://name, file:///folder, s3://bucket/folder, gs://bucket/folder, az://container/folder, or a local path"
)
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}
_WHY_NOT = {
    **dict.fromkeys(
        ("dbfs", "ftp", "hdfs", "sftp", "viewfs", "webhdfs"),
        ", since it cannot replace a file only if nobody has changed it, which forebay relies on",
    ),
    **dict.fromkeys(
        ("http", "https"),
        ": for an S3 server, write s3://bucket/folder and pass this address as the storage option endpoint_url",
    ),
}
_LOCAL = frozenset({"memory", "file"})
_REMOTE = frozenset({"s3", "gs", "az"})
_AZURE_ACCOUNT = re.compile(r"([a-z0-9$-]+)@([a-z0-9]+)\.(?:dfs|blob)\.core\.windows\.net")
_WINDOWS_DRIVE = re.compile(r"(?:file:/*)?[A-Za-z]:(?:[\\/](?!/)|$)")


@dataclass(frozen=True, slots=True)
class Location:
    """Where a store is."""

    scheme: str
    """One of memory, file, s3, gs and az."""
    bucket: str
    """The bucket or container; empty for files."""
    folder: str
    """The path in the bucket, without slashes at either end; empty for files."""
    url: str
    """The one spelling that forebay shows and compares."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Storage options that the URL implies."""

    @property
    def takes_options(self) -> bool:
        """Whether there is anything to set: files and memory are just there."""
        return self.scheme not in _LOCAL


def parse_url(url: object) -> Location:
    """Return the place that a URL, a path or a `pathlib.Path` names. Relative paths start at the current folder.

    Raises:
        InvalidInput: it names none.
        Unsupported: there is no store for its scheme.
    """
    if isinstance(url, str) and _WINDOWS_DRIVE.match(url):
        raise InvalidInput(
            f"{url} is on a Windows drive, which this system does not have: write file:///absolute/path, or the path"
        )
    if isinstance(url, str) and "://" in url:
        return _parse(url)
    return _parse_path(url)


def _parse_path(path: object) -> Location:
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise InvalidInput(f"url must be a URL or a path, not {type(path).__name__}")
    # guard: a text with a colon is no folder
    if isinstance(path, str) and (not path or ":" in path.partition("/")[0]):
        raise InvalidInput(
            f"{_hide_secrets(path)!r} is not a store's URL; expected one of {_EXPECTED}. "
            "A path with a ':' in it starts with ./ or /"
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            f"the path {text!r} is not valid UTF-8, so no file:// URL can name it; choose another folder"
        ) from None
    return _local(Path(text).expanduser() if text.startswith("~/") else Path(text))


def _local(path: Path) -> Location:
    return Location("file", "", "", path.absolute().as_uri())


def _parse(url: str) -> Location:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidInput(
            f"this is not a store's URL: no bucket has a '[' or ']'; expected one of {_EXPECTED}"
        ) from None
    scheme = _ALIASES.get(parts.scheme, parts.scheme)
    bucket, options = _split_account(scheme, parts.netloc)
    if "@" in bucket or ":" in bucket:
        # The URL is not repeated here: it may hold a password, of which a slash ends what is taken for the host.
        raise InvalidInput(
            "the store's URL holds credentials, or a port; pass them as storage_options (key, secret, endpoint_url), "
            "not in the URL. Only az:// names an account: abfss://container@account.dfs.core.windows.net/folder"
        )
    if scheme not in _LOCAL | _REMOTE:
        raise Unsupported(
            f"{_hide_secrets(url)}: there is no store for {scheme}://{_WHY_NOT.get(scheme, '')}; "
            f"expected one of {_EXPECTED}"
        )
    if "?" in url or "#" in url:
        raise InvalidInput(f"the URL {_hide_secrets(url)} must not have a '?' or '#'; pass options as storage_options")
    if scheme == "file":
        return _parse_file(url, parts)
    if not bucket:
        raise InvalidInput(
            f"{_hide_secrets(url)}: the name of the bucket is missing; expected {scheme}://bucket/folder"
        )
    folder = parts.path.strip("/")
    if folder:
        check_key(folder)
    return Location(scheme, bucket, folder, f"{scheme}://{bucket}" + (f"/{folder}" if folder else ""), options)


def _split_account(scheme: str, host: str) -> tuple[str, dict[str, str]]:
    """Return the bucket and, from `container@account.dfs.core.windows.net`, the option that names the account."""
    found = _AZURE_ACCOUNT.fullmatch(host) if scheme == "az" else None
    return (host, {}) if found is None else (found[1], {"account_name": found[2]})


def _parse_file(url: str, parts: SplitResult) -> Location:
    path = unquote(parts.path)
    if parts.netloc not in {"", "localhost"} or not path.startswith("/"):
        raise InvalidInput(f"{url!r} is not a local folder: write file:///absolute/path (three slashes), or the path")
    return _local(Path(path))


def _hide_secrets(url: str) -> str:
    """The URL, right or wrong, without what people put into URLs and nobody should read: `user:password@`, `?key=…`."""
    return re.sub(r".*@", "***@", re.split(r"[?#]", url, maxsplit=1)[0])

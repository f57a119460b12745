"""Where Hadoop finds a buffer's objects, if the session's Hadoop can open the store (rfcs/0008).

Hadoop keeps one FileSystem for each scheme, bucket and user. A second read with other credentials would get the first
one's. So a read with settings of its own has a scheme of its own, `s3a-` and a digest of the settings, which only that
read's options know. Turning the cache off would make a FileSystem, with threads that nobody ends, for every file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from forebay.buffer.base.clock import system_random
from forebay.buffer.base.errors import Unsupported
from forebay.buffer.store.options import parse_s3_options
from forebay.buffer.store.urls import parse_url

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from pyspark.sql import SparkSession

    from forebay.buffer.store.options import S3Options
    from forebay.buffer.store.urls import Location

_S3A: Final = "org.apache.hadoop.fs.s3a."
_OURS: Final = frozenset({"client", "connect_timeout", "read_timeout", "max_attempts"})
"""Options of forebay's own client, which change nothing about which objects are read."""
_NO_COUNTERPART: Final = ("profile", "client_kwargs", "config_kwargs", "s3_additional_kwargs")
_GLOB: Final = re.compile(r"[*?\[\]{}\\]")


@dataclass(frozen=True, slots=True)
class HadoopFolder:
    """A buffer's or topic's folder, as Hadoop opens it."""

    url: str
    """What comes before the keys of objects, without a slash at its end."""
    options: Mapping[str, str]
    """Settings for one read. They hold credentials: they go to the reader's options, which no plan shows."""


def find_folder(spark: SparkSession, url: str, storage_options: Mapping[str, Any]) -> HadoopFolder:
    """Return where the session's Hadoop finds what is at a URL.

    Raises:
        Unsupported: it cannot open it; the message says why.
    """
    place = parse_url(url)
    if _GLOB.search(unquote(place.url)):  # guard: Spark must not take a folder's name for a pattern
        raise Unsupported(
            "the URL has a character that Hadoop takes for a pattern (* ? [ ] { } or a backslash): "
            "rename the folder to use Spark's own reader"
        )
    if place.scheme == "file":
        folder = HadoopFolder(unquote(place.url), {})
    elif place.scheme == "s3":
        folder = _s3a_folder(place, parse_s3_options(storage_options))
    else:
        folder = _session_folder(place, storage_options)
    _check_file_system(spark, {"s3": "s3a", "az": "abfss"}.get(place.scheme, place.scheme))
    return folder


def _s3a_folder(place: Location, options: S3Options) -> HadoopFolder:
    given = options.given()
    unknown = [name for name in _NO_COUNTERPART if name in given]
    if unknown:
        raise Unsupported(
            f"Hadoop has no counterpart of the storage option {unknown[0]}: leave it out to use Spark's own reader"
        )
    settings = _s3a_settings(options)
    if not settings:
        return HadoopFolder(f"s3a://{place.bucket}/{place.folder}".rstrip("/"), {})
    # Settings of one bucket win over the general ones, and the session may have either.
    named = {f"fs.s3a.bucket.{place.bucket}.{name}": value for name, value in settings.items()}
    scheme = f"s3a-{_digest(named)}"  # guard: other credentials get another FileSystem
    named[f"fs.{scheme}.impl"] = f"{_S3A}S3AFileSystem"
    return HadoopFolder(f"{scheme}://{place.bucket}/{place.folder}".rstrip("/"), named)


def _s3a_settings(options: S3Options) -> dict[str, str]:
    """The storage options in the words of Hadoop's S3A, behind `fs.s3a.`."""
    settings: dict[str, str | None] = {
        "access.key": options.key,
        "secret.key": options.secret,
        "session.token": options.token,
        "endpoint": options.endpoint_url,
        "path.style.access": None if options.endpoint_url is None else "true",
        "endpoint.region": options.region,
        "connection.ssl.enabled": None if options.use_ssl else "false",
        "requester.pays.enabled": "true" if options.requester_pays else None,
        "aws.credentials.provider": _provider(options),
    }
    return {name: value for name, value in settings.items() if value is not None}


def _provider(options: S3Options) -> str | None:
    if options.anon:
        return f"{_S3A}AnonymousAWSCredentialsProvider"
    if options.key is None:
        return None
    return f"{_S3A}{'SimpleAWSCredentialsProvider' if options.token is None else 'TemporaryAWSCredentialsProvider'}"


def _session_folder(place: Location, storage_options: Mapping[str, Any]) -> HadoopFolder:
    """Google and Azure, which the session's own settings reach: none of ours has a counterpart there."""
    given = {**storage_options, **place.options}
    account = given.pop("account_name", None) if place.scheme == "az" else None
    others = sorted(given.keys() - _OURS)
    if others:
        raise Unsupported(
            f"Hadoop has no counterpart of the storage option {others[0]}: leave it out to use Spark's own reader"
        )
    if place.scheme == "gs":
        return HadoopFolder(place.url, {})
    if account is None:
        raise Unsupported(
            "the URL does not name the account, which Hadoop needs: write "
            "abfss://container@account.dfs.core.windows.net/folder"
        )
    return HadoopFolder(f"abfss://{place.bucket}@{account}.dfs.core.windows.net/{place.folder}".rstrip("/"), {})


def _check_file_system(spark: SparkSession, scheme: str) -> None:
    context = getattr(spark, "sparkContext", None)  # a session of Spark Connect has none
    if context is None:
        raise Unsupported(
            "the session is one of Spark Connect, whose Hadoop settings cannot be read: use a "
            "classic session for Spark's own reader"
        )
    jvm: Any = context._jvm  # noqa: SLF001 - there is no other way to ask
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, context._jsc.hadoopConfiguration())  # noqa: SLF001
    except Exception as error:
        raise Unsupported(
            f"the session has no FileSystem for {scheme}://: add one to spark.jars.packages, such as "
            "hadoop-aws for s3a://"
        ) from error


def _digest(settings: Mapping[str, str]) -> str:
    """A name for settings that tells nothing of them: nobody else has the key."""
    text = repr(sorted(settings.items())).encode()
    return blake2b(text, digest_size=8, key=_digest_key()).hexdigest()


@cache
def _digest_key() -> bytes:
    return system_random().randbytes(16)

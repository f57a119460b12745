"""Which client library talks to a store.

Google and Azure are reached by obstore. For S3 there are two libraries, and the storage option `client` names one.
Without it, obstore is taken, which needs less CPU, unless s3fs can do something here that obstore cannot:

- use an option that was given, such as `profile` or `config_kwargs`;
- read AWS's configuration files, which may hold the credentials, or ask the bucket for its region;
- work in a process that was forked after obstore was used in it: there obstore would hang.

A library that is installed and cannot be loaded is passed over with a warning if the other one can do it.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.buffer.base.errors import InvalidInput, Unsupported
from forebay.buffer.base.install import install_hint, upgrade_hint
from forebay.buffer.store.options import S3Options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from forebay.buffer.store.base import Data, ObjectInfo, StoredObject
    from forebay.buffer.store.failures import Failure
    from forebay.buffer.store.native import ObstoreClient
    from forebay.buffer.store.options import NativeOptions
    from forebay.buffer.store.remote import ObjectClient
    from forebay.buffer.store.s3 import S3fsClient
    from forebay.buffer.store.urls import Location

_log = logging.getLogger("forebay.store")

_EXTRAS = {"s3fs": "s3", "obstore": "fast"}
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
_KEY_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_PROFILE_VARIABLES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
_BOTOCORE_VARIABLES = ("AWS_CA_BUNDLE", "AWS_USE_DUALSTACK_ENDPOINT", "AWS_USE_FIPS_ENDPOINT")
_AWS_FILES = (("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), ("AWS_CONFIG_FILE", "~/.aws/config"))

_warned: set[str] = set()


def make_client(location: Location, options: S3Options | NativeOptions) -> ObjectClient:
    """Return the client for a place. Nothing is sent.

    Raises:
        InvalidInput: the library does not accept an option.
        Unsupported: no library for this store is installed, or none can be loaded; the message says what to type.
    """
    if not isinstance(options, S3Options) or options.client == "obstore":
        return _make_obstore(location, options)
    if options.client == "s3fs":
        return _make_s3fs(location, options)
    s3_options = options
    return ChosenClient(lambda: _choose(location, s3_options))


def load_s3fs() -> type[S3fsClient]:
    """Return the client class that works through s3fs, or raise `Unsupported` that says what to type."""
    _check_installed("s3fs")
    try:
        from forebay.buffer.store.s3 import S3fsClient  # noqa: PLC0415 - an extra, and slow to load
    except Exception as error:
        raise _broken("s3fs", error) from error
    return S3fsClient


def load_obstore() -> type[ObstoreClient]:
    """Return the client class that works through obstore, or raise `Unsupported` that says what to type."""
    _check_installed("obstore")
    try:
        from forebay.buffer.store.native import ObstoreClient  # noqa: PLC0415 - an extra, and slow to load
    except Exception as error:
        raise _broken("obstore", error) from error
    return ObstoreClient


def _is_installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def _check_installed(library: str) -> None:
    if not _is_installed(library):
        raise Unsupported(
            f"this store needs {library}, which {sys.executable} does not have: {install_hint(_EXTRAS[library])}"
        )


def _broken(library: str, error: Exception) -> Unsupported:
    return Unsupported(
        f"{library} is installed and cannot be loaded ({type(error).__name__}: {error}); {upgrade_hint(library)}"
    )


def _make_s3fs(location: Location, options: S3Options) -> ObjectClient:
    client = load_s3fs()(location.bucket, options)
    client.check_config(location.url)
    return client


def _make_obstore(location: Location, options: S3Options | NativeOptions) -> ObjectClient:
    client = load_obstore()(location.scheme, location.bucket, options)
    client.check_config(location.url)
    return client


def _choose(location: Location, options: S3Options) -> ObjectClient:
    obstacle = _find_obstacle(options)
    if obstacle is None:
        try:
            if load_obstore().is_usable_here():
                return _make_obstore(location, options)
            obstacle = "it was used before this process was forked, and would hang"
        except (Unsupported, InvalidInput) as error:
            obstacle = str(error)
            _warn(f"obstore is passed over for S3: {error}")
    if not _is_installed("s3fs"):
        needed = "s3fs" if _is_installed("obstore") else "s3fs or obstore"
        hint = install_hint("s3") if needed == "s3fs" else f"{install_hint('fast')}, or with [s3] for s3fs"
        why = f" (obstore cannot be used: {obstacle})" if needed == "s3fs" else ""
        raise Unsupported(f"{location.url} needs {needed}, which {sys.executable} does not have{why}: {hint}")
    try:
        return _make_s3fs(location, options)
    except Unsupported as error:
        raise Unsupported(f"{error} (obstore was not used: {obstacle})") from error.__cause__


def _find_obstacle(options: S3Options) -> str | None:
    """Why obstore would not do what s3fs does; None if it would."""
    if not _is_installed("obstore"):
        return "it is not installed"
    if options.only_s3fs:
        return f"it does not know the storage option {options.only_s3fs[0]}"
    return _find_obstacle_in_environment(options)


def _find_obstacle_in_environment(options: S3Options) -> str | None:
    variables = os.environ
    plain = options.endpoint_url is not None and options.endpoint_url.startswith("http:")
    for name in _BOTOCORE_VARIABLES:
        if variables.get(name) and not plain:
            return f"it does not read {name}"
    if not options.region and not options.endpoint_url and not any(map(variables.get, _REGION_VARIABLES)):
        return "no region is given, and it does not ask the bucket for its own"
    # guard: credentials that only AWS's files hold are left to s3fs
    if not options.key and not options.anon and not all(map(variables.get, _KEY_VARIABLES)):
        files = (Path(variables.get(name) or usual).expanduser() for name, usual in _AWS_FILES)
        if any(map(variables.get, _PROFILE_VARIABLES)) or any(map(Path.exists, files)):
            return "it does not read AWS's configuration files, which may hold the credentials"
    return None


def _warn(text: str) -> None:
    """Log a warning, once in a process."""
    if text not in _warned:
        _warned.add(text)
        _log.warning("%s", text)


class ChosenClient:
    """The client that fits this process. A forked child chooses again, because obstore does not survive a fork."""

    def __init__(self, choose: Callable[[], ObjectClient]) -> None:
        self._choose = choose
        self._chosen = os.getpid(), choose()

    @property
    def client(self) -> ObjectClient:
        """What was chosen in this process."""
        process, client = self._chosen
        if process != os.getpid():  # guard: a forked child chooses its client anew
            client = self._choose()
            self._chosen = os.getpid(), client
        return client

    def get(self, key: str, unless_version: str | None = None) -> StoredObject:
        """Return data and version. If the version is still `unless_version`, the failure has status 304."""
        return self.client.get(key, unless_version)

    def put(self, key: str, data: Data, *, if_version: str | None = None, if_absent: bool = False) -> str | None:
        """Write once, never repeating the request, and return the version; None if the store named none."""
        return self.client.put(key, data, if_version=if_version, if_absent=if_absent)

    def list_pages(self, prefix: str, start_after: str) -> Iterator[Sequence[ObjectInfo]]:
        """Yield pages of full keys in order, one request each."""
        return self.client.list_pages(prefix, start_after)

    def delete(self, keys: Sequence[str]) -> Mapping[str, Failure]:
        """Delete at most 1,000 objects and return failures by key."""
        return self.client.delete(keys)

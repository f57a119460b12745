"""Opens an event log by its URL, which may come from the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.eventlog.files import FilesBackend
from forebay.buffer.eventlog.log import EventLog
from forebay.buffer.eventlog.memory import MemoryBackend
from forebay.buffer.eventlog.objects import ObjectsBackend
from forebay.buffer.eventlog.sqlite import SqliteBackend
from forebay.buffer.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.eventlog.backend import Backend
    from forebay.buffer.eventlog.model import Description

VARIABLE: Final = "FOREBAY_EVENT_LOG"
_OBJECTS: Final = "objects+"


def open_event_log(
    url: str | Path | None = None,
    *,
    depth: int = 1024,
    poll_interval: float = 1.0,
    storage_options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
    random: Random | None = None,
) -> EventLog:
    """Return the event log at a URL. Nothing is created there before the first write.

    Args:
        url: `sqlite:///folder/events.db`, or a plain path, which means the same; `file:///folder` for JSON lines;
            `memory://name`; `s3://bucket/log`, `gs://…` or `az://…`; `objects+file:///folder` for the layout of object
            storage in a folder. By default, the value of the environment variable `FOREBAY_EVENT_LOG`.
        depth: maximum number of events that wait for a subscriber in one partition, before it gets `Lagged`.
        poll_interval: maximum seconds between two looks of a waiting subscriber for events of other processes.
        storage_options: credentials, endpoint and client, for object storage.
        clock: where time comes from.
        random: where ids come from.

    Raises:
        InvalidInput: the URL is not valid, or none was given.
    """
    url = url or os.environ.get(VARIABLE)
    if not url:
        raise InvalidInput(
            f"there is no URL of an event log: pass it, or set {VARIABLE}, such as sqlite:///var/lib/forebay/events.db"
        )
    clock, random = clock or SystemClock(), random or system_random()
    backend = _open_backend(str(url), storage_options, clock, random)
    return EventLog(backend, depth=depth, poll_interval=poll_interval, clock=clock)


def describe_event_log(
    url: str | Path | None = None, *, storage_options: Mapping[str, Any] | None = None
) -> Description:
    """Return a log's storage, location, size and depth, without reading events or creating the log."""
    with open_event_log(url, storage_options=storage_options) as log:
        return log.describe()


def _open_backend(url: str, storage_options: Mapping[str, Any] | None, clock: Clock, random: Random) -> Backend:
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme in {"", "sqlite", "file", "memory"} and storage_options:
        raise InvalidInput(f"an event log at {url} takes no storage options; leave them out")
    match scheme:
        case "":
            return SqliteBackend(Path(url), clock=clock, random=random)
        case "sqlite":
            parts = urlsplit(url)
            path = unquote(parts.path)
            if parts.netloc or len(path) < 2 or path.endswith("/"):
                raise InvalidInput(f"{url!r} is not a database's URL: write sqlite:///absolute/path/events.db")
            return SqliteBackend(Path(path), clock=clock, random=random)
        case "file":
            return FilesBackend(url, clock=clock, random=random)
        case "memory":
            return MemoryBackend(url)
        case _:
            store = open_store(url.removeprefix(_OBJECTS), storage_options)
            return ObjectsBackend(store, clock=clock, random=random)

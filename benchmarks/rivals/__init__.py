"""What peers.py compares: forebay, and what a user would have had instead, each as well as it can be written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rivals.buffers import Forebay, ForebayS3fs
from rivals.files import DeltaAppends, ParquetDefaults, ParquetPuts
from rivals.queues import RedisStream, SqliteFrames, SqliteRows

if TYPE_CHECKING:
    from rivals.rival import Rival

FOREBAY = "forebay"
FOREBAY_S3FS = "forebay, s3fs"
PARQUET = "Parquet puts"
PARQUET_DEFAULTS = "Parquet, pyarrow's defaults"
DELTA = "Delta appends"
SQLITE = "SQLite rows"
SQLITE_FRAMES = "SQLite, zstd frames"
REDIS = "Redis stream"

RIVALS: dict[str, type[Rival]] = {
    FOREBAY: Forebay,
    FOREBAY_S3FS: ForebayS3fs,
    PARQUET: ParquetPuts,
    PARQUET_DEFAULTS: ParquetDefaults,
    DELTA: DeltaAppends,
    SQLITE: SqliteRows,
    SQLITE_FRAMES: SqliteFrames,
    REDIS: RedisStream,
}

"""A file for each flush: Parquet files found by listing the folder, or a Delta table with its own log."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from rivals.rival import THREADS, Rival, decode, encode, make_table, put_synced

if TYPE_CHECKING:
    from collections.abc import Callable


class ParquetPuts(Rival):
    """A zstd Parquet file each flush: on S3 one PUT by obstore, the fastest client there is; in a folder synced."""

    threads = THREADS

    def __init__(self, folder: str, options: dict[str, Any]) -> None:
        super().__init__(folder, options)
        self._path = Path(urlsplit(folder).path)
        if options:
            import obstore  # noqa: PLC0415  (a client that is not used takes no memory)
            from obstore.store import S3Store  # noqa: PLC0415

            self._obstore = obstore
            self._store = S3Store.from_url(
                folder,
                config={
                    "access_key_id": options["key"],
                    "secret_access_key": options["secret"],
                    "endpoint": options["endpoint_url"],
                    "region": options["region"],
                },
                client_options={"allow_http": True},
            )
        else:
            self._path.mkdir(parents=True, exist_ok=True)

    def append(self, entries: list[bytes]) -> None:
        data, name = encode(entries), f"{time.time_ns()}-{os.urandom(4).hex()}.parquet"
        if self.options:
            self._obstore.put(self._store, name, memoryview(data).cast("B"), use_multipart=False)
        else:
            put_synced(self._path / name, data)

    def read(self) -> int:
        found: list[Any]
        if self.options:
            found = [each["path"] for page in self._obstore.list(self._store, chunk_size=1000) for each in page]
            get: Callable[[Any], Any] = lambda name: memoryview(self._obstore.get(self._store, name).bytes())  # noqa: E731
        else:
            found, get = list(self._path.glob("*.parquet")), Path.read_bytes
        with ThreadPoolExecutor(THREADS) as pool:
            return sum(pool.map(lambda name: decode(get(name)), found))


class ParquetDefaults(Rival):
    """The same as pyarrow does it when asked for no more than zstd: its own S3 client, its dataset reader."""

    threads = THREADS

    def __init__(self, folder: str, options: dict[str, Any]) -> None:
        super().__init__(folder, options)
        parts = urlsplit(folder)
        self._path = f"{parts.netloc}{parts.path}"
        if options:
            from pyarrow.fs import S3FileSystem  # noqa: PLC0415

            self._files: Any = S3FileSystem(
                access_key=options["key"],
                secret_key=options["secret"],
                region=options["region"],
                endpoint_override=options["endpoint_url"],
            )
        else:
            from pyarrow.fs import LocalFileSystem  # noqa: PLC0415

            self._files = LocalFileSystem()
            self._files.create_dir(self._path)

    def append(self, entries: list[bytes]) -> None:
        path = f"{self._path}/{time.time_ns()}-{os.urandom(4).hex()}.parquet"
        pq.write_table(make_table(entries), path, filesystem=self._files, compression="zstd", compression_level=3)

    def read(self) -> int:
        entries: int = pq.read_table(self._path, filesystem=self._files).num_rows
        return entries


class DeltaAppends(Rival):
    """A version of the table each flush. One thread: appends of several meet each other and begin again."""

    def __init__(self, folder: str, options: dict[str, Any]) -> None:
        super().__init__(folder, options)
        import deltalake  # noqa: PLC0415

        self._delta = deltalake
        names = {
            "ACCESS_KEY_ID": "key",
            "SECRET_ACCESS_KEY": "secret",
            "ENDPOINT_URL": "endpoint_url",
            "REGION": "region",
        }
        self._storage = options and {f"AWS_{name}": str(options[given]) for name, given in names.items()} | {
            "AWS_ALLOW_HTTP": "true"
        }

    @cached_property
    def _append(self) -> Callable[[pa.Table], None]:
        table = self._delta.DeltaTable.create(
            self.folder,
            pa.schema([("value", pa.binary())]),
            storage_options=self._storage,
            # No statistics, which nobody asks of a queue: they cost a fifth of the speed.
            configuration={"delta.dataSkippingNumIndexedCols": "0"},
        )
        columns = self._delta.ColumnProperties(dictionary_enabled=False, statistics_enabled="NONE")
        written = self._delta.WriterProperties(
            compression="ZSTD", compression_level=3, default_column_properties=columns
        )
        return partial(self._delta.write_deltalake, table, mode="append", writer_properties=written)

    def append(self, entries: list[bytes]) -> None:
        self._append(make_table(entries))

    def read(self) -> int:
        table = self._delta.DeltaTable(self.folder, storage_options=self._storage)
        entries: int = table.to_pyarrow_dataset().to_table().num_rows
        return entries

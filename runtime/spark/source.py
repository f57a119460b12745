"""`forebay` as a Spark data source: what Spark asks first, each answered by the module that does it (rfcs/0008)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from forebay.buffer.store.options import seal, unseal
from forebay.runtime.spark.options import Options, refuse_memory
from forebay.runtime.spark.shipping import Shipped
from forebay.runtime.spark.versions import check_streams

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from typing import Any

    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType


class ForebaySource(Shipped, DataSource):
    """Buffers and topics for `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`.

    Spark makes one in several processes: nothing is opened, claimed or sent before it asks for more.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Called by Spark, first of all in the driver's `load`, `save` or `start`."""
        super().__init__(options)
        refuse_memory(options)

    @classmethod
    def name(cls) -> str:
        """What comes after `format`."""
        return "forebay"

    def __getstate__(self) -> bytes:
        return seal(dict(self.options))  # tasks get a pickle of it, which Spark may spill to disk

    def __setstate__(self, sealed: bytes) -> None:
        self.options: dict[str, Any] = unseal(sealed)

    def schema(self) -> StructType:
        """All columns: what is read where no schema is given. Of a buffer without a manifest, those of bytes."""
        from forebay.runtime.spark.reading.listing import open_source  # noqa: PLC0415
        from forebay.runtime.spark.reading.rows import columns_of  # noqa: PLC0415

        options = Options(self.options, self.options)  # which of them are known depends on what comes next
        source = open_source(options.open_store(), options.manifest_path, must_exist=False)
        return columns_of(source.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what plans and runs a batch read."""
        from forebay.runtime.spark.reading.batch_reader import open_reader  # noqa: PLC0415

        return open_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return what plans and runs a stream."""
        check_streams()
        from forebay.runtime.spark.reading.stream_reader import StreamReader  # noqa: PLC0415

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return what writes a DataFrame."""
        from forebay.runtime.spark.writing.writers import BatchWriter  # noqa: PLC0415

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Return what writes a streaming DataFrame."""
        check_streams()
        from forebay.runtime.spark.writing.writers import StreamWriter  # noqa: PLC0415

        return StreamWriter(self.options, schema, overwrite)

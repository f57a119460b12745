"""What the running Spark can do. Batch reads and writes need 4.0, filters 4.1, streams 4.2 (rfcs/0008).

The features are looked for, not the number: vendors bring newer features to older versions.
"""

from __future__ import annotations

import importlib.util

from forebay.buffer.base.errors import Unsupported


def check_sources() -> None:
    """Raise `Unsupported` if Spark knows no data sources in Python, which came with 4.0."""
    if importlib.util.find_spec("pyspark.sql.datasource") is None:
        raise Unsupported(
            f"{_found()} has no data sources in Python, so it cannot load the format forebay: use Spark 4.0 or later, "
            'or read with mapInArrow as docs/spark.md shows under "Older versions of Spark"'
        )


def check_filters() -> None:
    """Raise `Unsupported` if Spark hands no filters to data sources in Python, which it does since 4.1."""
    from pyspark.sql import datasource  # noqa: PLC0415 - an extra

    if not hasattr(datasource, "EqualTo"):
        raise Unsupported(
            f"{_found()} cannot push filters to a data source in Python: use Spark 4.1 or later, or leave out the "
            "option pushFilters and give a range (startingTime, endingTime, startingSequence, endingSequence)"
        )


def check_streams() -> None:
    """Raise `Unsupported` if Spark cannot limit what a stream in Python reads, which it can since 4.2."""
    if importlib.util.find_spec("pyspark.sql.streaming.datasource") is None:
        raise Unsupported(
            f"{_found()} cannot stream the format forebay: use Spark 4.2 or later. With this version, read and write "
            "in batch (spark.read, df.write), or run a forebay runtime"
        )


def _found() -> str:
    import pyspark  # noqa: PLC0415 - an extra

    return f"Spark {pyspark.__version__}"

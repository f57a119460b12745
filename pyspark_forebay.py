"""Lets Spark find the data source `forebay` without being told (rfcs/0008).

Spark imports every top-level module whose name starts with `pyspark_`, and one that cannot be imported switches
discovery off for all of them. So nothing of forebay is loaded here before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from pyspark.sql.datasource import DataSource
except ImportError:
    pass  # without Spark, or with one that knows no Python data sources, there is nobody to find it
else:
    if TYPE_CHECKING:
        from collections.abc import MutableMapping

    class DefaultSource(DataSource):
        """What Spark looks for. Making one gives the data source itself, which says what is missing, if anything is."""

        @classmethod
        def name(cls) -> str:
            """What comes after `format`."""
            return "forebay"

        def __new__(cls, options: MutableMapping[str, str]) -> DataSource:  # type: ignore[misc]  # not its own, on purpose
            """Return the data source."""
            from forebay.runtime.spark.source import ForebaySource  # noqa: PLC0415

            return ForebaySource(options)

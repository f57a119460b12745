"""Buffers on a Spark cluster: the data source `forebay` (rfcs/0008).

`spark.read.format("forebay")` finds it where forebay is installed. `register` is for programs that want it explicit.
`ensure_java`, called before a session is started, finds a Java if the machine has none.

Builds on `forebay.buffer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.runtime.spark.java import ensure_java
from forebay.runtime.spark.python import check_python
from forebay.runtime.spark.versions import check_sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ensure_java", "register"]


def register(spark: SparkSession) -> None:
    """Make `forebay` known to a session as a data source.

    Raises:
        Unsupported: Spark is older than 4.0, or the Python that it starts for tasks has no forebay. The message says
            what to do.
    """
    check_sources()
    # A session of Spark Connect has no context here: its Python is on the server.
    context = getattr(spark, "sparkContext", None)
    if context is not None:
        check_python(context.pythonExec)
    # Here, so that `import forebay.runtime.spark` works without Spark and says so only where Spark is used.
    from pyspark.errors import AnalysisException  # noqa: PLC0415

    from forebay.runtime.spark.source import ForebaySource  # noqa: PLC0415

    try:
        spark.dataSource.register(ForebaySource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # Spark 4.0, if it has found the format by itself
            raise

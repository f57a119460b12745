"""A driver that is killed at its first commit, before or after the append: see test_stream_writer.py.

Also the module that Spark's Python workers load the dying writer from.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from forebay.runtime.spark import ensure_java
from forebay.runtime.spark.source import ForebaySource
from forebay.runtime.spark.writing.writers import StreamWriter

HERE = Path(__file__).parent


class DyingWriter(StreamWriter):
    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        if os.environ["FOREBAY_TEST_MOMENT"] == "after":
            super().commit(messages, batchId)
        for victim in Path(os.environ["FOREBAY_TEST_VICTIMS"]).read_text().split():
            os.kill(int(victim), signal.SIGKILL)
        os._exit(1)


class DyingSource(ForebaySource):
    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
        return DyingWriter(self.options, schema, overwrite)


def main(moment: str, source: str, checkpoint: str, url: str) -> None:
    victims = Path(checkpoint + ".victims")
    os.environ["FOREBAY_TEST_MOMENT"] = moment
    os.environ["FOREBAY_TEST_VICTIMS"] = str(victims)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(HERE))
    ensure_java()
    spark = SparkSession.builder.master("local[2]").config("spark.driver.memory", "512m").getOrCreate()
    jvm: Any = spark._jvm
    victims.write_text(f"{jvm.java.lang.ProcessHandle.current().pid()} {os.getpid()}")
    from killed_driver import DyingSource as ImportableSource

    spark.dataSource.register(ImportableSource)
    frame = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(source)
    query = frame.writeStream.format("dying").option("writerId", "etl").option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start(url).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

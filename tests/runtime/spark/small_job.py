"""The least that Spark can do with forebay, in a process of its own: see test_java.py."""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from forebay.runtime.spark import ensure_java


def main(url: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    ensure_java()
    spark = SparkSession.builder.master("local[1]").config("spark.driver.memory", "512m").getOrCreate()
    spark.range(10).selectExpr("cast(id as string) as value").write.format("forebay").mode("append").save(url)
    count = spark.read.format("forebay").load(url).count()
    jvm: Any = spark._jvm
    sys.stdout.write(f"{count} rows, Java {jvm.java.lang.System.getProperty('java.version')}\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])

"""Spark finds forebay without `register`, and forebay breaks nobody else's discovery."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from spark_place import Place

from forebay.buffer.producer import Producer
from forebay.runtime.spark import register


def run(program: str) -> str:
    return subprocess.check_output([sys.executable, "-c", program], text=True).strip()


def test_format_is_found_without_registering_it(spark: SparkSession, place: Place) -> None:
    """For reading, writing and SQL; what Spark found, it keeps for the session."""
    frame = spark.createDataFrame([("a",), ("b",)], "value string").coalesce(1)
    frame.write.format("forebay").mode("append").save(place.url)
    assert [bytes(row.value) for row in spark.read.format("forebay").load(place.url).collect()] == [b"a", b"b"]
    spark.sql(f"CREATE TEMPORARY VIEW discovered USING forebay OPTIONS (url '{place.url}')")
    assert spark.sql("SELECT count(*) AS n FROM discovered").collect()[0].n == 2


def test_format_can_be_registered_as_well(spark: SparkSession, place: Place) -> None:
    session = spark.newSession()
    register(session)
    with Producer(place.url) as producer:
        producer.produce([b"a", b"b"])
    assert session.read.format("forebay").load(place.url).count() == 2


def test_module_that_spark_looks_at_loads_nothing_of_forebay() -> None:
    shown = run(
        "import sys, pyspark_forebay\n"
        "print(pyspark_forebay.DefaultSource.name(), [name for name in sys.modules if name.startswith('forebay')])"
    )
    assert shown == "forebay []"


@pytest.mark.parametrize("missing", ["forebay", "pyarrow", "msgspec"])
def test_module_that_spark_looks_at_imports_where_parts_are_missing_and_says_so_when_used(missing: str) -> None:
    shown = run(
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import pyspark_forebay\n"
        "try: pyspark_forebay.DefaultSource(options={})\n"
        "except ImportError as error: print(error)"
    )
    assert missing in shown


def test_process_that_plans_loads_neither_pandas_nor_what_producers_and_the_runtime_need() -> None:
    """Spark starts one for each query, so what it loads is most of what a small query costs."""
    shown = run(
        "import sys, forebay.runtime.spark.source, forebay.runtime.spark.reading.batch_reader\n"
        "unwanted = ['pandas', 'forebay.buffer.consumer', 'forebay.buffer.producer', 'forebay.runtime.runtime']\n"
        "print([name for name in unwanted if name in sys.modules])"
    )
    assert shown == "[]"


def test_module_that_spark_looks_at_imports_without_spark() -> None:
    shown = run(
        "import sys; sys.modules['pyspark'] = None\n"
        "import pyspark_forebay, forebay.runtime.spark\n"
        "print(hasattr(pyspark_forebay, 'DefaultSource'))"
    )
    assert shown == "False"


def test_what_is_found_is_the_data_source_itself() -> None:
    from forebay.runtime.spark.source import ForebaySource
    from pyspark_forebay import DefaultSource

    assert issubclass(DefaultSource, DataSource)
    assert isinstance(DefaultSource(options={}), ForebaySource)
    assert DefaultSource.name() == ForebaySource.name()

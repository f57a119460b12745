"""Which Spark can do what: `make test` runs this with the newest version, `make test-matrix` with the lowest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, datasource
from spark_place import Place
from spark_versions import before_4_1, before_4_2

from forebay.buffer.base.errors import Unsupported
from forebay.runtime.spark import register
from forebay.runtime.spark.versions import check_filters, check_streams


def test_every_version_reads_in_batch_what_it_wrote(spark: SparkSession, any_place: Place) -> None:
    numbers = spark.range(0, 1000, 1, 3).selectExpr("cast(id as string) as value")
    numbers.write.format("forebay").options(**any_place.options).mode("append").save()
    rows = spark.read.format("forebay").options(**any_place.options).option("minPartitions", 2).load()
    assert sorted(int(row.value) for row in rows.collect()) == list(range(1000))


@before_4_2
def test_stream_read_is_refused_by_an_old_spark_with_what_to_do(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    rows = spark.readStream.format("forebay").option("group", "etl").load(place.url)
    with pytest.raises(PySparkException, match=r"Unsupported: Spark 4\.[01].* cannot stream .*use Spark 4\.2 or later"):
        rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start().processAllAvailable()


@before_4_2
def test_stream_write_is_refused_by_an_old_spark_with_what_to_do(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("cast(value as string) as value")
    written = rows.writeStream.format("forebay").option("writerId", "etl").option("checkpointLocation", str(tmp_path))
    with pytest.raises(PySparkException, match=r"Unsupported: Spark 4\.[01].* cannot stream .*use Spark 4\.2 or later"):
        written.start(place.url).processAllAvailable()


@before_4_1
def test_filters_are_refused_by_an_old_spark_with_what_to_do(spark: SparkSession, place: Place) -> None:
    with pytest.raises(PySparkException, match=r"Unsupported: Spark 4\.0.* cannot push filters .*use Spark 4\.1"):
        spark.read.format("forebay").option("pushFilters", "true").load(place.url).where("sequence = 1").count()


def test_what_spark_4_0_lacks_is_missed_by_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(datasource, "EqualTo", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    with pytest.raises(Unsupported, match=r"leave out the option pushFilters"):
        check_filters()
    with pytest.raises(Unsupported, match=r"read and write in batch"):
        check_streams()


def test_spark_3_is_refused_when_it_is_to_know_the_format(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)
    with pytest.raises(Unsupported, match=r"no data sources in Python.*use Spark 4\.0 or later, or .* mapInArrow"):
        register(spark)

"""What Spark's options name, refused before any task starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from spark_place import Place

from forebay.buffer.base.errors import Denied, InvalidInput
from forebay.buffer.producer import Producer
from forebay.runtime.spark.options import Options, naming_credentials
from forebay.runtime.spark.source import ForebaySource

TOLD = "memory://lake is in the memory of one process, and Spark uses several: use file:// for tests"


@pytest.mark.parametrize("name", ["url", "path", "URL"])
def test_memory_is_refused_when_the_source_is_made(name: str) -> None:
    with pytest.raises(InvalidInput, match=TOLD):
        ForebaySource({name: "memory://lake"})


def test_memory_is_refused_by_the_driver_for_reads_streams_and_writes(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([("a",)], "value string")
    with pytest.raises(AnalysisException, match=TOLD):
        spark.read.format("forebay").load("memory://lake")
    with pytest.raises(AnalysisException, match=TOLD):
        frame.write.format("forebay").mode("append").save("memory://lake")
    with pytest.raises(AnalysisException, match=TOLD):
        spark.readStream.format("forebay").option("group", "etl").load("memory://lake")
    stream = spark.readStream.format("rate").load().selectExpr("cast(value as string) as value").writeStream
    stream = stream.format("forebay").option("writerId", "etl").option("checkpointLocation", str(tmp_path))
    with pytest.raises(StreamingQueryException, match=TOLD):
        stream.start("memory://lake").awaitTermination()


def test_dicts_of_s3fs_are_given_as_json_and_keep_their_case() -> None:
    given = {"url": "s3://lake", "storage.s3_additional_kwargs": '{"ServerSideEncryption": "aws:kms"}'}
    store = Options({**given, "storage.region": "eu-north-1"}, []).open_store()
    assert store._options.s3_additional_kwargs == {"ServerSideEncryption": "aws:kms"}  # type: ignore[attr-defined]


def test_url_may_be_written_as_spark_users_do(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    """As a plain path."""
    with Producer(place.url) as producer:
        producer.produce([b"a", b"b"])
    assert spark.read.format("forebay").load(str(tmp_path / "buffer")).count() == 2


def test_credentials_are_asked_for_by_the_names_that_they_have_in_spark() -> None:
    with pytest.raises(Denied, match=r"in storage_options\. In Spark, .*storage\.key"), naming_credentials():
        raise Denied("s3://lake: no credentials; pass key and secret in storage_options")
    with pytest.raises(Denied, match=r"^s3://lake: access denied$"), naming_credentials():
        raise Denied("s3://lake: access denied")


@pytest.mark.parametrize("way", ["read", "stream", "write", "write stream"])
def test_reference_names_every_option(way: str) -> None:
    source, schema = ForebaySource({"url": "file:///nowhere", "zzz": "1"}), StructType()
    with pytest.raises(InvalidInput, match="unknown option 'zzz'; expected one of") as refused:
        match way:
            case "read":
                source.reader(schema)
            case "stream":
                source.streamReader(schema)
            case "write":
                source.writer(schema, False)
            case _:
                source.streamWriter(schema, False)
    assert "plannedParts" not in str(refused.value), "forebay gives it itself"
    known = str(refused.value).partition("expected one of ")[2].partition(", or storage.*")[0].split(", ")
    documented = (Path(__file__).parents[3] / "docs" / "reference" / "spark.md").read_text()
    assert len(known) > 3
    assert [name for name in known if name != "path" and f"`{name}`" not in documented] == []

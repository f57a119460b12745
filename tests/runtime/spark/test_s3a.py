"""Spark's own reader on S3, by Hadoop's S3A. `make test-s3a` fetches the jars, 660 MB, and runs this."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
import pytest
from patience import PATIENCE
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from forebay import Producer, open_store
from forebay.buffer.topic import TopicProducer, create_topic
from forebay.runtime.spark import ensure_java, read
from forebay.runtime.spark.hadoop import find_folder
from forebay.testing.servers import SeaweedServer

JARS = os.environ.get("FOREBAY_S3A_JARS")
pytestmark = pytest.mark.skipif(JARS is None, reason="needs Hadoop's jars for S3, 660 MB: make test-s3a fetches them")

URL = "s3://tests/s3a"
ROWS = [(number, f"/{number % 3}") for number in range(40)]
SCHEMA = pa.schema([("user", pa.int64()), ("page", pa.string())])


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    """A session with wrong credentials of its own, and a UI."""
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(map(str, sorted(Path(JARS or "").glob("*.jar")))))
        .config("spark.ui.enabled", "true")
        .config("spark.ui.port", "0")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.files.ignoreMissingFiles", "true")
        .config("spark.hadoop.fs.s3a.input.stream.type", "classic")
        .config("spark.hadoop.fs.s3a.bucket.tests.access.key", "nobody")
        .config("spark.hadoop.fs.s3a.bucket.tests.secret.key", "wrong")
        .getOrCreate()
    )
    yield spark
    spark.stop()


@pytest.fixture(scope="module")
def filled(weed: SeaweedServer) -> dict[str, Any]:
    with Producer(URL, schema=SCHEMA, storage_options=weed.storage_options) as producer:
        for user, page in ROWS:  # above 32 files Spark looks for them in a job
            producer.produce({"user": user, "page": page})
            producer.flush().result()
    return weed.storage_options


def test_rows_come_by_sparks_own_reader_with_the_credentials_of_the_read(
    session: SparkSession, filled: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    frame = read(session, URL, storage_options=filled, hold_for=0)
    frame.where("user > 3").explain(extended=True)
    shown = capsys.readouterr().out
    assert "FileScan parquet" in shown
    assert "PushedFilters: [IsNotNull(user), GreaterThan(user,3)]" in shown
    assert sorted(tuple(row) for row in frame.collect()) == ROWS
    assert filled["secret"] not in shown


def test_secret_is_in_no_page_of_the_ui(session: SparkSession, filled: dict[str, Any]) -> None:
    read(session, URL, storage_options=filled, hold_for=0).groupBy("page").count().collect()
    base = f"{session.sparkContext.uiWebUrl}/api/v1/applications"
    (application,) = json.loads(_get(base))
    place = f"{base}/{application['id']}"
    executions = json.loads(_get(f"{place}/sql?details=true&planDescription=true&length=1000"))
    assert any("Scan parquet" in execution["planDescription"] for execution in executions)
    pages = [json.dumps(executions), *(_get(f"{place}/{name}") for name in ("environment", "jobs", "stages"))]
    assert filled["secret"] not in "".join(pages)


def _get(url: str) -> str:
    with urlopen(url, timeout=PATIENCE) as answer:
        return str(answer.read().decode())


def test_other_credentials_do_not_get_the_file_system_of_the_first(
    session: SparkSession, filled: dict[str, Any]
) -> None:
    assert read(session, URL, storage_options=filled, hold_for=0).count() == len(ROWS)
    wrong = find_folder(session, URL, {**filled, "secret": "wrong"})
    with pytest.raises(Py4JJavaError, match="AccessDeniedException"):
        session.read.schema("user bigint").options(**wrong.options).parquet(f"{wrong.url}/data").count()


def test_missing_object_is_an_error_although_the_session_ignores_it(session: SparkSession, weed: SeaweedServer) -> None:
    url, options = "s3://tests/s3a-swept", weed.storage_options
    with Producer(url, schema=SCHEMA, storage_options=options) as producer:
        handle = producer.produce({"user": 1, "page": "/"})
    handle.result()
    frame = read(session, url, storage_options=options, hold_for=0)
    store = open_store(url, options)
    store.delete([found.key for found in store.list("data/")])
    with pytest.raises(Py4JJavaError, match=r"FILE_NOT_EXIST|No such file"):
        frame.collect()


def test_topic_is_read_across_its_partitions(session: SparkSession, weed: SeaweedServer) -> None:
    url, options = "s3://tests/s3a-topic", weed.storage_options
    create_topic(url, 3, schema=SCHEMA, storage_options=options)
    with TopicProducer(url, storage_options=options) as producer:
        producer.produce([{"user": user, "page": page} for user, page in ROWS], key_column="user").result()
    frame = read(session, url, storage_options=options, hold_for=0)
    assert sorted(tuple(row) for row in frame.collect()) == ROWS
    assert all("s3a-" in path for path in frame.inputFiles())

"""How storage options become Hadoop's, for one read alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from forebay import Producer, Unsupported
from forebay.runtime.spark import read
from forebay.runtime.spark.hadoop import HadoopFolder, find_folder


class _Anything:
    """A session whose Hadoop has every FileSystem."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_arguments: object) -> Any:
        return self


class _Recorder(_Anything):
    """A session that keeps the options of its reader."""

    defaultParallelism = 2  # noqa: N815 - Spark's name

    def __init__(self) -> None:
        self.given: dict[str, str] = {}

    def options(self, **options: str) -> Any:
        self.given.update(options)
        return self


def find(url: str, **storage_options: Any) -> HadoopFolder:
    session: Any = _Anything()
    return find_folder(session, url, storage_options)


def test_bucket_without_options_is_reached_by_the_sessions_own_settings() -> None:
    assert find("s3://lake/clicks", client="obstore", read_timeout=5) == HadoopFolder("s3a://lake/clicks", {})
    assert find("gs://lake") == HadoopFolder("gs://lake", {})
    assert find("abfss://lake@acme.dfs.core.windows.net/a").url == "abfss://lake@acme.dfs.core.windows.net/a"
    assert find("az://lake/a", account_name="acme").url == "abfss://lake@acme.dfs.core.windows.net/a"


def test_options_of_s3_are_those_of_one_bucket_under_a_scheme_of_their_own() -> None:
    folder = find("s3://lake/clicks", key="me", secret="hush", endpoint_url="http://127.0.0.1:1", region="eu-north-1")
    scheme = folder.url.partition(":")[0]
    assert folder.url == f"{scheme}://lake/clicks"
    assert scheme.startswith("s3a-")
    assert folder.options == {
        f"fs.{scheme}.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3a.bucket.lake.access.key": "me",
        "fs.s3a.bucket.lake.secret.key": "hush",
        "fs.s3a.bucket.lake.endpoint": "http://127.0.0.1:1",
        "fs.s3a.bucket.lake.path.style.access": "true",
        "fs.s3a.bucket.lake.endpoint.region": "eu-north-1",
        "fs.s3a.bucket.lake.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    }
    assert "hush" not in folder.url


def test_other_credentials_get_another_scheme_and_the_same_ones_the_same() -> None:
    """Hadoop keeps one FileSystem for each scheme and bucket."""
    mine = find("s3://lake/clicks", key="me", secret="hush").url
    assert find("s3://lake/clicks", key="me", secret="hush").url == mine
    assert find("s3://lake/clicks", key="me", secret="psst").url != mine


@pytest.mark.parametrize(
    ("options", "setting", "value"),
    [
        ({"anon": True}, "aws.credentials.provider", "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"),
        (
            {"key": "k", "secret": "s", "token": "t"},
            "aws.credentials.provider",
            "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
        ),
        ({"key": "k", "secret": "s", "token": "t"}, "session.token", "t"),
        ({"requester_pays": True}, "requester.pays.enabled", "true"),
        ({"use_ssl": False}, "connection.ssl.enabled", "false"),
    ],
)
def test_option_has_its_counterpart(options: dict[str, Any], setting: str, value: str) -> None:
    assert find("s3://lake/clicks", **options).options[f"fs.s3a.bucket.lake.{setting}"] == value


@pytest.mark.parametrize(
    ("url", "options", "why"),
    [
        ("s3://lake/clicks", {"profile": "me"}, "no counterpart of the storage option profile"),
        ("s3://lake/clicks", {"client_kwargs": {"verify": False}}, "storage option client_kwargs"),
        ("gs://lake", {"service_account_path": "key.json"}, "storage option service_account_path"),
        ("az://lake", {}, "does not name the account, which Hadoop needs"),
        ("file:///tmp/%5Ba%5D", {}, "takes for a pattern"),
        ("s3://lake/{a}", {}, "takes for a pattern"),
    ],
)
def test_what_hadoop_cannot_do_is_said(url: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        find(url, **options)


def test_session_is_asked_for_the_file_system(spark: SparkSession) -> None:
    assert find_folder(spark, "file:///tmp/a%20b", {}).url == "file:///tmp/a b"
    with pytest.raises(Unsupported, match="no FileSystem for gs://"):
        find_folder(spark, "gs://lake", {})


def test_session_of_spark_connect_is_told_apart() -> None:
    session: Any = object()
    with pytest.raises(Unsupported, match="Spark Connect"):
        find_folder(session, "file:///tmp", {})


def test_reader_is_told_to_leave_no_file_out(tmp_path: Path) -> None:
    with Producer(tmp_path / "buffer", schema=pa.schema([("user", pa.int64())])) as producer:
        producer.produce({"user": 1})
    session: Any = _Recorder()
    read(session, tmp_path / "buffer", hold_for=0)
    assert session.given == {
        "ignoreMissingFiles": "false",
        "ignoreCorruptFiles": "false",
        "datetimeRebaseMode": "CORRECTED",
    }

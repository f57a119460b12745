"""One Spark session for all tests here, and buffers for it to read and write."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from forebay.runtime.spark import ensure_java

sys.path.insert(0, str(Path(__file__).parent))  # tests here share what is beside them
from spark_place import Place

# Only what starts a JVM fast: a test's is gone before more would have paid.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

_BUCKET = "tests"  # made by tests/conftest.py
_names = count()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session that knows forebay by discovery alone. A task is tried twice, so that tests can let one die."""
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2,2]")
        .appName("forebay tests")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A folder of this machine, which is what most tests need."""
    return Place(f"file://{tmp_path}/buffer")


@pytest.fixture(params=["file", "moto", "weed"])
def any_place(request: pytest.FixtureRequest) -> Place:
    """A folder, the shape of S3, and a real S3 server, one after the other."""
    if request.param == "file":
        return Place(f"file://{request.getfixturevalue('tmp_path')}/buffer")
    server = request.getfixturevalue(request.param)
    return Place(f"s3://{_BUCKET}/spark-{os.getpid()}-{next(_names)}", server.storage_options)

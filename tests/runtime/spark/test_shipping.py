"""A worker without forebay says so, with what to do, whatever Spark sends it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import BinaryType, StructField, StructType

from forebay.runtime.spark.source import ForebaySource

VALUE = StructType([StructField("value", BinaryType())])


def shipped(url: str) -> list[object]:
    """What Spark pickles for its workers; streams are pickled in the same way."""
    source = ForebaySource({"path": url})
    return [source, source.reader(VALUE), source.writer(VALUE, overwrite=False)]


@pytest.mark.parametrize("which", range(3), ids=["source", "reader", "writer"])
def test_worker_without_forebay_says_what_to_do(which: int, tmp_path: Path) -> None:
    pickled = cloudpickle.dumps(shipped(f"file://{tmp_path}")[which])
    program = (
        "import sys; sys.modules['forebay'] = None\n"
        "from pyspark import cloudpickle\n"
        "cloudpickle.loads(sys.stdin.buffer.read())"
    )
    ran = subprocess.run([sys.executable, "-c", program], input=pickled, capture_output=True, check=False)
    last = ran.stderr.decode().strip().splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: {sys.executable} on ")
    assert "has no forebay: install it on every machine" in last


def test_worker_with_forebay_gets_the_same_object(tmp_path: Path) -> None:
    for sent in shipped(f"file://{tmp_path}"):
        assert type(cloudpickle.loads(cloudpickle.dumps(sent))) is type(sent)

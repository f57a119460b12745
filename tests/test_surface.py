"""What `import forebay` gives: short, pinned and light."""

from __future__ import annotations

import subprocess
import sys

import pytest

import forebay
from forebay.buffer import topic


def test_public_names_are_these_and_no_others() -> None:
    assert set(forebay.__all__) == {
        "Backpressure",
        "Batch",
        "BatchDescriptor",
        "Closed",
        "Consumer",
        "Corrupt",
        "Denied",
        "Durability",
        "Fenced",
        "ForebayError",
        "InvalidInput",
        "Metadata",
        "NotFound",
        "NotReady",
        "Producer",
        "ProducerLimits",
        "ReadAhead",
        "Scan",
        "StoreError",
        "Timeout",
        "Trimmed",
        "Unavailable",
        "Unknown",
        "Unsupported",
        "hold",
        "open_store",
        "scan",
    }
    for name in forebay.__all__:
        assert hasattr(forebay, name)


def test_every_public_name_of_topics_is_there() -> None:
    assert [name for name in topic.__all__ if not callable(getattr(topic, name))] == []
    with pytest.raises(AttributeError, match="no attribute 'subject'"):
        topic.subject  # noqa: B018


def test_import_loads_no_spark_and_no_s3_client() -> None:
    program = (
        "import sys, forebay, forebay.testing\n"
        "heavy = {'pyspark', 's3fs', 'fsspec', 'obstore', 'botocore', 'boto3', 'aiobotocore', 'moto', 'deltalake'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


@pytest.mark.parametrize(
    "import_", ["from forebay import Consumer, Producer", "from forebay.runtime import Runtime", "import forebay.cli"]
)
def test_import_loads_no_pandas(import_: str) -> None:
    """It takes 30 MiB. pyarrow loads it with the first Python value that it converts."""
    program = f"import sys; {import_}; print('pandas' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "False"

"""The Python that Spark starts has forebay, or the message says what to type."""

from __future__ import annotations

import re
import sys
import venv
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from forebay.buffer.base.errors import Unsupported
from forebay.runtime.spark import register
from forebay.runtime.spark.python import SparkPython, check_python, python_of_discovery


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """A Python in which nothing is installed."""
    venv.create(tmp_path / "bare")
    return str(tmp_path / "bare" / "bin" / "python3")


def test_python_with_forebay_passes() -> None:
    check_python(SparkPython(sys.executable))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, SparkPython("python3", "PYSPARK_PYTHON")),
        ({"PYSPARK_PYTHON": "a"}, SparkPython("a", "PYSPARK_PYTHON")),
        ({"PYSPARK_PYTHON": "a", "PYSPARK_DRIVER_PYTHON": "b"}, SparkPython("b", "PYSPARK_DRIVER_PYTHON")),
    ],
)
def test_python_is_the_one_that_spark_takes(
    variables: dict[str, str], expected: SparkPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert python_of_discovery() == expected


@pytest.mark.parametrize("command", ["no-such-python", "/bin/false"])
def test_command_that_is_no_python_says_what_to_type(command: str) -> None:
    with pytest.raises(Unsupported, match=f"{command}.*export PYSPARK_PYTHON={re.escape(sys.executable)}"):
        check_python(SparkPython(command))


def test_advice_names_the_variable_that_spark_took_the_python_from() -> None:
    advice = f"export PYSPARK_DRIVER_PYTHON={re.escape(sys.executable)}, or unset PYSPARK_DRIVER_PYTHON"
    with pytest.raises(Unsupported, match=f"no-such-python.*{advice}"):
        check_python(SparkPython("no-such-python", "PYSPARK_DRIVER_PYTHON"))


def test_registering_with_a_session_whose_python_has_no_forebay_says_what_to_type(
    spark: SparkSession, bare_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", bare_python)
    with pytest.raises(Unsupported, match=f"{bare_python}.*No module named.*export PYSPARK_PYTHON="):
        register(spark)

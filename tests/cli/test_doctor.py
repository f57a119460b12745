"""What `forebay doctor` finds on a machine where something does not fit, in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from forebay.cli import main


def run_doctor(**variables: str) -> tuple[int, str]:
    """Exit status and output, with nothing of Spark in the environment but what is given."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    command = [sys.executable, "-c", "import sys; from forebay.cli import main; sys.exit(main(['doctor']))"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment | variables, cwd="/")
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """A Python in which nothing is installed."""
    venv.create(tmp_path / "bare")
    return str(tmp_path / "bare" / "bin" / "python3")


@pytest.mark.parametrize(
    ("package", "client", "command"),
    [
        ("aiobotocore", "s3fs", "pip install --upgrade s3fs boto3"),
        ("obstore", "obstore", "pip install --upgrade obstore"),
    ],
)
def test_client_library_that_cannot_be_loaded_fails(package: str, client: str, command: str, tmp_path: Path) -> None:
    """As aiobotocore beside a newer boto3, which brings a botocore that it does not fit."""
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("raise ImportError('cannot import name X from botocore')\n")
    status, out = run_doctor(PYTHONPATH=str(tmp_path), PYSPARK_PYTHON=sys.executable)
    (failed,) = [line for line in out.splitlines() if line.startswith("FAILED")]
    assert failed.startswith(f"FAILED  {client}: {client} is installed and cannot be loaded")
    assert "cannot import name X" in failed
    assert failed.endswith(command)
    assert status == 1


def test_python_of_spark_without_forebay_fails_and_says_what_to_type(bare_python: str) -> None:
    status, out = run_doctor(PYSPARK_PYTHON=bare_python)
    (failed,) = [line for line in out.splitlines() if line.startswith("FAILED")]
    assert f"Spark starts {bare_python} for its Python code, which cannot import forebay" in failed
    assert "No module named" in failed
    assert failed.endswith(f"export PYSPARK_PYTHON={sys.executable}")
    assert status == 1


def test_drivers_python_without_forebay_is_named_with_its_own_variable(bare_python: str) -> None:
    status, out = run_doctor(PYSPARK_DRIVER_PYTHON=bare_python, PYSPARK_PYTHON=sys.executable)
    (failed,) = [line for line in out.splitlines() if line.startswith("FAILED")]
    assert f"export PYSPARK_DRIVER_PYTHON={sys.executable}, or unset PYSPARK_DRIVER_PYTHON" in failed
    assert status == 1


def test_without_a_setting_the_python_that_spark_finds_on_the_path_is_asked(bare_python: str) -> None:
    folder = str(Path(bare_python).parent)
    status, out = run_doctor(PATH=os.pathsep.join([folder, os.environ["PATH"]]))
    assert f"Spark starts {bare_python} for its Python code" in out
    assert status == 1


def test_python_of_spark_that_is_not_there_fails() -> None:
    status, out = run_doctor(PYSPARK_PYTHON="/no/such/python")
    assert "Spark starts '/no/such/python' for its Python code, and there is no such program" in out
    assert status == 1


def test_python_of_spark_with_forebay_is_fine(bare_python: str) -> None:
    """Spark looks for the format with the driver's Python if that is set."""
    status, out = run_doctor(PYSPARK_DRIVER_PYTHON=sys.executable, PYSPARK_PYTHON=bare_python)
    assert f"the Python that it starts, {sys.executable}, has forebay" in out
    assert "FAILED" not in out
    assert status == 0


def test_values_are_printed_as_words(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "memory://words"])
    out = capsys.readouterr().out
    assert "ok      write: applied after " in out
    assert "Applied(" not in out
    assert "b'" not in out


@pytest.mark.parametrize(
    ("version", "modules", "told"),
    [
        (
            "3.5.9",
            [],
            "FAILED  Spark: .*Spark 3.5.9 has no data sources in Python.*use Spark 4.0 or later",
        ),
        ("4.0.0", ["datasource"], "Spark 4.0.0 cannot stream the format forebay: use Spark 4.2 or later"),
    ],
)
def test_old_spark_is_told_with_what_to_do(version: str, modules: list[str], told: str, tmp_path: Path) -> None:
    (tmp_path / "pyspark" / "sql" / "streaming").mkdir(parents=True)
    (tmp_path / "pyspark" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    for name in ("__init__", "streaming/__init__", *modules):
        (tmp_path / "pyspark" / "sql" / f"{name}.py").touch()
    _status, out = run_doctor(PYTHONPATH=str(tmp_path), PYSPARK_PYTHON=sys.executable)
    assert re.search(told, out), out

"""The Python that Spark starts for its data sources and tasks: it needs forebay, and need not be the driver's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Final

from forebay.buffer.base.errors import Unsupported

_SECONDS: Final = 120
# What a data source needs to be found, and then to read and write. Spark itself adds pyspark to the path.
_PROBE: Final = "import pyspark_forebay, forebay.buffer.store"


@dataclass(frozen=True, slots=True)
class SparkPython:
    """A Python that Spark starts."""

    command: str
    variable: str = "PYSPARK_PYTHON"
    """The environment variable that names it, or could."""


def python_of_discovery() -> SparkPython:
    """Return the Python with which Spark looks for formats such as `forebay`, and runs the tasks of those it found."""
    for variable in ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"):
        command = os.environ.get(variable)
        if command:
            return SparkPython(command, variable)
    return SparkPython("python3")


def check_python(python: SparkPython) -> None:
    """Do nothing if forebay can be imported by a Python that Spark starts.

    Raises:
        Unsupported: there is no such Python, or it has no forebay; the message says what to type.
    """
    command = python.command
    path = shutil.which(command)
    if path is None:
        raise Unsupported(
            f"Spark starts {command!r} for its Python code, and there is no such program. {_advise(python.variable)}"
        )
    try:
        subprocess.run(  # noqa: S603 - the user's own setting, which Spark runs too
            [path, "-c", _PROBE], capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=True
        )
    except subprocess.CalledProcessError as error:
        problem = (error.stderr.strip().splitlines() or [f"exit status {error.returncode}"])[-1]
    except (OSError, subprocess.SubprocessError) as error:
        problem = f"{type(error).__name__}: {error}"
    else:
        return
    raise Unsupported(
        f"Spark starts {path} for its Python code, which cannot import forebay ({problem}). {_advise(python.variable)}"
    )


def _advise(variable: str) -> str:
    advice = f"Before the session starts: export {variable}={sys.executable}"
    if variable == "PYSPARK_PYTHON":
        return advice
    return f"{advice}, or unset {variable}, which Spark prefers to PYSPARK_PYTHON"

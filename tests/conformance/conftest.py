"""Every store, ready to be tested: the same tests run on all of them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from azurite import ACCOUNT, AZURE
from azurite import KIND as AZURITE

from forebay.buffer.store import ObjectStore, open_store
from forebay.testing.proxy import FaultProxy

_BUCKET = "tests"  # made by tests/conftest.py
_names = count()


@dataclass(frozen=True)
class Backend:
    """A place for one test's objects, and what it takes to reach it."""

    kind: str
    url: str
    options: dict[str, Any] = field(default_factory=dict)

    def open(self, **changes: Any) -> ObjectStore:
        return open_store(self.url, {**self.options, **changes})

    def open_at(self, endpoint_url: str, **changes: Any) -> ObjectStore:
        """The same place by another address, such as that of a proxy."""
        if self.kind == AZURITE:
            return self.open(endpoint=f"{endpoint_url}/{ACCOUNT}", **changes)
        return self.open(endpoint_url=endpoint_url, **changes)

    @property
    def lists_as_a_tree(self) -> bool:
        """SeaweedFS sorts a folder by its bare name: `a/b` comes before `a-b`, which S3 has the other way round."""
        return self.kind.endswith("weed")

    @property
    def lists_in_utf16_order(self) -> bool:
        """Azurite sorts keys as JavaScript does: U+10000 comes before U+E000, which UTF-8 has the other way round."""
        return self.kind == AZURITE


def make_backend(kind: str, request: pytest.FixtureRequest) -> Backend:
    name = f"t{os.getpid()}-{next(_names)}"
    if kind == "memory":
        return Backend(kind, f"memory://{name}")
    if kind == "file":
        folder: Path = request.getfixturevalue("tmp_path")
        return Backend(kind, f"file://{folder}/{name}")
    client, server = kind.split("-")
    options = request.getfixturevalue(server).storage_options
    scheme = "az" if kind == AZURITE else "s3"
    return Backend(kind, f"{scheme}://{_BUCKET}/{name}", {**options, "client": client})


@pytest.fixture(params=["memory", "file", "s3fs-moto", "obstore-moto", "s3fs-weed", "obstore-weed", AZURE])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Every store there is."""
    return make_backend(request.param, request)


@pytest.fixture(params=["s3fs-weed", "obstore-weed"])
def s3(request: pytest.FixtureRequest) -> Backend:
    """The real S3 server, by either client."""
    return make_backend(request.param, request)


@pytest.fixture(params=["s3fs-weed", "obstore-weed", AZURE])
def proxied(request: pytest.FixtureRequest) -> Iterator[tuple[Backend, FaultProxy]]:
    """A real server, and a proxy in front of it that breaks connections on request."""
    server = request.getfixturevalue(request.param.partition("-")[2])
    with FaultProxy(server.endpoint_url) as proxy:
        yield make_backend(request.param, request), proxy


@pytest.fixture
def store(backend: Backend) -> ObjectStore:
    return backend.open()


class Script:
    """A program beside the tests, in a process of its own, that gets a pickled store on its standard input."""

    def __init__(self, name: str, store: ObjectStore, *arguments: object) -> None:
        command = [sys.executable, str(Path(__file__).with_name(name)), *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )
        assert self._process.stdin is not None
        self._process.stdin.write(pickle.dumps(store))
        self._process.stdin.close()
        self._process.stdin = None

    def output(self) -> str:
        """What it printed; an assertion fails if it failed or did not end."""
        try:
            out, err = self._process.communicate()
        except subprocess.TimeoutExpired:
            self._process.kill()
            out, err = self._process.communicate()
            pytest.fail(f"the script hangs: {out.decode()} {err.decode()}")
        assert self._process.returncode == 0, err.decode()
        return out.decode().strip()


@pytest.fixture
def run_script() -> type[Script]:
    return Script

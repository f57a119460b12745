"""Which client talks to S3 where the options name none, and what is said of a library that does not work."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from forebay.buffer.base.errors import InvalidInput, Unsupported
from forebay.buffer.base.install import install_hint
from forebay.buffer.store import open_store
from forebay.buffer.store.choice import ChosenClient, make_client
from forebay.buffer.store.native import ObstoreClient
from forebay.buffer.store.options import parse_s3_options
from forebay.buffer.store.s3 import S3fsClient
from forebay.buffer.store.urls import parse_url
from forebay.testing.proxy import CannedServer, http_answer
from forebay.testing.servers import MotoServer

KEYS = {"key": "k", "secret": "s"}


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing about AWS in the environment, and no configuration files."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def chosen(options: dict[str, Any]) -> type:
    client = make_client(parse_url("s3://bucket/folder"), parse_s3_options(options))
    return type(client.client if isinstance(client, ChosenClient) else client)


@pytest.mark.parametrize(
    "options",
    [
        {**KEYS, "region": "eu-north-1"},
        {**KEYS, "token": "t", "region": "eu-north-1"},
        {**KEYS, "endpoint_url": "http://localhost:1"},
        {"anon": True, "region": "eu-north-1"},
        {"region": "eu-north-1"},
        {**KEYS, "region": "x", "requester_pays": True},
        {**KEYS, "endpoint_url": "http://localhost:1", "use_ssl": False},
        {**KEYS, "region": "x", "s3_additional_kwargs": {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "id"}},
        {"client_kwargs": {"region_name": "x", "aws_access_key_id": "k", "aws_secret_access_key": "s"}},
    ],
)
def test_obstore_is_taken_where_it_knows_the_options(options: dict[str, Any]) -> None:
    assert chosen(options) is ObstoreClient


@pytest.mark.parametrize(
    "options",
    [
        {"profile": "x", "region": "eu-north-1"},
        KEYS,
        {"anon": True},
        {**KEYS, "region": "x", "use_ssl": False},
        {**KEYS, "region": "x", "client_kwargs": {"verify": False}},
        {**KEYS, "region": "x", "config_kwargs": {"s3": {"addressing_style": "virtual"}}},
        {**KEYS, "region": "x", "s3_additional_kwargs": {"StorageClass": "STANDARD_IA"}},
    ],
)
def test_s3fs_is_taken_for_what_obstore_cannot_do(options: dict[str, Any]) -> None:
    assert chosen(options) is S3fsClient


@pytest.mark.parametrize("client", ["s3fs", "obstore"])
def test_client_that_is_named_is_taken(client: str) -> None:
    taken = chosen({**KEYS, "region": "x", "client": client})
    assert taken is {"s3fs": S3fsClient, "obstore": ObstoreClient}[client]


@pytest.mark.parametrize(
    ("variables", "options", "expected"),
    [
        ({"AWS_REGION": "x"}, KEYS, ObstoreClient),
        ({"AWS_DEFAULT_REGION": "x"}, KEYS, ObstoreClient),
        ({"AWS_PROFILE": "x"}, {"region": "x"}, S3fsClient),
        ({"AWS_PROFILE": "x"}, {**KEYS, "region": "x"}, ObstoreClient),
        ({"AWS_PROFILE": "x"}, {"anon": True, "region": "x"}, ObstoreClient),
        ({"AWS_PROFILE": "x", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}, {"region": "x"}, ObstoreClient),
        ({"AWS_CA_BUNDLE": "/ca.pem"}, {**KEYS, "region": "x"}, S3fsClient),
        ({"AWS_CA_BUNDLE": "/ca.pem"}, {**KEYS, "endpoint_url": "https://localhost:1"}, S3fsClient),
        ({"AWS_CA_BUNDLE": "/ca.pem"}, {**KEYS, "endpoint_url": "http://localhost:1"}, ObstoreClient),
        ({"AWS_USE_FIPS_ENDPOINT": "true"}, {**KEYS, "region": "x"}, S3fsClient),
    ],
)
def test_environment_counts(
    variables: dict[str, str], options: dict[str, Any], expected: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert chosen(options) is expected


@pytest.mark.parametrize("name", ["credentials", "config"])
def test_credentials_in_files_of_aws_are_left_to_s3fs(name: str, tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / name).touch()
    assert chosen({"region": "x"}) is S3fsClient
    assert chosen({**KEYS, "region": "x"}) is ObstoreClient


def test_choice_is_made_anew_from_a_pickle() -> None:
    """The process that opens it may have other libraries."""
    store = open_store("s3://bucket", {**KEYS, "region": "x"})
    assert store._options.client is None
    assert pickle.loads(pickle.dumps(store))._options.client is None


FORKING = """
    import os, sys
    from forebay.buffer.store import open_store
    options = {**%(options)r, **({"client": sys.argv[1]} if sys.argv[1] else {})}
    url = "s3://tests/choice-fork"
    store = open_store(url, options)
    version = store.put("counter", b"parent")
    def use_in_child():
        print(type(store.replace("counter", b"child", version)).__name__)
        print(bytes(open_store(url, options).get("counter").data), flush=True)
    child = os.fork()
    if child == 0:
        use_in_child()
        os._exit(0)
    os.waitpid(child, 0)
    print(bytes(store.get("counter").data))
"""


def test_forked_child_of_a_process_that_used_obstore_goes_on_with_s3fs(moto: MotoServer) -> None:
    """With the handle that it inherited, and with versions that the parent read; and with a new one."""
    program = textwrap.dedent(FORKING % {"options": moto.storage_options})
    done = subprocess.run([sys.executable, "-c", program, ""], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["Applied", "b'child'", "b'child'"], done.stderr


def test_session_token_of_the_environment_does_not_go_with_a_key_that_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-the-environment")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "environment")
    with CannedServer(http_answer(200, b"data", 'ETag: "1"')) as server:
        for client in ("s3fs", "obstore"):
            options = {**KEYS, "client": client, "endpoint_url": server.endpoint_url, "region": "us-east-1"}
            open_store("s3://bucket", options).create("key", b"")
    assert len(server.heads) == 2
    for head in server.heads:
        assert "Credential=k/" in head
        assert "of-the-environment" not in head


# Libraries that are missing or broken, in a process of its own: an import cannot be undone


def run(calls: str, folder: Path, *broken: str, error: str = "ImportError('no such symbol')") -> str:
    """What a program prints that calls `attempt`, where the import of some packages fails."""
    for name in broken:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"raise {error}\n")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OPENING) + calls],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


OPENING = """
    import logging
    from forebay.buffer.base.errors import ForebayError
    from forebay.buffer.store import open_store
    def attempt(**options):
        try:
            store = open_store("s3://bucket", {"key": "k", "secret": "s", "region": "x", **options})
            print(type(getattr(store._client, "client", store._client)).__name__)
        except ForebayError as error:
            print(type(error).__name__, error)
"""


@pytest.mark.parametrize("raised", ["ImportError('old')", "AttributeError('old')", "KeyError('old')", "OSError('old')"])
def test_broken_s3fs_says_what_to_type_where_a_store_is_opened(raised: str, tmp_path: Path) -> None:
    told = run('attempt(client="s3fs")', tmp_path, "aiobotocore", error=raised)
    assert told.startswith("Unsupported s3fs is installed and cannot be loaded")
    assert "old" in told
    assert "pip install --upgrade s3fs boto3" in told


def test_broken_s3fs_is_no_trouble_where_obstore_is_taken(tmp_path: Path) -> None:
    told = run("attempt()", tmp_path, "aiobotocore")
    assert told == "ObstoreClient\n"


def test_broken_obstore_is_passed_over_with_one_warning(tmp_path: Path) -> None:
    told = run("logging.basicConfig(); attempt(); attempt()", tmp_path, "obstore")
    assert told.count("S3fsClient") == 2
    assert told.count("WARNING:forebay.store:obstore is passed over for S3: ") == 1
    assert "no such symbol" in told
    assert "pip install --upgrade obstore" in told


def test_both_broken_is_an_error_that_names_both(tmp_path: Path) -> None:
    told = run("attempt()", tmp_path, "obstore", "aiobotocore")
    assert "Unsupported s3fs is installed and cannot be loaded" in told
    assert "(obstore was not used: obstore is installed and cannot be loaded" in told


def test_neither_installed_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import util

    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match=f"needs s3fs or obstore.*{install_hint('fast')[:12]}"):
        open_store("s3://bucket", KEYS)


def test_obstore_that_does_not_accept_what_it_is_given_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As earlier releases do, which do not know all settings."""

    def refuse(*_given: object) -> None:
        raise InvalidInput("s3://bucket/folder: obstore does not accept these storage options: no read_timeout")

    monkeypatch.setattr(ObstoreClient, "check_config", refuse)
    with caplog.at_level(logging.WARNING, logger="forebay.store"):
        assert chosen({**KEYS, "region": "x"}) is S3fsClient
    assert "no read_timeout" in caplog.text

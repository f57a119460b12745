"""`forebay dev`: a local S3 server, with settings that work as they are printed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import forebay
from forebay.cli import main

sys.path.append(str(Path(__file__).parent.parent))
from dev_server import COMMAND, DevServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    with DevServer(tmp_path_factory.mktemp("dev")) as server:
        yield server


@pytest.mark.parametrize("client", ["s3fs", "obstore"])
def test_exported_settings_are_all_that_a_command_needs(server: DevServer, client: str) -> None:
    done = subprocess.run(
        [COMMAND, "tail", "s3://lake/sample", "-n", "1001", "--option", f"client={client}"],
        capture_output=True, text=True, check=False, env={**os.environ, **server.environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 1000
    assert '"page": "/cart"' in done.stdout


def test_printed_storage_options_reach_a_bucket_that_can_be_written(server: DevServer) -> None:
    with forebay.Producer("s3://lake/mine", storage_options=server.storage_options) as producer:
        producer.produce(b"one")
    with forebay.Consumer("s3://lake/mine", storage_options=server.storage_options) as consumer:
        assert [entry for batch in consumer for entry in batch.entries] == [b"one"]
    for name, value in server.storage_options.items():
        assert f'.option("storage.{name}", "{value}")' in server.printed


def test_sample_keeps_growing(server: DevServer) -> None:
    with forebay.Consumer("s3://lake/sample", group="grows", storage_options=server.storage_options) as consumer:
        seen = 0
        for batch in consumer.batches(wait=True):
            seen += len(batch)
            if seen > 1020:
                break


def test_other_machines_cannot_reach_it(server: DevServer) -> None:
    port = int(server.storage_options["endpoint_url"].rpartition(":")[2])
    with socket.create_server(("0.0.0.0", 0)) as open_to_all:
        socket.create_connection(("127.0.0.2", open_to_all.getsockname()[1])).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port))


def test_port_that_is_taken_is_told(server: DevServer, capsys: pytest.CaptureFixture[str]) -> None:
    port = server.storage_options["endpoint_url"].rpartition(":")[2]
    assert main(["dev", "--port", port]) == 2
    assert f"error: port {port} cannot be used" in capsys.readouterr().err


def test_missing_server_is_told_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert main(["dev"]) == 2
    assert "[dev-server]" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_end_leaves_nothing(number: signal.Signals, status: int, tmp_path: Path) -> None:
    server = DevServer(tmp_path)
    server.process.send_signal(number)
    _, err = server.process.communicate()
    assert server.process.returncode == status, err
    assert list(tmp_path.iterdir()) == []
    host, _, port = server.storage_options["endpoint_url"].removeprefix("http://").partition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))

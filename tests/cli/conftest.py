"""Runs commands, and makes buffers for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import forebay
from forebay.buffer.topic import TopicProducer, create_topic
from forebay.cli import main

Shown = Callable[..., str]
Told = Callable[..., str]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Shown:
    """Runs a command that has to succeed, and returns what it printed."""

    def run(*arguments: str, status: int = 0) -> str:
        found = main(list(arguments))
        out, err = capsys.readouterr()
        assert found == status, err
        return out

    return run


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs a command, and returns what it wrote to standard error."""

    def run(*arguments: str, status: int = 2) -> str:
        found = main(list(arguments))
        err = capsys.readouterr().err
        assert found == status, err
        assert "Traceback" not in err
        return err

    return run


SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("at", pa.timestamp("us", "UTC"))])
ROWS = [b'{"id": 1, "at": "2026-01-31T12:00:00Z"}', b'{"id": 2}']


@pytest.fixture
def typed(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/lake/typed"
    with forebay.Producer(url, schema=SCHEMA) as producer:
        producer.produce(ROWS, b"from=test")
    return url


@pytest.fixture
def typed_topic(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/lake/topic"
    create_topic(url, 2, schema=SCHEMA)
    with TopicProducer(url) as producer:
        producer.produce(ROWS, b"from=test", key=b"a")
    return url


@pytest.fixture
def plain(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/lake/plain"
    with forebay.Producer(url) as producer:
        producer.produce([b"one", b"two"])
    return url

"""Bytes from a store on their way to a terminal: shown, never obeyed. Into a pipe they go as they are."""

from __future__ import annotations

import json
import logging
import os
import pty
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest

from forebay import Producer, hold
from forebay.buffer.eventlog import Event, open_event_log
from forebay.cli import main
from forebay.cli.output import EscapingFormatter, escape

EVIL = b"\x1b]0;owned\x07\x9b2J\xc2\x9b1m\x7f\rend\ttab"
SHOWN = rb"\x1b]0;owned\x07\x9b2J\x9b1m\x7f\x0dend"


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/buffer"
    with Producer(url) as producer:
        producer.produce(EVIL, metadata=EVIL).result()
    return url


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Standard output is a terminal; what reaches it is in the list afterwards."""
    ours, theirs = pty.openpty()
    written: list[bytes] = []
    with monkeypatch.context() as patch, os.fdopen(theirs, "w", newline="\n") as out:
        patch.setattr(sys, "stdout", out)
        yield written
    found = b""
    with suppress(OSError):  # which tells the end
        while chunk := os.read(ours, 1 << 16):
            found += chunk
    os.close(ours)
    written.append(found)


def is_harmless(shown: bytes) -> bool:
    text = shown.replace(b"\r\n", b"\n").decode()  # what the terminal makes of a newline
    return not any((ord(char) < 32 and char not in "\n\t") or 0x7F <= ord(char) < 0xA0 for char in text)


@pytest.mark.parametrize(
    "arguments",
    [
        ["tail", "URL"],
        ["consume", "URL"],
        ["batch", "cat", "URL", "0"],
        ["tail", "URL", "--format", "json"],
        ["tail", "URL", "--format", "table"],
    ],
    ids=" ".join,
)
def test_entries_are_shown_on_a_terminal_and_not_obeyed(
    arguments: list[str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal(monkeypatch) as written:
        assert main([url if part == "URL" else part for part in arguments]) == 0
    assert is_harmless(written[0])
    if "--format" not in arguments:
        assert SHOWN in written[0]


@pytest.mark.parametrize("as_format", ["lines", "json", "table"])
def test_rows_are_shown_on_a_terminal_and_not_obeyed(
    as_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, evil = f"file://{tmp_path}/typed", "\x1b]0;owned\x07\u009b1m\x7f\rend\ttab\nline"
    with Producer(url, schema=pa.schema([pa.field("evil\x7f", pa.string())])) as producer:
        producer.produce({"evil\x7f": evil})
    with terminal(monkeypatch) as written:
        assert main(["tail", url, "--format", as_format]) == 0
    assert is_harmless(written[0])
    assert b"owned" in written[0]


def test_entries_go_into_a_pipe_as_they_are(url: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["tail", url]) == 0
    assert capfdbinary.readouterr().out == EVIL + b"\n"


def test_purpose_of_a_hold_is_shown_and_not_obeyed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with hold(url, purpose="job\x1b[2J"), terminal(monkeypatch) as written:
        assert main(["stat", url]) == 0
    assert is_harmless(written[0])
    assert rb"job\x1b[2J" in written[0]


def test_name_of_a_folder_is_shown_and_not_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Producer(tmp_path / "lake" / "a\x1b[2Jb") as producer:
        producer.produce(b"x").result()
    with terminal(monkeypatch) as written:
        main(["ls", f"file://{tmp_path}/lake"])
    assert is_harmless(written[0])


def test_events_are_shown_and_not_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = f"file://{tmp_path}/events"
    with open_event_log(log) as opened:
        opened.append("t", Event("kind\x1b[2J", {"text": "\x9b1m"}))
    with terminal(monkeypatch) as written:
        assert main(["events", "tail", log, "--topic", "t"]) == 0
    assert is_harmless(written[0])
    assert rb"kind\x1b[2J" in written[0]


def test_error_never_holds_a_control_character(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stat", "memory://a\x1bcb"]) == 2
    err = capsys.readouterr().err
    assert is_harmless(err.encode())
    assert r"a\x1bcb" in err


def test_log_line_never_holds_a_control_character() -> None:
    record = logging.LogRecord("forebay", logging.INFO, "", 0, "group %s is late", ("a\x1b[2Jb",), None)
    assert EscapingFormatter("%(message)s").format(record) == r"group a\x1b[2Jb is late"


def test_text_without_control_characters_is_left_alone() -> None:
    text = "größer\tals 5 € 🙂\n"
    assert escape(text) == escape(text.encode()) == text


def test_json_on_a_terminal_is_still_json(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as written:
        assert main(["stat", url, "--json"]) == 0
    assert json.loads(written[0])["batches"] == 1

"""The name of a process, as claims record it."""

from __future__ import annotations

import os
import socket

import pytest

from forebay.buffer.base.process import Process, this_process
from forebay.testing import ManualClock


def test_process_is_named_by_host_id_and_time() -> None:
    clock = ManualClock(1_700_000_000_999)
    found = this_process(clock)
    assert found == Process(socket.gethostname(), os.getpid(), 1_700_000_000_999)
    assert str(found) == f"{found.host}/{found.pid} since 2023-11-14T22:13:20+00:00"


def test_forked_child_has_an_id_of_its_own() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, str(this_process(ManualClock()).pid).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as told:
        assert int(told.read()) == child


@pytest.mark.parametrize("name", ["b\udcffad", "w\u00e9b-1"])
def test_host_name_that_is_no_plain_text_can_be_stored(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    assert this_process(ManualClock()).host.isascii()


def test_time_that_no_calendar_has_is_shown_as_a_number() -> None:
    assert str(Process("web-1", 4711, 1 << 62)) == f"web-1/4711 since {1 << 62} ms"

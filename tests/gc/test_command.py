"""`forebay gc`: what it prints and how it exits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forebay.buffer.base.errors import Denied
from forebay.buffer.producer import Producer
from forebay.buffer.store import open_store
from forebay.buffer.store.memory import MemoryStore
from forebay.buffer.topic import create_topic
from forebay.cli import main as forebay_main
from forebay.testing import ManualClock


def main(arguments: list[str], clock: ManualClock | None = None) -> int:
    return forebay_main(["gc", *arguments], clock=clock)


def test_it_collects_once_and_says_what_it_did(pool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pool.append(3, every=1.0)
    pool.read(1)
    pool.age()
    assert main([pool.store.url, "--dry-run"], clock=pool.clock) == 0
    assert "would have deleted 2 objects" in capsys.readouterr().out
    assert len(pool.objects()) == 3
    assert main([pool.store.url, "--json"], clock=pool.clock) == 0
    assert json.loads(capsys.readouterr().out)["deleted"] == 2
    assert len(pool.objects()) == 1


def test_retention_is_passed_on(pool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pool.append(4, every=100.0)
    pool.age(0)
    assert main([pool.store.url, "--retention-age", "250"], clock=pool.clock) == 0
    assert "DROPPED 2 UNREAD" in capsys.readouterr().out
    size = next(iter(pool.store.list("data/"))).size
    assert main([pool.store.url, "--retention-bytes", str(size * 3 // 2)], clock=pool.clock) == 0
    assert len(pool.listed()) == 1


def test_failures_left_over_exit_with_1_and_are_named(
    pool: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (key,) = (pool.upload().location,)
    pool.age()
    monkeypatch.setattr(MemoryStore, "delete", lambda _self, keys: {key: Denied(f"{key} is locked") for key in keys})
    assert main([pool.store.url], clock=pool.clock) == 1
    assert f"failed: {key}: {key} is locked" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["s3a://bucket/x"],
        ["memory://x", "--grace", "-1"],
        ["memory://x", "--retention-age", "0"],
    ],
)
def test_what_cannot_be_done_exits_with_2_and_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1


def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        [],
        ["memory://x", "--every", "0"],
        ["memory://x", "--gra", "3"],
        ["memory://x", "--option", "=v"],
    ):
        assert main(arguments) == 2
        assert "Usage: forebay gc" in capsys.readouterr().err


def test_help_shows_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "examples:" in out
    assert "Exit status:" in out


def test_damaged_buffer_exits_with_2_and_deletes_nothing(pool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pool.upload()
    pool.store.put("manifest", b"nonsense")
    assert main([pool.store.url], clock=pool.clock) == 2
    assert "error: " in capsys.readouterr().err
    assert len(pool.objects()) == 1


def test_every_goes_on_after_errors_until_interrupted(pool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    head = pool.store.get("manifest").data

    naps: list[float] = []

    class Impatient(ManualClock):
        def sleep(self, seconds: float) -> None:
            if seconds < 1:
                return  # between two reads of the damaged manifest
            naps.append(seconds)
            pool.store.put("manifest", b"nonsense" if len(naps) == 1 else head)
            if len(naps) == 3:
                raise KeyboardInterrupt

    assert main([pool.store.url, "--every", "60"], clock=Impatient()) == 130
    out, err = capsys.readouterr()
    assert naps == [60.0] * 3
    assert len(out.splitlines()) == 2
    assert [line.split(":")[0] for line in err.splitlines()] == ["error", "interrupted"]


def test_every_partition_of_a_topic_is_collected(capsys: pytest.CaptureFixture[str]) -> None:
    store = MemoryStore("memory://collected-topic")
    create_topic(store, 2)
    assert main([store.url]) == 0
    assert [line.split(": ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "memory://collected-topic/p-00000",
        "memory://collected-topic/p-00001",
    ]


def test_partition_that_cannot_be_read_exits_with_2_after_the_others(
    topic: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    topic.partitions[0].store.put("manifest", b"nonsense")
    assert main([topic.store.url], clock=topic.clock) == 2
    out, err = capsys.readouterr()
    assert [line.split(": ")[0] for line in out.splitlines()] == [pool.store.url for pool in topic.partitions[1:]]
    assert err.startswith("error: ")
    assert topic.partitions[0].store.url in err
    assert main([topic.store.url, "--json"], clock=topic.clock) == 2
    told = [json.loads(line)["error"] for line in capsys.readouterr().out.splitlines()]
    assert [error is None for error in told] == [False, True, True]


def test_as_a_process_it_ends_cleanly_on_ctrl_c(tmp_path: Any) -> None:
    url = f"file://{tmp_path}/clicks"
    with Producer(url) as producer:
        producer.produce([b"a"]).result()
    command = [Path(sys.executable).with_name("forebay"), "gc", url, "--every", "3600"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background has them ignore Ctrl-C, and what they start as well.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  (it takes no lock)
    )
    assert process.stdout is not None
    assert "kept 1" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert err == "interrupted\n"
    assert len(list(open_store(url).list("data/"))) == 1

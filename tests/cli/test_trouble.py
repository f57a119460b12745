"""Commands that cannot do what was asked: one line that says what to do, and a status that scripts can tell."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Semaphore
from typing import BinaryIO

import click
import pytest
from patience import PATIENCE

import forebay
from forebay.buffer.base.errors import Denied, InvalidInput, Unavailable
from forebay.buffer.format.batch import MAX_ENTRY_BYTES
from forebay.buffer.store.base import Applied
from forebay.buffer.store.memory import MemoryStore
from forebay.cli import _COMMANDS, cli, main
from forebay.cli.doctor import check_store
from forebay.cli.output import write_error
from forebay.cli.produce import read_frames, read_lines
from forebay.testing import ManualClock, ThrottledStore

COMMAND = Path(sys.executable).with_name("forebay")

READING = [
    ["consume", "URL"],
    ["tail", "URL"],
    ["stat", "URL"],
    ["groups", "list", "URL"],
    ["groups", "create", "URL", "etl"],
    ["groups", "reset", "URL", "etl", "--to", "latest"],
    ["groups", "delete", "URL", "etl"],
    ["manifest", "dump", "URL"],
    ["batch", "cat", "URL", "0"],
    ["verify", "URL"],
    ["migrate", "URL", "--others-stopped"],
    ["ls", "URL"],
    ["gc", "URL"],
    ["schema", "show", "URL"],
]
WRITING = [["produce", "URL", "/dev/null"], ["bench", "URL", "--mib", "8"]]


def one_error(arguments: list[str], url: str, capsys: pytest.CaptureFixture[str]) -> str:
    status = main([url if part == "URL" else part for part in arguments])
    out, err = capsys.readouterr()
    assert status == 2, (out, err)
    errors = [line for line in err.splitlines() if line.startswith(("error: ", "Error: "))]
    assert len(errors) == 1, err
    assert "Traceback" not in err
    return errors[0]


@pytest.mark.parametrize("arguments", [*READING, *WRITING, ["doctor", "URL"]], ids=" ".join)
def test_wrong_url_is_told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if arguments[0] == "doctor":
        assert main(["doctor", "ftp://clicks"]) == 1
        assert "FAILED  store" in capsys.readouterr().out
        return
    assert "clicks" in one_error(arguments, "ftp://clicks", capsys)


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_missing_buffer_is_told_and_not_created(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path}/not-there"
    told = one_error(arguments, url, capsys)
    assert "not-there" in told
    assert "check the URL" in told
    assert not (tmp_path / "not-there").exists()


def test_page_waits_for_a_buffer_that_is_not_there_and_says_so(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/not-there"
    process = subprocess.Popen([COMMAND, "ui", url, "--port", "0"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        assert process.stderr.readline() == (
            f"nothing was written to {url} yet: the page waits for it. Check the URL if this lasts\n"
        )
        assert f"{url} is shown at http://127.0.0.1:" in process.stderr.readline()
    finally:
        process.kill()
        process.communicate()
    assert not (tmp_path / "not-there").exists()


@pytest.mark.parametrize("arguments", [*READING, *WRITING], ids=" ".join)
def test_denied_bucket_is_told_with_what_to_check(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(store: MemoryStore, *_arguments: object, **_settings: object) -> None:
        raise Denied(f"{store.url.replace('memory', 's3')}: access was denied")

    for method in ("get", "get_if_changed", "put", "create", "replace", "list", "delete"):
        monkeypatch.setattr(MemoryStore, method, deny)
    assert "check the credentials" in one_error(arguments, "memory://denied", capsys)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (Denied("s3://lake/x: denied"), "--option key=… --option secret=…, or the environment"),
        (Denied("gs://lake/x: denied"), "--option service_account_path=…, or the environment"),
        (Denied("az://lake/x: denied"), "--option account_name=… --option account_key=…, or the environment"),
        (Unavailable("az://lake/x: no answer"), "check the network"),
    ],
)
def test_hint_names_options_of_the_store_that_failed(
    error: Exception, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_error(error)
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("error", [Denied("file:///x: denied"), Unavailable("file:///x: the disk is full")])
def test_hint_speaks_of_no_credentials_or_network_where_there_are_none(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    write_error(error)
    assert capsys.readouterr().err == f"error: {error}\n"


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_empty_buffer_is_no_trouble(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{tmp_path}/empty"
    forebay.Consumer(url).close()
    status = main([url if part == "URL" else part for part in arguments])
    err = capsys.readouterr().err
    if arguments[:2] in (["groups", "reset"], ["groups", "delete"]):
        assert "no group 'etl'" in err
    elif arguments[0] == "batch":
        assert "lists no batch 0" in err
    else:
        assert (status, err) == (0, "")


def test_topic_where_one_buffer_is_meant_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{tmp_path}/topic"
    forebay.buffer.create_topic(url, 2)
    assert "p-00000" in one_error(["batch", "cat", "URL", "0"], url, capsys)


def test_doctor_warns_of_a_store_that_does_not_enforce_conditions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryStore, "replace", lambda store, key, data, _version: Applied(store.put(key, data)))
    assert main(["doctor", "memory://lenient"]) == 1
    out = capsys.readouterr().out
    assert "FAILED  conditional writes: a second create was not applied (" in out
    assert "a stale replace was applied; then the object held write 4 of 4" in out
    assert "do not use this store" in out


def test_doctor_measures_how_often_the_store_takes_writes_of_one_object() -> None:
    clock = ManualClock()
    inner = MemoryStore("memory://throttled-doctor", clock=clock)
    checks = {check.what: check for check in check_store(ThrottledStore(inner, 1.0, clock=clock), clock)}
    assert "failed" not in {check.result for check in checks.values()}
    assert checks["conditional writes"].found.startswith("enforced")
    rate = checks["writes of one object"]
    assert (rate.result, rate.found.partition("throttled")[0]) == ("note", "1.0 a second; the store ")
    assert "use a topic with more partitions" in rate.advice
    assert list(inner.list()) == []
    assert clock.monotonic() < 15


def test_doctor_says_that_a_store_takes_writes_as_they_come(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert main(["doctor", "memory://quick-doctor"]) == 0
    out = capsys.readouterr().out
    assert "ok      writes of one object:" in out
    assert "none was throttled" in out


def test_doctor_tells_what_is_denied(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(*_arguments: object) -> None:
        raise Denied("access was denied")

    monkeypatch.setattr(MemoryStore, "create", deny)
    assert main(["doctor", "memory://denied-doctor"]) == 1
    assert "FAILED  store: Denied: access was denied" in capsys.readouterr().out


def test_unexpected_error_is_one_line_and_a_trace_with_debug(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object, **_settings: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(MemoryStore, "get", fail)
    assert "please report it" in one_error(["stat", "URL"], "memory://bug", capsys)
    with pytest.raises(ZeroDivisionError):
        main(["--debug", "stat", "memory://bug"])
    monkeypatch.setenv("FOREBAY_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["stat", "memory://bug"])


def test_help_loads_nothing_heavy_and_starts_nearly_as_fast_as_python() -> None:
    """The promise is 0.3 s; bare Python takes about 0.02 s. A ratio of processor time holds on any machine."""
    program = (
        "import sys\n"
        "from forebay.cli import main\n"
        "main(['--help'])\n"
        "heavy = {'pyarrow', 'pyspark', 'msgspec', 'zstandard', 's3fs', 'rich'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert all(name in done.stdout for name in _COMMANDS)

    def least_work(command: list[str | Path]) -> float:
        """Seconds of processor time."""
        taken = []
        for _ in range(5):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = status
            assert status == 0
            taken.append(used.ru_utime + used.ru_stime)
        return min(taken)

    assert least_work([COMMAND, "--help"]) < 15 * least_work([sys.executable, "-c", "pass"])


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_command_explains_itself_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"Usage: forebay {name}" in out
    assert name == "objects" or "examples:" in out


def test_no_command_and_an_unknown_one_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Commands:" in capsys.readouterr().err
    assert main(["sweep"]) == 2
    assert "No such command 'sweep'" in capsys.readouterr().err


def commands_of(command: click.Command) -> Iterator[click.Command]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands_of(found)
    else:
        yield command


def statuses_told(text: str) -> set[int]:
    return {int(number) for number in re.findall(r"\b\d+\b", text.partition("Exit status:")[2])}


def test_no_command_tells_an_exit_status_that_the_general_help_does_not_tell() -> None:
    known = statuses_told(cli.epilog or "")
    assert known == {0, 1, 2, 130, 141, 143}
    for command in commands_of(cli):
        told = statuses_told(f"{command.help}{command.epilog}")
        assert told <= known, command.name


def test_reader_of_the_output_may_go(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/clicks"
    with forebay.Producer(url) as producer:
        for _ in range(20):
            producer.produce([b"x" * 100_000] * 5).result()
    done = subprocess.run(
        ["bash", "-c", f"{COMMAND} consume {url} --group etl | head -c 10; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "x" * 10 + "141\n"
    assert done.stderr == ""
    assert forebay.buffer.Groups(url).describe("etl").waiting > 0, "what was not printed is not acknowledged"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_ctrl_c_and_sigterm_store_what_was_read(number: signal.Signals, status: int, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/clicks"
    process = subprocess.Popen(
        [COMMAND, "produce", url, "--flush-interval", "3600"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell that runs the tests in the background has them ignore Ctrl-C, and what they start as well.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  (it takes no lock)
    )
    assert process.stdin is not None
    process.stdin.write(b"one\n" * 100_000 + b"half")  # more than a pipe holds: what was written was mostly read
    process.stdin.flush()
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == status
    stored = [entry for batch in forebay.Consumer(url) for entry in batch.entries]
    assert set(stored) == {b"one"}
    assert b"are durable" in err


def test_batch_that_cannot_be_stored_is_told_though_later_ones_can(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put, stored = MemoryStore.put, Semaphore(0)
    lines = [b"one\n", b"two\n", b"three\n"]

    def deny_the_second(store: MemoryStore, key: str, data: bytes) -> str:
        stored.release()
        if len(lines) == 1:
            raise Denied("access was denied")
        return put(store, key, data)

    class Input(io.BufferedIOBase):
        """Gives a line once the one before is in a batch."""

        def read1(self, size: int = -1, /) -> bytes:
            if not size or not lines or (len(lines) < 3 and not stored.acquire(timeout=PATIENCE)):
                return b""
            return lines.pop(0)

        read = read1

    monkeypatch.setattr(MemoryStore, "put", deny_the_second)
    monkeypatch.setattr("sys.stdin", Input())
    assert main(["produce", "memory://denied-once", "--flush-interval", "0.001"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == "1 entry not known to be durable"
    assert "error: access was denied" in err


@pytest.mark.parametrize("read", [read_lines, read_frames])
def test_entry_without_an_end_is_refused_before_memory_is_full(
    read: Callable[[BinaryIO, int], Iterator[list[bytes]]],
) -> None:
    endless = io.BytesIO(b"x" * (4 << 20))
    with pytest.raises(InvalidInput, match="the most is 1048576"):
        list(read(endless, 1 << 20))
    assert endless.tell() <= 2 << 20


def test_entry_that_no_batch_can_hold_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "endless").write_bytes(b"\xff" * 8)
    told = one_error(["produce", "URL", str(tmp_path / "endless"), "--length-prefixed"], "memory://endless", capsys)
    assert f"the most is {MAX_ENTRY_BYTES}" in told


@pytest.mark.parametrize("place", ["--5", "²"])
def test_odd_place_is_told(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{tmp_path}/clicks"
    forebay.Consumer(url, group="etl").close()
    assert "unexpected" not in one_error(["groups", "reset", "URL", "etl", f"--to={place}"], url, capsys)
    assert "unexpected" not in one_error(["batch", "cat", "URL", "--", place], url, capsys)

"""Files of an event log in every version of their lines, kept for ever: each must read as when it was written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from forebay.buffer.eventlog import Event, open_event_log
from forebay.buffer.eventlog.lines import LinesFile
from forebay.buffer.eventlog.model import encode_event

HERE = Path(__file__).parent

EVENTS = [
    Event("job.started", {"id": 7, "parts": [1, 2.5, None, True, "é"]}, {"host": "a"}, 1_700_000_000_000),
    Event("job.data", b"\x00\x01\xff", {}, 1_700_000_000_001),
    Event("job.finished", None, {}, 1_700_000_000_002),
]
"""They follow offset 41, up to which the file was compacted."""


def put_golden(version: int, folder: Path) -> Path:
    """A log with one topic, whose partition is the golden file."""
    (folder / "jobs").mkdir(parents=True)
    (folder / "jobs" / "topic.json").write_text('{"partitions":1}')
    return Path(shutil.copy(HERE / f"event-lines-v{version}.jsonl", folder / "jobs" / "p-00000.jsonl"))


@pytest.mark.parametrize("version", [1, 2])
def test_file_of_every_version_reads_as_it_was_written(tmp_path: Path, version: int) -> None:
    put_golden(version, tmp_path)
    with open_event_log(f"file://{tmp_path}") as log:
        records = log.read_range("jobs")
        assert [(record.offset, record.event) for record in records] == list(enumerate(EVENTS, 42))
        assert log.append("jobs", Event("later")) == 45
        assert log.read_range("jobs", after=44)[0].event.kind == "later"


def test_file_of_version_1_goes_on_in_it_until_a_compaction_makes_it_version_2(tmp_path: Path) -> None:
    path = put_golden(1, tmp_path)
    before = path.read_bytes()
    with open_event_log(f"file://{tmp_path}") as log:
        log.append("jobs", Event("later", time_ms=5))
        assert path.read_bytes() == before + b'{"offset":45,"kind":"later","time_ms":5}\n'
        log.compact("jobs", 42)
        assert path.read_bytes().startswith(b'{"forebay":"events","version":2,"first":43,"crc32c":')
        kinds = [(record.offset, record.event.kind) for record in log.read_range("jobs")]
    assert kinds == [(43, "job.data"), (44, "job.finished"), (45, "later")]


def test_new_file_is_written_byte_for_byte_as_the_golden_one_of_version_2(tmp_path: Path) -> None:
    path = tmp_path / "p-00000.jsonl"
    lines = LinesFile(path)
    lines.append([encode_event(Event("before"), 0)] * 42)
    lines.append([encode_event(event, 0) for event in EVENTS])
    lines.compact(41)
    assert path.read_bytes() == (HERE / "event-lines-v2.jsonl").read_bytes()

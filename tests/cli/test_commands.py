"""What each command does with a buffer that is well."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.buffer.base.process import this_process
from forebay.buffer.eventlog import AuditTrail, Event, open_event_log
from forebay.buffer.groups import Groups, open_cursor
from forebay.buffer.store import open_store
from forebay.buffer.topic import TopicConsumer, create_topic
from forebay.cli import main
from forebay.cli.stat import format_rate
from forebay.testing import ManualClock

Shown = Callable[..., str]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A buffer of three batches, of two entries each."""
    url = f"file://{tmp_path}/lake/clicks"
    with forebay.Producer(url, flush_interval=0.001) as producer:
        for number in range(3):
            producer.produce([b"%d-a" % number, b"%d-b" % number], metadata=b"from=test").result()
    return url


@pytest.fixture
def topic(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/lake/topic"
    create_topic(url, 2)
    return url


def feed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def values(url: str) -> list[bytes]:
    return [entry for batch in forebay.Consumer(url, group="check") for entry in batch.entries]


# Writing


@pytest.mark.parametrize("data", [b"one\ntwo\n\nfour", b"one\ntwo\n\nfour\n"])
def test_produce_makes_an_entry_of_each_line_of_standard_input(
    tmp_path: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    feed(monkeypatch, data)
    told = json.loads(shown("produce", f"file://{tmp_path}/new", "--metadata", "host=a", "--json"))
    assert (told["entries"], told["bytes"]) == (4, 10)
    (batch,) = forebay.Consumer(f"file://{tmp_path}/new")
    assert list(batch.entries) == [b"one", b"two", b"", b"four"]
    assert batch.metadata[0].payload == b"host=a"


def test_produce_keeps_lines_whole_that_are_longer_than_what_is_read_at_once(tmp_path: Path, shown: Shown) -> None:
    lines = [b"x" * (3 << 20), b"y", b"z" * (1 << 20)]
    file = tmp_path / "lines"
    file.write_bytes(b"\n".join(lines))
    shown("produce", f"file://{tmp_path}/new", str(file))
    assert values(f"file://{tmp_path}/new") == lines


def test_produce_takes_length_prefixed_entries_and_refuses_half_of_one(
    tmp_path: Path, shown: Shown, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = [b"a\nb", b"", b"\x00" * 70_000]
    file = tmp_path / "frames"
    file.write_bytes(b"".join(len(frame).to_bytes(4, "little") + frame for frame in frames))
    shown("produce", f"file://{tmp_path}/new", str(file), "--length-prefixed")
    assert values(f"file://{tmp_path}/new") == frames
    file.write_bytes(file.read_bytes()[:-1])
    assert main(["produce", f"file://{tmp_path}/torn", str(file), "--length-prefixed"]) == 2
    assert "in the middle of an entry" in capsys.readouterr().err
    assert values(f"file://{tmp_path}/torn") == frames[:2]


def test_produce_writes_to_a_topic(topic: str, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, b"one\ntwo\n")
    shown("produce", topic)
    assert sorted(shown("tail", topic).split()) == ["one", "two"]


# Reading


def test_consume_prints_and_acknowledges(url: str, shown: Shown) -> None:
    assert shown("consume", url, "--group", "etl", "--max-batches", "2").split() == ["0-a", "0-b", "1-a", "1-b"]
    assert shown("consume", url, "--group", "etl").split() == ["2-a", "2-b"]
    assert shown("consume", url, "--group", "etl") == ""
    assert shown("consume", url, "--group", "late", "--from", "latest") == ""
    assert shown("consume", url, "--group", "second", "--from", "2").split() == ["2-a", "2-b"]


def test_consume_acknowledges_many_batches_with_one_write(url: str) -> None:
    assert main(["consume", url, "--group", "etl"], clock=ManualClock()) == 0
    store = open_store(url)
    generation = Groups(store).describe("etl").generation
    cursor = open_cursor(store, "etl", generation).read().value
    assert cursor is not None
    assert (cursor.acked, cursor.number) == (2, 3), "one write to claim the group, one for all acks, one to let it go"


def test_consume_reads_a_topic(topic: str, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, b"one\ntwo\n")
    shown("produce", topic)
    assert shown("consume", topic, "--group", "etl").split() == ["one", "two"]
    assert shown("consume", topic, "--group", "etl") == ""


def test_tail_prints_the_newest_and_changes_nothing(url: str, shown: Shown) -> None:
    before = open_store(url).get("manifest").version
    assert shown("tail", url, "-n", "3").split() == ["1-b", "2-a", "2-b"]
    assert len(shown("tail", url, "-n", "100").split()) == 6
    assert shown("tail", url, "-n", "0") == ""
    assert open_store(url).get("manifest").version == before


def test_tail_follows_what_is_appended(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    class Appending(ManualClock):
        looks = 0

        def sleep(self, seconds: float) -> None:
            self.looks += 1
            if self.looks == 3:
                raise KeyboardInterrupt
            with forebay.Producer(url) as producer:
                producer.produce(b"new-%d" % self.looks)

    assert main(["tail", url, "-n", "1", "--follow"], clock=Appending()) == 130
    assert capsys.readouterr().out.split() == ["2-b", "new-1", "new-2"]


def test_entries_are_printed_as_json_and_as_hex(url: str, shown: Shown) -> None:
    with forebay.Producer(url) as producer:
        producer.produce([b"\xff\x00"])
    text, raw = (json.loads(line) for line in shown("tail", url, "-n", "2", "--format", "json").splitlines())
    assert (text["sequence"], text["index"], text["value"], text["metadata"]) == (2, 1, "2-b", "from=test")
    assert text["ingestion_time"].endswith("+00:00")
    assert raw["value_base64"] == "/wA="
    assert shown("tail", url, "-n", "1", "--format", "hex") == "ff00\n"


# Looking


def test_stat_shows_depth_and_lag(url: str, shown: Shown) -> None:
    shown("consume", url, "--group", "etl", "--max-batches", "2")
    out = shown("stat", url)
    assert "3 batches, 6 entries" in out
    assert out.splitlines()[-1].split()[:4] == ["etl", "1", "1", "2"]
    told = json.loads(shown("stat", url, "--json"))
    assert (told["batches"], told["groups"][0]["lag_batches"]) == (3, 1)


@pytest.mark.parametrize(
    ("rate", "shown_as"),
    [(0.0, "0 entries"), (0.21, "0.21 entries"), (0.996, "1 entry"), (9.04, "9 entries"), (1234.5, "1,234 entries")],
)
def test_small_rate_is_not_shown_as_none(rate: float, shown_as: str) -> None:
    assert format_rate(rate, "entry") == shown_as


def test_ls_finds_buffers_and_topics_and_looks_into_neither(url: str, topic: str, shown: Shown, tmp_path: Path) -> None:
    with forebay.Producer(f"file://{tmp_path}/lake/clicks-2/deep/one") as producer:
        producer.produce(b"x")
    open_store(f"file://{tmp_path}/lake").put("other/data/x.batch", b"nobody's")
    rows = [line.split()[:2] for line in shown("ls", f"file://{tmp_path}/lake").splitlines()]
    assert rows == [["name", "kind"], ["clicks", "buffer"], ["clicks-2/deep/one", "buffer"], ["topic", "topic"]]
    assert shown("ls", url).splitlines()[1].split()[:3] == [".", "buffer", "3"]
    told = [json.loads(line) for line in shown("ls", f"file://{tmp_path}/lake", "--json").splitlines()]
    assert [found["partitions"] for found in told] == [1, 1, 2]


def test_buffers_in_a_folder_that_is_called_as_their_own_are_listed(tmp_path: Path, shown: Shown) -> None:
    lake = tmp_path / "lake"
    for name in ("data/clicks", "raw/data", "raw/data/old/clicks"):
        (lake / name).mkdir(parents=True)
        (lake / name).with_name("a file").touch()
    for name in ("data/clicks", "raw/data"):
        with forebay.Producer(f"file://{lake}/{name}") as producer:
            producer.produce(b"click")
    told = [json.loads(line)["url"] for line in shown("ls", f"file://{lake}", "--json").splitlines()]
    assert told == [f"file://{lake}/data/clicks", f"file://{lake}/raw/data"]


def test_manifest_dump_shows_every_batch_of_both_versions(url: str, shown: Shown, tmp_path: Path) -> None:
    old = f"file://{tmp_path}/old"
    with forebay.Producer(old, profile="opendata", manifest_path="manifest") as producer:
        producer.produce(b"x", metadata=b"m")
    two, one = json.loads(shown("manifest", "dump", url)), json.loads(shown("manifest", "dump", old))
    assert (two["version"], [found["sequence"] for found in two["batches"]]) == (2, [0, 1, 2])
    assert two["batches"][0]["facts"]["records"] == 2
    assert two["head"]["groups"] == {}
    assert (one["version"], one["batches"][0]["facts"], one["epoch"]) == (1, None, 0)
    assert one["batches"][0]["metadata"][0]["payload"] == "bQ=="
    assert [found["sequence"] for found in json.loads(shown("manifest", "dump", url, "--first", "2"))["batches"]] == [2]


def test_batch_cat_finds_a_batch_by_sequence_and_by_location(url: str, shown: Shown) -> None:
    assert shown("batch", "cat", url, "1").split() == ["1-a", "1-b"]
    location = json.loads(shown("manifest", "dump", url))["batches"][1]["location"]
    assert shown("batch", "cat", url, location).split() == ["1-a", "1-b"]
    assert shown("batch", "cat", url, f"{url}/{location}").split() == ["1-a", "1-b"]


@pytest.mark.parametrize("kind", ["buffer", "topic"])
def test_groups_are_created_listed_reset_and_deleted(kind: str, url: str, topic: str, shown: Shown) -> None:
    place = url if kind == "buffer" else topic
    assert shown("groups", "list", place) == "no groups\n"
    shown("groups", "create", place, "etl", "--to", "latest")
    assert shown("groups", "list", place).splitlines()[1].split()[-2:] == ["0", "no"]
    shown("groups", "reset", place, "etl", "--to", "earliest")
    (told,) = [json.loads(line) for line in shown("groups", "list", place, "--json").splitlines()]
    assert (told["name"], told["waiting"]) == ("etl", 3 if kind == "buffer" else 0)
    shown("groups", "delete", place, "etl")
    assert shown("groups", "list", place) == "no groups\n"


@pytest.mark.parametrize("kind", ["buffer", "topic"])
def test_process_that_has_a_group_is_named(kind: str, url: str, topic: str, shown: Shown) -> None:
    clock = ManualClock()
    place = url if kind == "buffer" else topic
    opened: Any = forebay.Consumer if kind == "buffer" else TopicConsumer
    owner = this_process(clock)
    with opened(place, group="etl", clock=clock):
        assert shown("groups", "list", place).endswith(f"  {owner}\n")
        assert shown("stat", place).endswith(f"  {owner}\n")
        told = json.loads(shown("groups", "list", place, "--json"))
        assert told["owner"] == {"host": owner.host, "pid": owner.pid, "since_ms": clock.now_ms()}
        told = json.loads(shown("stat", place, "--json").splitlines()[0])
        assert told["groups"][0]["owner"]["pid"] == owner.pid
    assert shown("groups", "list", place).endswith("  no\n")
    assert shown("stat", place).endswith("  no\n")


def test_process_that_opened_the_unnamed_consumer_is_named(url: str, shown: Shown) -> None:
    clock = ManualClock()
    with forebay.Consumer(url, clock=clock):
        assert shown("stat", url).endswith(f"  {this_process(clock)}\n")


# Keeping


def test_verify_gc_and_migrate_work_on_what_is_there(url: str, shown: Shown, tmp_path: Path) -> None:
    assert "ok: 3 batches" in shown("verify", url)
    assert json.loads(shown("gc", url, "--dry-run", "--json"))["deleted"] == 0
    assert "nothing was changed" in shown("migrate", url)
    old = f"file://{tmp_path}/old"
    with forebay.Producer(old, profile="opendata", manifest_path="manifest") as producer:
        producer.produce(b"x")
    assert json.loads(shown("migrate", old, "--others-stopped", "--json"))["migrated"]
    assert json.loads(shown("stat", old, "--json"))["version"] == 2


def test_events_are_listed_described_and_found_by_object(tmp_path: Path, shown: Shown) -> None:
    place = str(tmp_path / "events.db")
    with open_event_log(place) as log:
        trail = AuditTrail(log)
        trail.record("delete.started", "s3://lake/clicks", objects=["data/1.batch"])
        trail.record("runtime.fenced", "s3://lake/clicks", group="etl")
        log.append("orders", Event("made", b"\x01"))
    lines = shown("events", "tail", place).splitlines()
    assert [line.split()[2:] for line in lines] == [
        ["delete.started", "s3://lake/clicks", "1", "object:", "data/1.batch"],
        ["runtime.fenced", "s3://lake/clicks", "group", "etl"],
    ]
    assert json.loads(shown("events", "tail", place, "-n", "1", "--json"))["payload"]["group"] == "etl"
    assert shown("events", "tail", f"sqlite://{place}", "--topic", "orders").split()[-2:] == ["made", "01"]
    assert json.loads(shown("events", "describe", place, "--json"))["next_offsets"] == [2]
    for command in ("describe", "tail"):
        shown("events", command, str(tmp_path / "not-there.db"), status=2)
    assert shown("events", "tail", place, "--topic", "empty") == ""
    history = shown("objects", "history", place, "s3://lake/clicks/data/1.batch")
    assert "delete.started" in history
    assert "object:" not in history
    assert shown("objects", "history", place, "data/2.batch", status=1) == ""


def test_event_is_told_in_a_line_that_a_person_can_read(tmp_path: Path, shown: Shown) -> None:
    place = str(tmp_path / "events.db")
    with open_event_log(place) as log:
        trail = AuditTrail(log)
        keys = [f"data/{number}.batch" for number in range(1000)]
        trail.record("delete.finished", "s3://lake/clicks", objects=keys, failed={"data/7.batch": "access\ndenied"})
        log.append("orders", Event("made", {"id": 7, "lines": [{"sku": "a"}], "note": None}, time_ms=1_700_000_000_000))
        log.append("orders", Event("paid", b"in full", time_ms=1_700_000_000_000))
    (line,) = shown("events", "tail", place).splitlines()
    assert line.partition("Z  ")[2] == (
        "delete.finished  s3://lake/clicks  1000 objects: data/0.batch … data/999.batch, "
        "1 failed: data/7.batch: access denied"
    )
    assert shown("events", "tail", place, "--topic", "orders").splitlines() == [
        '2023-11-14 22:13:20Z  made             id 7, 1 line: {"sku": "a"}',
        "2023-11-14 22:13:20Z  paid             in full",
    ]


def test_collector_tells_an_event_log(url: str, shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown("consume", url)
    monkeypatch.setenv("FOREBAY_EVENT_LOG", str(tmp_path / "events.db"))
    assert json.loads(shown("gc", url, "--grace", "0", "--json"))["deleted"] > 0
    kinds = [line.split()[2] for line in shown("events", "tail").splitlines()]
    assert kinds == ["delete.started", "delete.finished"]


# This machine


def test_doctor_finds_a_store_that_does_what_is_needed(url: str, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    out = shown("doctor", url)
    assert "FAILED" not in out
    assert "conditional writes: enforced" in out
    assert "buffer: 3 batches" in out
    assert list(Path(url.removeprefix("file://")).glob("doctor-*")) == []
    checks = [json.loads(line) for line in shown("doctor", "--json").splitlines()]
    assert [check["what"] for check in checks] == ["versions", "obstore", "s3fs", "Java", "Spark"]


@pytest.mark.parametrize("kind", [[], ["--typed"]], ids=["bytes", "typed"])
def test_bench_measures_and_leaves_nothing(kind: list[str], tmp_path: Path, shown: Shown) -> None:
    url = f"file://{tmp_path}/scratch"
    lines = [json.loads(line) for line in shown("bench", url, "--mib", "8", "--json", *kind).splitlines()]
    assert [found["what"] for found in lines][::2] == ["produce", "consume", "time to durable"]
    assert all(found["mb_per_second"] > 0 for found in lines[:-1])
    assert list(Path(url.removeprefix("file://")).iterdir()) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_for_a_shell(shell: str, shown: Shown) -> None:
    assert "_FOREBAY_COMPLETE" in shown("completion", shell)


# Settings


def test_settings_come_from_a_file_and_from_the_environment(
    url: str, shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "forebay.toml"
    config.write_text('[tail]\nentries = 1\nformat = "hex"\n[gc]\ndry-run = true\n[groups.list]\njson = true\n')
    assert shown("--config", str(config), "tail", url) == f"{b'2-b'.hex()}\n"
    assert "would have deleted" in shown("--config", str(config), "gc", url)
    assert shown("--config", str(config), "groups", "list", url) == ""
    monkeypatch.setenv("FOREBAY_TAIL_ENTRIES", "2")
    assert shown("tail", url).split() == ["2-a", "2-b"]
    monkeypatch.setenv("FOREBAY_TAIL_FORMAT", "hex")
    assert shown("tail", url).split() == [b"2-a".hex(), b"2-b".hex()]
    monkeypatch.setenv("FOREBAY_GROUPS_LIST_JSON", "1")
    assert shown("groups", "list", url) == ""


def test_settings_that_nobody_knows_are_refused(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "forebay.toml"
    for text in ("[tial]\nentries = 1\n", "entries = 1\n", "[tail]\nentires = 1\n", "nonsense"):
        config.write_text(text)
        assert main(["--config", str(config), "tail", url]) == 2
        assert "--config" in capsys.readouterr().err


def test_storage_options_come_from_the_file_the_environment_and_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(
        "forebay.cli.target.open_store", lambda url, options: given.append(options) or open_store("memory://options")
    )
    config = tmp_path / "forebay.toml"
    config.write_text('[storage_options]\nregion = "file"\nkey = "file"\n')
    monkeypatch.setenv("FOREBAY_OPTIONS", "key=environment secret=environment")
    main(["--config", str(config), "verify", "s3://lake/x"])
    main(["--config", str(config), "verify", "s3://lake/x", "--option", "key=line"])
    assert given == [
        {"region": "file", "key": "environment", "secret": "environment"},
        {"region": "file", "key": "line"},
    ]

"""From a URL, a path or the environment to a log; and looking without touching."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.buffer.base.errors import InvalidInput, NotFound, Unsupported
from forebay.buffer.eventlog import Description, Event, describe_event_log, open_event_log
from forebay.testing.servers import MotoServer


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("memory://opened", "memory"),
        ("file://{folder}/lines", "file"),
        ("sqlite://{folder}/events.db", "sqlite"),
        ("{folder}/events.db", "sqlite"),
        ("objects+file://{folder}/objects", "objects"),
        ("objects+memory://opened-objects", "objects"),
        ("s3://bucket/log", "objects"),
    ],
)
def test_url_says_which_home(tmp_path: Path, url: str, kind: str) -> None:
    with open_event_log(url.format(folder=tmp_path)) as log:
        assert repr(log).startswith("<EventLog ")
        assert log._backend.kind == kind


@pytest.mark.parametrize("kind", ["file://{}/lines", "sqlite://{}/events.db", "objects+file://{}/objects"])
def test_description_names_a_url_that_opens_the_same_log(tmp_path: Path, kind: str) -> None:
    with open_event_log(kind.format(tmp_path)) as log:
        log.append("jobs", Event("a"))
        location = log.describe().location
    with open_event_log(location) as again:
        assert len(again.read_range("jobs")) == 1


def test_path_is_a_database_wherever_the_process_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_event_log("events.db") as log, open_event_log(Path("events.db")) as other:
        monkeypatch.chdir("/")
        log.append("jobs", Event("a"))
        assert len(other.read_range("jobs")) == 1
    assert (tmp_path / "events.db").exists()


def test_folder_with_odd_characters_is_found_by_its_url(tmp_path: Path) -> None:
    folder = tmp_path / "a b%20c"
    folder.mkdir()
    quoted = str(folder).replace("%", "%25").replace(" ", "%20")
    for url in (f"file://{quoted}", f"sqlite://{quoted}/events.db"):
        with open_event_log(url) as log:
            log.append("jobs", Event("a"))
    assert {path.name for path in folder.iterdir()} >= {"jobs", "events.db"}


def test_environment_names_the_log_where_nothing_else_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_EVENT_LOG", f"sqlite://{tmp_path}/env.db")
    with open_event_log() as log:
        assert log.url.endswith("env.db")
    with open_event_log(f"sqlite://{tmp_path}/given.db") as log:
        assert log.url.endswith("given.db")
    assert describe_event_log().backend == "sqlite"


@pytest.mark.parametrize("value", [None, ""])
def test_no_log_named_anywhere_says_what_to_do(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOREBAY_EVENT_LOG", raising=False)
    if value is not None:
        monkeypatch.setenv("FOREBAY_EVENT_LOG", value)
    with pytest.raises(InvalidInput, match="FOREBAY_EVENT_LOG"):
        open_event_log()


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("sqlite://relative/events.db", InvalidInput),
        ("sqlite:///", InvalidInput),
        ("sqlite:///folder/", InvalidInput),
        ("file://host/folder", InvalidInput),
        ("kafka://broker", Unsupported),
        ("objects+kafka://broker", Unsupported),
        ("s3://user:password@bucket/log", InvalidInput),
    ],
)
def test_url_that_cannot_be_is_refused_without_its_secrets(url: str, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        open_event_log(url)
    assert "password" not in str(caught.value)


@pytest.mark.parametrize("settings", [{"depth": 0}, {"depth": 1.5}, {"poll_interval": 0}, {"poll_interval": "1"}])
def test_setting_that_cannot_be_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(settings))):
        open_event_log("memory://settings", **settings)


def test_storage_options_are_for_object_storage_alone(tmp_path: Path) -> None:
    for url in (f"file://{tmp_path}", f"{tmp_path}/events.db", "memory://options"):
        with pytest.raises(InvalidInput, match="takes no storage options"):
            open_event_log(url, storage_options={"key": "secret"})


@pytest.mark.parametrize("kind", ["file://{}/lines", "sqlite://{}/events.db", "objects+file://{}/objects"])
def test_looking_makes_nothing(tmp_path: Path, kind: str) -> None:
    url = kind.format(tmp_path)
    assert describe_event_log(url) == Description(kind.partition(":")[0].partition("+")[0], url, 0, 1024)
    with open_event_log(url) as log:
        records, assignment = log.subscribe("jobs", {0: 0})
        assert records.poll(0) is None
        assignment.remove(0)
        assert (log.read_range("jobs"), log.latest("jobs"), log.cursor("jobs", "etl")) == ([], None, None)
        log.compact("jobs", 3)
        log.flush()
        with pytest.raises(InvalidInput):
            log.append("jobs", Event("a", object()))
        with pytest.raises(InvalidInput):
            log.append("jobs", Event("a"), partition=1)
    assert list(tmp_path.iterdir()) == []


def test_log_in_s3_works_over_the_wire(moto: MotoServer) -> None:
    options = moto.storage_options
    with open_event_log("s3://tests/event-log", storage_options=options) as log:
        log.append_many("jobs", [Event("a", number) for number in range(3)])
        log.ack("jobs", "etl", 1)
        log.compact("jobs", 0)
        records, _ = log.subscribe("jobs", {0: 0})
        assert [next(records).offset, next(records).offset] == [1, 2]
    with open_event_log("s3://tests/event-log", storage_options=options) as log:
        assert (log.cursor("jobs", "etl"), log.latest("jobs")) == (1, 2)
        assert (log.describe().size_bytes or 0) > 0


def test_bucket_that_is_not_there_is_not_an_empty_log(moto: MotoServer) -> None:
    with open_event_log("s3://no-such-bucket/log", storage_options=moto.storage_options) as log:
        with pytest.raises(NotFound):
            log.read_range("jobs")
        with pytest.raises(NotFound):
            log.append("jobs", Event("a"))

"""The errors that users meet most, really provoked: each says what is wrong, where, and what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.buffer.either.dispatch import is_topic
from forebay.buffer.format.batch import MAX_ENTRY_BYTES
from forebay.buffer.groups import Groups
from forebay.buffer.topic import create_topic
from forebay.runtime import CallableSink, DeltaSink, Runtime, Source
from forebay.testing.proxy import CannedServer, http_answer

SCHEMA = pa.schema([pa.field("user", pa.int64())])


@dataclass(frozen=True)
class Place:
    """Where an error is provoked."""

    folder: Path

    @property
    def url(self) -> str:
        return f"file://{self.folder}/clicks"

    @property
    def object(self) -> Path:
        """The one batch that is stored."""
        (found,) = (self.folder / "clicks" / "data").glob("*.batch")
        return found


def fill(place: Place, **settings: Any) -> None:
    with forebay.Producer(place.url, **settings) as producer:
        producer.produce([{"user": 7}] if "schema" in settings else [b"one"])


def produce(place: Place, entries: Any, **settings: Any) -> None:
    with forebay.Producer(place.url, **settings) as producer:
        producer.produce(entries).result()


def ask_s3(answer: bytes, url: str = "s3://lake/clicks") -> None:
    with CannedServer(answer) as server:
        options = {"endpoint_url": server.endpoint_url, "key": "k", "secret": "s", "region": "x", "max_attempts": 1}
        forebay.open_store(url, options).get("manifest")


def s3_error(status: int, code: str) -> bytes:
    return http_answer(status, f"<Error><Code>{code}</Code><Message>a message</Message></Error>".encode())


def produce_after_close(place: Place) -> None:
    producer = forebay.Producer(place.url)
    producer.close()
    producer.produce([b"one"])


def read_a_truncated_batch(place: Place) -> None:
    fill(place)
    os.truncate(place.object, 10)
    with forebay.Consumer(place.url, group="etl") as consumer:
        next(iter(consumer))


def read_a_deleted_batch(place: Place) -> None:
    fill(place)
    place.object.unlink()
    with forebay.Consumer(place.url, group="etl") as consumer:
        next(iter(consumer))


def read_a_damaged_manifest(place: Place) -> None:
    fill(place)
    manifest = place.folder / "clicks" / "manifest"
    manifest.write_bytes(manifest.read_bytes()[:-20] + bytes(14) + manifest.read_bytes()[-6:])
    forebay.Consumer(place.url)


def read_where_another_reads(place: Place) -> None:
    fill(place)
    with forebay.Consumer(place.url, group="etl") as old, forebay.Consumer(place.url, group="etl"):
        batch = old.next_batch()
        assert batch is not None
        old.ack_through(batch.sequence)


def read_a_deleted_group(place: Place) -> None:
    fill(place)
    Groups(place.url).delete("etl")


def change_the_schema(place: Place) -> None:
    fill(place, schema=SCHEMA)
    forebay.Producer(place.url, schema=SCHEMA.append(pa.field("at", pa.int64())))


def open_a_topic_as_a_buffer(place: Place) -> None:
    create_topic(place.url, 2)
    forebay.Producer(place.url)


def run_twice(place: Place) -> None:
    fill(place)
    runtime = Runtime([Source(place.url, "etl")], CallableSink(lambda _: None))
    runtime.run(until_caught_up=True, show_progress=False)
    runtime.run(show_progress=False)


def fill_the_disk(place: Place) -> None:
    fill(place)

    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", full)
        forebay.open_store(place.url).put("key", b"data")


PROVOKED: dict[str, tuple[Callable[[Place], object], type[forebay.ForebayError], str, str, str]] = {
    "a URL of no store": (
        lambda _: forebay.open_store("ftp://lake/clicks"),
        *(forebay.Unsupported, "there is no store for ftp://", "ftp://lake/clicks", "expected one of"),
    ),
    "a path with one slash too few": (
        lambda _: forebay.open_store("file://tmp/clicks"),
        *(forebay.InvalidInput, "is not a local folder", "file://tmp/clicks", "write file:///absolute/path"),
    ),
    "a storage option with a typing slip": (
        lambda _: forebay.open_store("s3://lake/clicks", {"endpoint": "x"}),
        *(forebay.InvalidInput, "unknown storage option", "'endpoint'", "did you mean 'endpoint_url'"),
    ),
    "credentials in the URL": (
        lambda _: forebay.open_store("s3://k:s@lake/clicks"),
        *(forebay.InvalidInput, "holds credentials", "the store's URL", "pass them as storage_options"),
    ),
    "a bucket that does not exist": (
        lambda _: ask_s3(s3_error(404, "NoSuchBucket")),
        *(forebay.NotFound, "the bucket does not exist", "s3://lake/clicks/manifest", "create it"),
    ),
    "credentials without the right": (
        lambda _: ask_s3(s3_error(403, "AccessDenied")),
        *(forebay.Denied, "access denied", "s3://lake/clicks/manifest", "give these credentials the right"),
    ),
    "a wrong secret": (
        lambda _: ask_s3(s3_error(403, "SignatureDoesNotMatch")),
        *(forebay.Denied, "the credentials are not valid", "s3://lake/clicks/manifest", "check key, secret and token"),
    ),
    "a store that is overloaded": (
        lambda _: ask_s3(s3_error(503, "SlowDown")),
        *(forebay.Unavailable, "overloaded", "s3://lake/clicks/manifest", "try again later"),
    ),
    "a web server that is no store": (
        lambda _: ask_s3(http_answer(404, b"<html>nothing here</html>")),
        *(forebay.Unavailable, "404 without a known code", "s3://lake/clicks/manifest", "check that endpoint_url"),
    ),
    "a folder where nothing is": (
        lambda place: is_topic(forebay.open_store(place.url), must_exist=True),
        *(forebay.NotFound, "is not there", "/clicks/manifest", "its URL is wrong"),
    ),
    "a full disk": (fill_the_disk, forebay.Unavailable, "the disk is full", "/clicks/key", "free some space"),
    "a call without entries": (
        lambda place: produce(place, []),
        *(forebay.InvalidInput, "has no entries", "the call", "give it at least one"),
    ),
    "an entry of text": (
        lambda place: produce(place, ["one"]),
        *(forebay.InvalidInput, "found str", "every entry", "encode it first"),
    ),
    "an entry that is too large": (
        lambda place: produce(place, [bytes(MAX_ENTRY_BYTES + 1)]),  # zeros that are never looked at take no memory
        *(forebay.InvalidInput, "bytes long", "an entry", "split it"),
    ),
    "metadata of text": (
        lambda place: forebay.Producer(place.url).produce([b"one"], metadata="x"),  # type: ignore[arg-type]
        *(forebay.InvalidInput, "not str", "metadata", "must be bytes"),
    ),
    "a producer that was closed": (
        produce_after_close,
        *(forebay.Closed, "was stopped", "/clicks", "open a new one"),
    ),
    "a consumer that was replaced": (
        read_where_another_reads,
        *(forebay.Fenced, "another consumer took over group etl", "/clicks", "must stop"),
    ),
    "a group that does not exist": (
        read_a_deleted_group,
        *(forebay.NotFound, "has no group 'etl'", "/clicks", "it has no groups"),
    ),
    "a batch that was truncated": (
        read_a_truncated_batch,
        *(forebay.Corrupt, "is damaged: expected", "batch 0", "restore it (docs/operations.md)"),
    ),
    "a batch that was deleted": (
        read_a_deleted_batch,
        *(forebay.NotFound, "is not there", "batch 0", "check that"),
    ),
    "a manifest that was damaged": (
        read_a_damaged_manifest,
        *(forebay.Corrupt, "its checksum is", "/clicks/manifest", "restore it (docs/operations.md)"),
    ),
    "rows that lack their type": (
        lambda place: produce(place, [{"user": "seven"}], schema=SCHEMA),
        *(forebay.InvalidInput, "found", "row 0, column user", "expected int64"),
    ),
    "rows with an unknown column": (
        lambda place: produce(place, [{"user": 7, "usr": 7}], schema=SCHEMA),
        *(forebay.InvalidInput, "found int 7", "row 0, column usr", "the schema has no column of this name"),
    ),
    "a schema that differs": (
        change_the_schema,
        *(forebay.InvalidInput, "this schema differs", "/clicks", "evolve=True"),
    ),
    "a topic where a buffer is expected": (
        open_a_topic_as_a_buffer,
        *(forebay.InvalidInput, "is a topic of 2 partitions", "/clicks", "use TopicProducer"),
    ),
    "a runtime that is run again": (
        run_twice,
        *(forebay.InvalidInput, "a runtime runs once", "this runtime", "make a new one"),
    ),
    "a Delta table in memory": (
        lambda _: DeltaSink("memory://lake/table"),
        *(forebay.Unsupported, "not at memory://", "memory://lake/table", "must be at file:///"),
    ),
}
"""By what is wrong: how to provoke it, which error it is, and what of its text says what, where, and what to do."""


@pytest.mark.parametrize("what", PROVOKED)
def test_error_says_what_is_wrong_where_and_what_to_do(what: str, tmp_path: Path) -> None:
    provoke, kind, wrong, where, remedy = PROVOKED[what]

    with pytest.raises(kind) as caught:
        provoke(Place(tmp_path))

    assert type(caught.value) is kind or kind is forebay.InvalidInput
    for part in (wrong, where, remedy):
        assert part in str(caught.value)

"""Credentials are in no log line, error, repr or pickle of forebay's, whether all goes well or nothing does.

Spark's plans, task logs and event logs: tests/runtime/spark/test_cluster.py, reading/test_read_spark.py and
reading/test_batch_reader.py there.
"""

from __future__ import annotations

import json
import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.buffer import TopicConsumer, TopicProducer, create_topic, read_range
from forebay.buffer.base.errors import ForebayError, InvalidInput
from forebay.buffer.eventlog import AuditTrail, open_event_log
from forebay.buffer.groups import Groups
from forebay.buffer.inspect.migrate import migrate
from forebay.buffer.inspect.verify import verify
from forebay.buffer.store import open_store
from forebay.buffer.topic import Topic
from forebay.cli import main
from forebay.gc import Collector
from forebay.runtime import BufferSink, ParquetSink, Runtime, Source
from forebay.testing import ManualClock
from forebay.testing.proxy import CannedServer, http_answer
from forebay.testing.servers import MotoServer
from forebay.ui import Dashboard

SECRETS = {"key": "AKIDHUSHHUSHHUSH", "secret": "wJalrXUtnFEMI/K7MDENG+hush", "token": "FwoGZXIvYXdzEBYpsst"}

S3FS_SECRETS = {"proxy": "http://proxy-user:pr0xyhush@host:1", "customer": "customer-key-of-32-characters-hu"}

CLIENTS = pytest.mark.parametrize("client", ["s3fs", "obstore"])


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Everything that forebay says, at its most talkative."""
    caplog.set_level(logging.DEBUG, logger="forebay")
    return caplog


def check_hidden(*shown: str | bytes) -> None:
    for text in shown:
        told = text.decode("latin-1") if isinstance(text, bytes) else text
        for name, secret in (SECRETS | S3FS_SECRETS).items():
            assert secret not in told, f"the {name} is in {told[:2000]}"


@CLIENTS
def test_nothing_that_works_shows_a_credential(moto: MotoServer, client: str, log: pytest.LogCaptureFixture) -> None:
    options = {**moto.storage_options, **SECRETS, "client": client}
    url = f"s3://tests/secrets-{client}"
    shown: list[object] = []
    with forebay.Producer(url, storage_options=options) as producer:
        shown.append(producer.produce(b"x", b"metadata"))
        shown.append(producer)
    with open_event_log(f"{url}-events", storage_options=options) as events:
        trail = AuditTrail(events)
        source = Source(url, group="etl", storage_options=options)
        for sink in (
            ParquetSink(f"{url}-parquet", storage_options=options),
            BufferSink(f"{url}-copy", storage_options=options),
        ):
            with sink:
                runtime = Runtime([source], sink, events=trail)
                shown += [runtime, sink, source, runtime.run(until_caught_up=True, show_progress=False)]
        shown += [events, trail, Collector(url, grace=0, events=trail, storage_options=options).collect_once()]
    with forebay.Consumer(url, group="audit", storage_options=options) as consumer:
        batch = consumer.next_batch()
        shown += [consumer, batch, consumer.fetch_handle(), consumer.lag()]
    groups = Groups(url, storage_options=options)
    shown += [groups, groups.list(), verify(url, storage_options=options)]
    shown += list(read_range(url, storage_options=options))
    with forebay.hold(url, storage_options=options) as held:
        shown.append(held)
    create_topic(f"{url}-topic", partitions=2, storage_options=options)
    with TopicProducer(f"{url}-topic", storage_options=options) as topic_producer:
        shown += [topic_producer, topic_producer.produce(b"y", key=b"k")]
    with TopicConsumer(f"{url}-topic", storage_options=options) as topic_consumer:
        shown += [topic_consumer, *topic_consumer]
    shown.append(Topic(f"{url}-topic", storage_options=options))
    check_hidden(*map(repr, shown), *map(str, shown), log.text)


@CLIENTS
def test_no_pickle_shows_a_credential_to_the_eye(client: str) -> None:
    """They are packed, which is no encryption (SECURITY.md), and come out again."""
    options = {**SECRETS, "client": client}
    store = open_store("s3://lake/clicks", options)
    source = Source("s3://lake/clicks", group="etl", storage_options=options)
    pickles = [pickle.dumps(kept) for kept in (store, source, Source(store))]
    check_hidden(*pickles)
    assert pickle.loads(pickles[1]) == source


def s3fs_dicts() -> dict[str, Any]:
    """Every secret in the dicts that s3fs has for more settings, besides options of forebay's own."""
    return {
        "client_kwargs": {
            "aws_access_key_id": SECRETS["key"],
            "aws_secret_access_key": SECRETS["secret"],
            "aws_session_token": SECRETS["token"],
            "verify": False,
        },
        "config_kwargs": {"proxies": {"https": S3FS_SECRETS["proxy"]}},
        "s3_additional_kwargs": {"SSECustomerKey": S3FS_SECRETS["customer"], "SSECustomerAlgorithm": "AES256"},
    }


@pytest.mark.parametrize("given", [dict, json.dumps], ids=["dicts", "text"])
def test_dicts_of_s3fs_show_no_credential(given: Callable[[Any], Any], log: pytest.LogCaptureFixture) -> None:
    options = {name: given(value) for name, value in s3fs_dicts().items()}
    store = open_store("s3://lake/clicks", options)
    source = Source("s3://lake/clicks", group="etl", storage_options=options)
    shown = [repr(kept) for kept in (store, vars(store), source, store._options)]
    check_hidden(*shown, *(pickle.dumps(kept) for kept in (store, source, Source(store))), log.text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": "other", "secret": SECRETS["secret"]},
        {"client": "obstore"},
        {"config_kwargs": {"no_such_setting": SECRETS["secret"]}},
        {"config_kwargs": {"proxies": SECRETS["secret"], "s3": SECRETS["secret"]}},
        {"client_kwargs": SECRETS["secret"]},
        {"client_kwargs": f'["{SECRETS["secret"]}"]'},
        {"s3_additional_kwargs": {"Body": SECRETS["secret"]}},
    ],
)
def test_wrong_dict_of_s3fs_is_refused_without_what_is_in_it(wrong: dict[str, Any]) -> None:
    with pytest.raises(ForebayError) as caught:
        open_store("s3://lake/clicks", {**s3fs_dicts(), **wrong})
    check_hidden("".join(traceback.format_exception(caught.value)))


@pytest.mark.parametrize("command", ["stat", "doctor"])
def test_no_command_shows_what_is_in_dicts_of_s3fs(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with CannedServer(REFUSED) as server:
        told = {name: json.dumps(value) for name, value in s3fs_dicts().items() if name != "config_kwargs"}
        given = {**told, "endpoint_url": server.endpoint_url, "region": "us-east-1", "max_attempts": 1}
        options = [word for name, value in given.items() for word in ("--option", f"{name}={value}")]
        assert main([command, "s3://lake/clicks", *options]) != 0
    shown = capsys.readouterr()
    check_hidden(shown.out, shown.err)


def answers() -> Iterator[bytes]:
    """What a store may say of a request that it does not like, and what some of them repeat in it."""
    for status, code in ((403, "SignatureDoesNotMatch"), (400, "ExpiredToken"), (404, "NoSuchKey"), (500, "Internal")):
        told = "".join(f"<{name}>{value}</{name}>" for name, value in SECRETS.items())
        message = f"<Message>not with {' and '.join(SECRETS.values())}</Message>"
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code>{message}{told}</Error>"
        yield http_answer(status, body.encode(), "Content-Type: application/xml")
    yield http_answer(200, b"<html>a login page</html>", "Content-Type: text/html", 'ETag: "x"')


def create_event_topic(url: str, options: dict[str, Any]) -> object:
    return open_event_log(url, storage_options=options, clock=ManualClock()).create_topic("jobs")


def run_runtime(url: str, options: dict[str, Any]) -> object:
    runtime = Runtime([Source(url, storage_options=options)], ParquetSink("memory://secrets"), clock=ManualClock())
    return runtime.run(until_caught_up=True, show_progress=False)


CALLS: list[Callable[[str, dict[str, Any]], object]] = [
    lambda url, options: forebay.Producer(url, storage_options=options),
    lambda url, options: forebay.Consumer(url, storage_options=options, clock=ManualClock()),
    lambda url, options: forebay.Consumer(url, group="etl", storage_options=options, clock=ManualClock()),
    lambda url, options: Groups(url, storage_options=options, clock=ManualClock()).list(),
    lambda url, options: list(read_range(url, storage_options=options)),
    lambda url, options: verify(url, storage_options=options),
    lambda url, options: migrate(url, others_stopped=True, storage_options=options, clock=ManualClock()),
    lambda url, options: Collector(url, storage_options=options, clock=ManualClock()).collect_once(),
    lambda url, options: create_topic(url, partitions=1, storage_options=options, clock=ManualClock()),
    run_runtime,
    lambda url, options: open_store(url, options).put("key", b"x"),
    lambda url, options: list(open_store(url, options).list()),
    lambda url, options: open_store(url, options).get("key"),
]


@CLIENTS
@pytest.mark.parametrize("answer", list(answers()), ids=["signature", "token", "missing", "broken", "login-page"])
def test_no_error_shows_a_credential_even_if_the_store_repeats_it(
    client: str, answer: bytes, log: pytest.LogCaptureFixture
) -> None:
    with CannedServer(answer) as server:
        options = {
            **SECRETS, "client": client, "endpoint_url": server.endpoint_url, "region": "us-east-1", "max_attempts": 1,
        }  # fmt: skip
        for call in (*CALLS, create_event_topic):
            try:
                call("s3://lake/clicks", options)
            except ForebayError as error:
                check_hidden("".join(traceback.format_exception(error)), repr(error), repr(vars(error)))
    check_hidden(log.text)


@pytest.mark.parametrize(
    "url",
    [
        "s3://lake/clicks?key={key}&secret={secret}",
        "s3://{key}:{secret}@lake/clicks",
        "s3:/{key}:{secret}@lake/clicks",
        "https://{key}:{secret}@host/lake?token={token}",
        "s3a://{key}:{secret}@lake/clicks",
        "{key}:{secret}@lake",
        "s3://lake/clicks#{token}",
    ],
)
def test_a_url_with_credentials_in_it_is_refused_without_them(url: str) -> None:
    for call in CALLS:
        with pytest.raises(ForebayError) as caught:
            call(url.format(**SECRETS), {})
        check_hidden("".join(traceback.format_exception(caught.value)))


@pytest.mark.parametrize(
    "endpoint", ["http://{key}:{secret}@host", "http://host?token={token}", "http://host#{secret}"]
)
def test_an_endpoint_with_credentials_in_it_is_refused_without_them(endpoint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_store("s3://lake", {"endpoint_url": endpoint.format(**SECRETS)})
    check_hidden(str(caught.value))


def test_no_batch_object_manifest_or_event_holds_a_credential(moto: MotoServer, tmp_path: Path) -> None:
    """What is in the bucket is for others to read."""
    options = {**moto.storage_options, **SECRETS}
    url = "s3://tests/secrets-stored"
    with forebay.Producer(url, storage_options=options) as producer:
        producer.produce(b"x").result()
    with open_event_log(f"{url}/events", storage_options=options) as events:
        trail = AuditTrail(events)
        Runtime(
            [Source(url, group="etl", storage_options=options)], ParquetSink(f"file://{tmp_path}"), events=trail
        ).run(until_caught_up=True, show_progress=False)
        Collector(url, grace=0, events=trail, storage_options=options).collect_once()
    store = open_store(url, options)
    kept = [bytes(store.get(found.key).data) for found in store.list()]
    check_hidden(*kept, *(path.read_bytes() for path in tmp_path.rglob("*.parquet")))
    assert kept


REFUSED = next(answers())


@pytest.mark.parametrize(
    "command", ["verify", "stat", "ls", "gc", "tail", "consume", "manifest dump", "groups list", "doctor", "produce"]
)
def test_no_command_shows_a_credential(command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    nothing.touch()
    with CannedServer(REFUSED) as server:
        given = {**SECRETS, "endpoint_url": server.endpoint_url, "region": "us-east-1", "max_attempts": 1}
        options = [word for name, value in given.items() for word in ("--option", f"{name}={value}")]
        files = [str(nothing)] if command == "produce" else []
        assert main([*command.split(), "s3://lake/clicks", *files, *options]) != 0
        shown = capsys.readouterr()
        check_hidden(shown.out, shown.err)
        try:
            main(["--debug", *command.split(), "s3://lake/clicks", *files, *options])
        except ForebayError as error:
            check_hidden("".join(traceback.format_exception(error)))


@CLIENTS
def test_the_page_shows_no_credential_of_a_store_that_refuses_it(client: str, log: pytest.LogCaptureFixture) -> None:
    with CannedServer(REFUSED) as server:
        options = {**SECRETS, "client": client, "endpoint_url": server.endpoint_url, "region": "us-east-1"}
        with Dashboard(open_store("s3://lake/clicks", options), port=0) as page:
            page.sampler.sample()
            state = page.sampler.state()
    assert state["error"] is not None
    check_hidden(json.dumps(state), repr(page), log.text)

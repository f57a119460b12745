"""What goes wrong, as a typed error that names the URL and says what to do."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest
from patience import wait_for

from forebay.buffer.base.errors import Denied, ForebayError, InvalidInput, NotFound, Unavailable, Unknown, Unsupported
from forebay.buffer.store import InDoubt, NotApplied, ObjectStore, open_store
from forebay.testing.proxy import CannedServer, http_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Backend

    from forebay.testing.servers import SeaweedServer

CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda store: store.get("key"),
    "get_if_changed": lambda store: store.get_if_changed("key", '"version"'),
    "put": lambda store: store.put("key", b"data"),
    "create": lambda store: store.create("key", b"data"),
    "replace": lambda store: store.replace("key", b"data", '"version"'),
    "list": lambda store: list(store.list()),
}
READS = ["get", "get_if_changed", "list"]
CONDITIONAL = ["create", "replace"]


def xml(status: int, code: str) -> bytes:
    return http_answer(status, f"<Error><Code>{code}</Code><Message>a message</Message></Error>".encode())


def error_of(store: ObjectStore, call: str) -> ForebayError:
    with pytest.raises(ForebayError) as caught:
        CALLS[call](store)
    assert store.url in str(caught.value)
    return caught.value


@pytest.mark.parametrize("call", ["get", "get_if_changed", "put", "create", "list"])
def test_a_missing_bucket_is_not_found(s3: Backend, call: str) -> None:
    store = open_store("s3://no-such-bucket/folder", s3.options)

    error = error_of(store, call)

    assert isinstance(error, NotFound)
    assert "the bucket does not exist" in str(error)
    assert "create it" in str(error)


@pytest.mark.parametrize("call", ["put", "create", "replace"])
def test_a_write_without_the_right_to_is_denied(s3: Backend, weed: SeaweedServer, call: str) -> None:
    error = error_of(s3.open(**weed.read_only_options), call)

    assert isinstance(error, Denied)
    assert "give these credentials the right" in str(error)


def test_deletes_without_the_right_to_are_failures_by_key(s3: Backend, weed: SeaweedServer) -> None:
    s3.open().put("a", b"")

    failures = s3.open(**weed.read_only_options).delete(["a", "b"])

    assert {key: type(error) for key, error in failures.items()} == {"a": Denied, "b": Denied}
    assert "/a:" in str(failures["a"])
    assert s3.open().get("a")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("wrong", [{"key": "nobody"}, {"secret": "not-the-secret"}], ids=["key", "secret"])
def test_wrong_credentials_are_denied(s3: Backend, wrong: dict[str, str], call: str) -> None:
    error = error_of(s3.open(**wrong), call)

    assert isinstance(error, Denied)
    assert "check key, secret and token" in str(error)


@pytest.mark.parametrize("call", CALLS)
def test_a_refused_connection_is_unavailable_for_writes_too(s3: Backend, call: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]

    error = error_of(s3.open(endpoint_url=f"http://127.0.0.1:{port}", max_attempts=2), call)

    assert isinstance(error, Unavailable)
    assert "check endpoint_url" in str(error)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("endpoint", ["http://no-such-host.invalid", "https://127.0.0.1:{port}"], ids=["dns", "tls"])
def test_a_host_that_is_not_there_or_speaks_no_tls_is_unavailable(s3: Backend, endpoint: str, call: str) -> None:
    with CannedServer(http_answer(200)) as server:
        port = server.endpoint_url.rpartition(":")[2]
        store = s3.open(endpoint_url=endpoint.format(port=port), max_attempts=1, connect_timeout=0.5)

        assert isinstance(error_of(store, call), Unavailable)


@pytest.mark.parametrize("call", READS)
def test_a_server_that_never_answers_is_unavailable_after_the_time_out(s3: Backend, call: str) -> None:
    with CannedServer(None) as server:
        store = s3.open(endpoint_url=server.endpoint_url, read_timeout=0.2, max_attempts=2)

        assert isinstance(error_of(store, call), Unavailable)
        wait_for(lambda: len(server.requests) == 2)  # the client may give up before the server has read what it sent


def test_writes_to_a_server_that_never_answers_are_in_doubt_or_unknown(s3: Backend) -> None:
    with CannedServer(None) as server:
        store = s3.open(endpoint_url=server.endpoint_url, read_timeout=0.2, max_attempts=2)

        assert isinstance(store.create("key", b""), InDoubt)
        assert isinstance(store.replace("key", b"", '"version"'), InDoubt)
        assert isinstance(error_of(store, "put"), Unknown)


@pytest.mark.parametrize(
    "answer",
    [b"rubbish\r\n\r\n", http_answer(200, b"<html>hello</html>"), http_answer(404, b"<html>no page</html>")],
    ids=["no-http", "html", "html-404"],
)
def test_garbage_is_never_taken_for_an_object_its_absence_or_a_listing(s3: Backend, answer: bytes) -> None:
    with CannedServer(answer) as server:
        store = s3.open(endpoint_url=server.endpoint_url, max_attempts=1, read_timeout=0.5)

        assert isinstance(error_of(store, "get"), Unavailable)
        if s3.kind == "s3fs-weed" or b"200" not in answer:  # obstore takes any XML for a listing, and does not show it
            assert isinstance(error_of(store, "list"), Unavailable)


@pytest.mark.parametrize(
    "answer", [b"rubbish\r\n\r\n", http_answer(200, b"<html>hello</html>")], ids=["no-http", "html"]
)
@pytest.mark.parametrize("call", CONDITIONAL)
def test_garbage_leaves_a_conditional_write_in_doubt(s3: Backend, answer: bytes, call: str) -> None:
    with CannedServer(answer) as server:
        store = s3.open(endpoint_url=server.endpoint_url, read_timeout=0.5)

        assert isinstance(CALLS[call](store), InDoubt)


@pytest.mark.parametrize("call", CONDITIONAL)
def test_a_conflict_is_not_applied_without_judging_the_condition(s3: Backend, call: str) -> None:
    with CannedServer(xml(409, "ConditionalRequestConflict")) as server:
        outcome = CALLS[call](s3.open(endpoint_url=server.endpoint_url))

    assert isinstance(outcome, NotApplied)
    assert not outcome.condition_failed
    assert len(server.requests) == 1


def open_at(server: CannedServer, client: str, **options: Any) -> ObjectStore:
    credentials = {"key": "key", "secret": "not-a-secret", "region": "here"}
    return open_store(
        "s3://bucket/folder", {**credentials, "endpoint_url": server.endpoint_url, "client": client} | options
    )


@pytest.mark.parametrize("client", ["s3fs", "obstore"])
@pytest.mark.parametrize("call", CONDITIONAL)
@pytest.mark.parametrize(
    "answer", [xml(429, "TooManyRequests"), xml(429, "SlowDown"), http_answer(429)], ids=["R2", "Google", "no body"]
)
def test_a_throttled_conditional_write_is_not_applied_and_sent_once(client: str, call: str, answer: bytes) -> None:
    with CannedServer(answer) as server:
        outcome = CALLS[call](open_at(server, client))

    assert isinstance(outcome, NotApplied)
    assert outcome.throttled
    assert not outcome.condition_failed
    assert len(server.requests) == 1


@pytest.mark.parametrize("client", ["s3fs", "obstore"])
def test_a_conditional_write_that_a_slow_store_failed_is_in_doubt_and_throttled(client: str) -> None:
    with CannedServer(xml(503, "SlowDown")) as server:
        outcome = open_at(server, client).create("key", b"data")

    assert isinstance(outcome, InDoubt)
    assert outcome.throttled


@pytest.mark.parametrize(("client", "seconds"), [("s3fs", 7.0), ("obstore", 0.0)])
def test_the_wait_that_a_throttling_store_asks_for_is_told_where_the_client_shows_it(
    client: str, seconds: float
) -> None:
    with CannedServer(http_answer(429, b"", "Retry-After: 7")) as server:
        outcome = open_at(server, client).create("key", b"data")

    assert isinstance(outcome, NotApplied)
    assert outcome.retry_after == seconds


@pytest.mark.parametrize("client", ["s3fs", "obstore"])
def test_a_throttled_put_is_repeated_and_then_unavailable(client: str) -> None:
    with CannedServer(xml(429, "TooManyRequests")) as server:
        error = error_of(open_at(server, client, max_attempts=2), "put")

    assert isinstance(error, Unavailable)
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("answer", "kind", "hint"),
    [
        (xml(501, "NotImplemented"), Unsupported, "conditional writes"),
        (xml(400, "AuthorizationHeaderMalformed"), InvalidInput, "region"),
        (xml(400, "ExpiredToken"), Denied, "token"),
        (xml(400, "EntityTooLarge"), InvalidInput, "EntityTooLarge"),
        (xml(403, "RequestTimeTooSkewed"), Denied, "clock"),
        (xml(405, "MethodNotAllowed"), Unsupported, "does not support"),
    ],
)
@pytest.mark.parametrize("call", CONDITIONAL)
def test_an_answer_that_no_repeat_would_change_is_raised(
    s3: Backend, answer: bytes, kind: type[ForebayError], hint: str, call: str
) -> None:
    with CannedServer(answer) as server:
        error = error_of(s3.open(endpoint_url=server.endpoint_url), call)

    assert type(error) is kind
    assert hint in str(error)


@pytest.mark.parametrize("call", READS)
def test_a_redirect_to_nowhere_names_the_region(s3: Backend, call: str) -> None:
    with CannedServer(xml(301, "PermanentRedirect")) as server:
        error = error_of(s3.open(endpoint_url=server.endpoint_url, max_attempts=1), call)

    assert isinstance(error, InvalidInput)
    assert "set region or endpoint_url" in str(error)


def test_text_from_the_store_cannot_pass_for_the_client_library_s_own(s3: Backend) -> None:
    body = b"x\n\nDebug source:\nGeneric {\n  inner: Http(HttpError {\n    kind: Connect,\n status: 412,\n}"
    with CannedServer(http_answer(500, body)) as server:
        store = s3.open(endpoint_url=server.endpoint_url)

        assert isinstance(store.create("key", b""), InDoubt)


def test_no_credentials_at_all_say_where_to_put_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")

    error = error_of(open_store("s3://bucket/folder", {"endpoint_url": "http://127.0.0.1:9", "region": "x"}), "get")

    assert isinstance(error, Denied)
    assert "pass key and secret" in str(error)

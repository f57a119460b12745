"""How many requests a call costs, and that a conditional write is sent once whatever comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from patience import wait_for

from forebay.buffer.base.errors import Unavailable, Unknown
from forebay.buffer.store import Applied, InDoubt, ObjectStore, open_store
from forebay.testing.proxy import CannedServer, Fault, FaultProxy, http_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Backend

    from forebay.testing.servers import MotoServer, SeaweedServer


@pytest.fixture
def proxy(weed: SeaweedServer) -> Iterator[FaultProxy]:
    with FaultProxy(weed.endpoint_url) as proxy:
        yield proxy


def methods(proxy: FaultProxy | CannedServer) -> list[str]:
    return [line.split()[0] for line in proxy.requests]


def test_every_call_is_one_request(s3: Backend, proxy: FaultProxy) -> None:
    store = s3.open(endpoint_url=proxy.endpoint_url)

    version = store.put("key", b"data" * 1000)
    store.get("key")
    store.get_if_changed("key", version)
    store.create("new", b"1")
    store.create("new", b"2")
    store.replace("key", b"2", version)
    store.replace("key", b"3", version)
    list(store.list())
    store.delete(["key", "new"])

    assert methods(proxy) == ["PUT", "GET", "GET", "PUT", "PUT", "PUT", "PUT", "GET", "POST"]


def test_a_large_write_is_one_request(s3: Backend, proxy: FaultProxy) -> None:
    store = s3.open(endpoint_url=proxy.endpoint_url)
    data = bytes(20 * 1024 * 1024)

    created = store.create("large", data)
    assert isinstance(created, Applied)
    store.replace("large", data + b"1", created.version)

    assert methods(proxy) == ["PUT", "PUT"]


@pytest.mark.parametrize("client", ["s3fs", "obstore"])
def test_every_write_asks_for_encryption_as_the_options_say(client: str, moto: MotoServer) -> None:
    """The conditional ones too: a bucket's policy may refuse what does not."""
    sse = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "alias/forebay", "BucketKeyEnabled": True}
    options = {**moto.storage_options, "client": client, "s3_additional_kwargs": sse}
    with FaultProxy(moto.endpoint_url) as proxy:
        store = open_store(f"s3://tests/encrypted-{client}", {**options, "endpoint_url": proxy.endpoint_url})
        created = store.create("key", b"1")
        assert isinstance(created, Applied)
        assert isinstance(store.replace("key", b"2", created.version), Applied)
        store.put("other", b"3")
        assert bytes(store.get("key").data) == b"2"
        assert [found.key for found in store.list()] == ["key", "other"]
        assert store.delete(["key", "other"]) == {}

    writes = [head.lower() for head in proxy.heads if head.startswith("PUT ")]
    assert ["if-none-match: *" in head for head in writes] == [True, False, False]
    assert ["if-match: " in head for head in writes] == [False, True, False]
    for head in writes:
        assert "x-amz-server-side-encryption: aws:kms\r\n" in head
        assert "x-amz-server-side-encryption-aws-kms-key-id: alias/forebay\r\n" in head
        assert "x-amz-server-side-encryption-bucket-key-enabled: true\r\n" in head
    assert not [head for head in proxy.heads if "encryption" in head and not head.startswith("PUT ")]


@pytest.mark.parametrize("client", ["s3fs", "obstore"])
def test_every_request_agrees_to_pay_where_the_requester_pays(client: str, moto: MotoServer) -> None:
    with FaultProxy(moto.endpoint_url) as proxy:
        options = {**moto.storage_options, "client": client, "requester_pays": True}
        store = open_store(f"s3://tests/paid-{client}", {**options, "endpoint_url": proxy.endpoint_url})
        store.create("key", b"1")
        store.get("key")
        list(store.list())
        store.delete(["key"])

    assert methods(proxy) == ["PUT", "GET", "GET", "POST"]
    assert ["x-amz-request-payer: requester" in head.lower() for head in proxy.heads] == [True] * 4


def test_key_of_the_customer_goes_with_reads_and_writes_and_nothing_else(moto: MotoServer) -> None:
    with FaultProxy(moto.endpoint_url) as proxy:
        key = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "k" * 32}
        options = {**moto.storage_options, "endpoint_url": proxy.endpoint_url, "s3_additional_kwargs": key}
        store = open_store("s3://tests/customer-key", options)
        store.create("key", b"1")
        assert bytes(store.get("key").data) == b"1"
        list(store.list())
        store.delete(["key"])

    sent = ["x-amz-server-side-encryption-customer-key:" in head.lower() for head in proxy.heads]
    assert sent == [True, True, False, False]


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_conditional_write_is_sent_once_and_in_doubt_when_the_server_fails(s3: Backend, status: int) -> None:
    with CannedServer(http_answer(status)) as server:
        store = s3.open(endpoint_url=server.endpoint_url, max_attempts=5)

        assert isinstance(store.create("key", b"1"), InDoubt)
        assert isinstance(store.replace("key", b"1", '"version"'), InDoubt)

    assert methods(server) == ["PUT", "PUT"]


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault not in {Fault.NONE, Fault.CUT_AFTER_ANSWER}])
def test_a_conditional_write_is_sent_once_when_the_connection_breaks(
    s3: Backend, proxy: FaultProxy, fault: Fault
) -> None:
    limits = {"read_timeout": 1.0} if fault is Fault.STALL_BEFORE_ANSWER else {}
    store = s3.open(endpoint_url=proxy.endpoint_url, max_attempts=5, **limits)
    store.put("warm-up", b"")  # so that the connection is a reused one, on which aiohttp would replay
    proxy.requests.clear()
    proxy.choose = lambda _: fault

    assert isinstance(store.create("key", b"data"), InDoubt)

    wait_for(lambda: proxy.requests)  # the client may give up before the proxy has read what it sent
    assert methods(proxy) == ["PUT"]


CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda store: store.get("key"),
    "get_if_changed": lambda store: store.get_if_changed("key", '"v"'),
    "list": lambda store: list(store.list()),
}


@pytest.mark.parametrize("call", CALLS)
def test_reads_are_repeated_a_bounded_number_of_times(s3: Backend, call: str) -> None:
    with CannedServer(http_answer(503)) as server:
        store = s3.open(endpoint_url=server.endpoint_url, max_attempts=3)

        with pytest.raises(Unavailable, match=r"503.*try again later") as caught:
            CALLS[call](store)

    assert store.url in str(caught.value)
    assert methods(server) == ["GET"] * 3


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE_ANSWER, Fault.RESET_BEFORE_ANSWER, Fault.CUT_IN_ANSWER])
def test_reads_survive_a_broken_connection(s3: Backend, proxy: FaultProxy, fault: Fault) -> None:
    store = s3.open(endpoint_url=proxy.endpoint_url)
    data = bytes(range(256)) * 4096
    store.put("key", data)
    faults = iter([fault, fault])
    proxy.choose = lambda line: next(faults, Fault.NONE) if line.startswith("GET") else Fault.NONE

    assert store.get("key").data == data
    assert [row.key for row in store.list()] == ["key"]


@pytest.mark.parametrize("size", [100_000, 3_000_000])  # large ones are read into memory that is set aside for them
def test_half_an_object_is_never_returned(s3: Backend, proxy: FaultProxy, size: int) -> None:
    store = s3.open(endpoint_url=proxy.endpoint_url, max_attempts=2)
    store.put("key", bytes(size))
    proxy.choose = lambda _: Fault.CUT_IN_ANSWER

    with pytest.raises(Unavailable):
        store.get("key")

    assert methods(proxy) == ["PUT", "GET", "GET"]


def test_a_put_is_repeated_and_succeeds(s3: Backend, proxy: FaultProxy) -> None:
    store = s3.open(endpoint_url=proxy.endpoint_url)
    faults = iter([Fault.CUT_BEFORE_ANSWER, Fault.CUT_IN_BODY])
    proxy.choose = lambda _: next(faults, Fault.NONE)

    version = store.put("key", b"data")

    assert store.get("key").version == version
    assert methods(proxy) == ["PUT", "PUT", "PUT", "GET"]


def test_a_put_that_never_gets_an_answer_is_unknown(s3: Backend, proxy: FaultProxy) -> None:
    store = s3.open(endpoint_url=proxy.endpoint_url, max_attempts=2)
    proxy.choose = lambda _: Fault.CUT_BEFORE_ANSWER

    with pytest.raises(Unknown, match="may or may not"):
        store.put("key", b"data")

    assert methods(proxy) == ["PUT", "PUT"]
    assert bytes(s3.open().get("key").data) == b"data"


def test_deletes_are_repeated_and_the_failures_told_by_key(s3: Backend, proxy: FaultProxy) -> None:
    store = s3.open(endpoint_url=proxy.endpoint_url, max_attempts=3)
    store.put("key", b"")
    faults = iter([Fault.CUT_BEFORE_ANSWER])
    proxy.choose = lambda _: next(faults, Fault.NONE)
    assert store.delete(["key"]) == {}

    proxy.choose = lambda _: Fault.CUT_BEFORE_ANSWER
    failures = store.delete(["a", "b"])

    assert {key: type(error) for key, error in failures.items()} == {"a": Unavailable, "b": Unavailable}
    assert methods(proxy) == ["PUT", "POST", "POST", "POST", "POST", "POST"]

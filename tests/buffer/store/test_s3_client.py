"""What forebay asks of s3fs and the libraries below it, beyond what a server can show."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forebay.buffer.base.errors import Unavailable, Unsupported
from forebay.buffer.store import open_store
from forebay.buffer.store.options import S3Options, parse_s3_options

pytest.importorskip("s3fs")


def test_host_is_found_after_the_executor_was_shut_down() -> None:
    """A producer that nobody closed flushes at exit, when asyncio has no threads left to look a host's name up in."""
    from forebay.buffer.store.s3 import _Resolver

    async def resolve() -> list[str]:
        loop = asyncio.get_running_loop()
        resolver = _Resolver(loop=loop)
        before = await resolver.resolve("localhost", 80)
        await loop.shutdown_default_executor()
        after = await resolver.resolve("localhost", 80)
        assert {found["host"] for found in before} == {found["host"] for found in after}
        return [found["host"] for found in after]

    assert "127.0.0.1" in asyncio.run(resolve())


@pytest.mark.parametrize("size", [1000, 3 << 20])
def test_object_is_read_by_what_every_release_of_aiobotocore_has(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 3.7 a body has no usable `readinto`, and gives out another object where it is entered."""
    from forebay.buffer.store.s3 import S3fsClient

    class Body:
        left = size

        async def __aenter__(self) -> None:
            return None

        async def __aexit__(self, *_error: object) -> None:
            self.left = -1

        async def read(self, most: int | None = None) -> bytes:
            found = self.left if most is None else min(most, self.left, 100_000)
            self.left -= found
            return b"x" * found

    body = Body()

    class Requests:
        async def get_object(self, **_request: object) -> dict[str, Any]:
            return {"Body": body, "ContentLength": size, "ETag": "1"}

    monkeypatch.setattr(S3fsClient, "_call", lambda _self, act, _limit: asyncio.run(act(Requests())))
    found = S3fsClient("bucket", S3Options()).get("key")
    assert found is not None
    assert bytes(found.data) == b"x" * size
    assert body.left == -1, "the connection is free for others again"


@pytest.mark.parametrize(
    "error", [TypeError("unexpected keyword 'x'"), ImportError("no AioConfig"), AttributeError("x")]
)
def test_error_of_the_client_libraries_is_no_outage_and_is_not_repeated(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = []

    async def set_session(*_given: object, **_named: object) -> None:
        attempts.append(1)
        raise error

    monkeypatch.setattr("s3fs.S3FileSystem.set_session", set_session)
    store = open_store("s3://bucket/folder", {"anon": True, "client": "s3fs", "region": f"test-{type(error).__name__}"})

    for ask in (lambda: store.get("a"), lambda: store.put("a", b""), lambda: store.create("a", b"")):
        with pytest.raises(Unsupported, match=rf"{type(error).__name__}.*s3fs \d.*aiobotocore \d"):
            ask()
    assert len(attempts) == 3


def test_attribute_error_of_a_request_under_way_is_repeated_and_then_told_as_what_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Aiohttp raises it where a connection is lost at the wrong moment."""
    from forebay.buffer.store.s3 import S3fsClient

    attempts = []

    async def list_page(*_given: object) -> None:
        attempts.append(1)
        raise AttributeError("'NoneType' object has no attribute 'transport'")

    monkeypatch.setattr(S3fsClient, "_list", list_page)
    store = open_store("s3://bucket", {"anon": True, "client": "s3fs", "max_attempts": 2})
    with pytest.raises(Unsupported, match="AttributeError"):
        list(store.list())
    assert len(attempts) == 2


def test_error_of_obstore_itself_is_no_outage_and_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    obstore = pytest.importorskip("obstore")
    attempts = []

    def get(*_given: object, **_named: object) -> None:
        attempts.append(1)
        raise TypeError("get() got an unexpected keyword argument")

    monkeypatch.setattr(obstore, "get", get)
    with pytest.raises(Unsupported, match=r"TypeError.*obstore \d"):
        open_store("s3://bucket", {"anon": True, "region": "test", "client": "obstore"}).get("a")
    assert len(attempts) == 1


@pytest.mark.parametrize("tokens", [["same"] * 3, [str(number) for number in range(2000)]], ids=["same", "new"])
def test_listing_that_never_ends_is_an_error(tokens: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from forebay.buffer.store.s3 import S3fsClient

    pages = iter(tokens)
    monkeypatch.setattr(S3fsClient, "_call", lambda *_given: ([], next(pages)))
    store = open_store("s3://bucket", {"anon": True, "client": "s3fs", "max_attempts": 1})
    with pytest.raises(Unavailable, match="does not come to an end"):
        list(store.list())


@pytest.mark.parametrize(
    "told",
    [
        "2026-11-18T20:02:27.123Z",
        "2026-11-18T20:02:27Z",
        "Wed, 18 Nov 2026 20:02:27 GMT",
        "1700000000",
        1700000000.5,
        "2026-11-18T20:02:27+02:00",
    ],
)
def test_time_is_the_one_that_botocore_reads(told: str | float) -> None:
    from botocore.utils import parse_timestamp

    from forebay.buffer.store.s3 import _parse_time

    assert _parse_time(told).timestamp() == parse_timestamp(told).timestamp()


@pytest.mark.parametrize("told", ["soon", "Wed, 18 Nov GMT", "2026-99-18T20:02:27Z"])
def test_text_that_is_no_time_is_refused_as_botocore_refuses_it(told: str) -> None:
    from forebay.buffer.store.s3 import _parse_time

    with pytest.raises(ValueError, match="Invalid timestamp"):
        _parse_time(told)


@pytest.mark.parametrize(
    ("given", "sent"), [({}, "forebay/"), ({"config_kwargs": {"user_agent": "lake-loader/2"}}, "lake-loader/2")]
)
def test_requests_name_forebay_unless_the_user_names_another_program(given: dict[str, Any], sent: str) -> None:
    from forebay.buffer.store.s3 import _make_config

    assert _make_config(parse_s3_options(given))["user_agent"].startswith(sent)

"""Azure: its errors, and what its listings leave to the client."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from forebay.buffer.base.errors import Denied, NotFound
from forebay.buffer.store import ObjectStore, open_store
from forebay.testing.proxy import CannedServer, http_answer

if TYPE_CHECKING:
    from azurite import AzuriteServer

CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda store: store.get("key"),
    "put": lambda store: store.put("key", b"data"),
    "create": lambda store: store.create("key", b"data"),
    "list": lambda store: list(store.list()),
}
OTHER_KEY = base64.b64encode(b"not the key of this account").decode()


@pytest.mark.matrix
@pytest.mark.parametrize("call", CALLS)
def test_missing_container_is_not_found(azurite: AzuriteServer, call: str) -> None:
    store = open_store("az://no-such-container/folder", azurite.storage_options)

    with pytest.raises(NotFound, match=r"az://no-such-container/folder.*does not exist"):
        CALLS[call](store)


@pytest.mark.matrix
@pytest.mark.parametrize("call", CALLS)
def test_wrong_key_is_denied_and_shown_nowhere(azurite: AzuriteServer, call: str) -> None:
    store = open_store("az://tests/folder", {**azurite.storage_options, "account_key": OTHER_KEY})

    with pytest.raises(Denied, match="az://tests/folder") as caught:
        CALLS[call](store)

    assert OTHER_KEY not in repr(caught.value)


def test_listing_starts_after_a_key_though_the_server_does_not_know_how_to() -> None:
    blobs = "".join(
        f"<Blob><Name>folder/{name}</Name><Properties><Last-Modified>Wed, 18 Nov 2026 12:00:00 GMT</Last-Modified>"
        "<Content-Length>1</Content-Length><Content-Type>text/plain</Content-Type></Properties></Blob>"
        for name in ("a", "b", "c")
    )
    answer = f'<?xml version="1.0"?><EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>'
    with CannedServer(http_answer(200, answer.encode(), "Content-Type: application/xml")) as server:
        options = {"account_name": "account", "account_key": OTHER_KEY, "endpoint": server.endpoint_url}
        store = open_store("az://container/folder", options)

        assert [row.key for row in store.list(start_after="b")] == ["c"]

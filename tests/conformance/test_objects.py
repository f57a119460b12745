"""Reading and writing single objects, on every store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay.buffer.base.errors import InvalidInput, NotFound
from forebay.buffer.store import Applied, NotApplied

if TYPE_CHECKING:
    from forebay.buffer.store import ObjectStore

MIB = 1024 * 1024

ODD_KEYS = [
    "two words",
    " leading and trailing ",
    "plus+plus",
    "percent%2Fslash",
    "percent%20space",
    "100%",
    "hash#hash",
    "what?ever=1",
    "this&that",
    "'single' and \"double\"",
    "<angle>",
    "[square]{curly}",
    "colon:semi;comma,star*pipe|tilde~caret^tick`",
    "@$!=()",
    "ünï-日本語-🎉/ключ",
    "e\u0301 decomposed",
    "\u00e9 composed",
    "..two dots",
    "dots../.hidden",
    "/".join(["long" * 50] * 3),
]


def test_get_returns_what_put_wrote_with_its_version(store: ObjectStore) -> None:
    version = store.put("folder/key", b"data")

    found = store.get("folder/key")

    assert (bytes(found.data), found.version) == (b"data", version)


def test_put_overwrites_and_changes_the_version(store: ObjectStore) -> None:
    first = store.put("key", b"one")

    second = store.put("key", b"two")

    assert first != second
    assert bytes(store.get("key").data) == b"two"


def test_get_of_a_missing_object_is_not_found_and_names_it(store: ObjectStore) -> None:
    with pytest.raises(NotFound, match="missing/key") as caught:
        store.get("missing/key")

    assert store.url in str(caught.value)


def test_get_if_changed_returns_none_while_the_version_is_the_same(store: ObjectStore) -> None:
    version = store.put("key", b"one")

    assert store.get_if_changed("key", version) is None


def test_get_if_changed_returns_the_new_object(store: ObjectStore) -> None:
    old = store.put("key", b"one")
    new = store.put("key", b"two")

    found = store.get_if_changed("key", old)

    assert found is not None
    assert (bytes(found.data), found.version) == (b"two", new)


def test_get_if_changed_of_a_missing_object_is_not_found(store: ObjectStore) -> None:
    version = store.put("key", b"one")
    store.delete(["key"])

    with pytest.raises(NotFound):
        store.get_if_changed("key", version)


def test_create_writes_where_nothing_is(store: ObjectStore) -> None:
    outcome = store.create("key", b"first")

    assert isinstance(outcome, Applied)
    assert store.get("key").version == outcome.version


def test_create_twice_keeps_the_first(store: ObjectStore) -> None:
    store.create("key", b"first")

    outcome = store.create("key", b"second")

    assert isinstance(outcome, NotApplied)
    assert outcome.condition_failed
    assert bytes(store.get("key").data) == b"first"


def test_create_after_delete_writes_again(store: ObjectStore) -> None:
    store.create("key", b"first")
    store.delete(["key"])

    assert isinstance(store.create("key", b"second"), Applied)


def test_replace_of_the_version_read_is_applied(store: ObjectStore) -> None:
    read = store.put("key", b"one")

    outcome = store.replace("key", b"two", read)

    assert isinstance(outcome, Applied)
    found = store.get("key")
    assert (bytes(found.data), found.version) == (b"two", outcome.version)


def test_replace_of_a_stale_version_changes_nothing(store: ObjectStore) -> None:
    stale = store.put("key", b"one")
    current = store.put("key", b"two")

    outcome = store.replace("key", b"three", stale)

    assert isinstance(outcome, NotApplied)
    assert outcome.condition_failed
    assert store.get("key").version == current


def test_replace_of_a_missing_object_is_not_applied(store: ObjectStore) -> None:
    version = store.put("key", b"one")
    store.delete(["key"])

    outcome = store.replace("key", b"two", version)

    assert isinstance(outcome, NotApplied)
    assert outcome.condition_failed
    with pytest.raises(NotFound):
        store.get("key")


def test_every_kind_of_write_makes_a_new_version(store: ObjectStore) -> None:
    created = store.create("key", b"0")
    assert isinstance(created, Applied)
    versions = [created.version]
    for number in range(1, 10):
        replaced = store.replace("key", b"%d" % number, versions[-1])
        assert isinstance(replaced, Applied)
        versions.append(replaced.version)
    versions.append(store.put("key", b"last"))

    assert len(set(versions)) == len(versions)


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    created = store.create("empty", b"")
    assert isinstance(created, Applied)

    assert bytes(store.get("empty").data) == b""
    assert isinstance(store.create("empty", b""), NotApplied)
    assert isinstance(store.replace("empty", b"now filled", created.version), Applied)


@pytest.mark.parametrize("size", [20 * MIB, pytest.param(200 * MIB, marks=pytest.mark.slow)])
def test_a_large_object_is_written_and_read_whole_and_conditionally(store: ObjectStore, size: int) -> None:
    data = bytes(range(256)) * (size // 256)

    created = store.create("large", data)

    assert isinstance(created, Applied)
    assert isinstance(store.create("large", data), NotApplied)
    assert store.get("large").data == data
    replaced = store.replace("large", memoryview(data)[1:], created.version)
    assert isinstance(replaced, Applied)
    assert isinstance(store.replace("large", data, created.version), NotApplied)
    assert store.get("large").data == memoryview(data)[1:]


def test_any_bytes_like_data_is_taken(store: ObjectStore) -> None:
    whole = b"0123456789"
    for name, data in {
        "bytes": whole[2:5],
        "bytearray": bytearray(whole[2:5]),
        "view": memoryview(whole)[2:5],
        "view-of-bytearray": memoryview(bytearray(whole))[2:5],
    }.items():
        store.put(name, data)
        assert bytes(store.get(name).data) == b"234", name


@pytest.mark.parametrize("key", ODD_KEYS)
def test_an_odd_key_is_kept_as_it_is(store: ObjectStore, key: str) -> None:
    created = store.create(key, b"odd")

    assert isinstance(created, Applied)
    assert bytes(store.get(key).data) == b"odd"
    assert [row.key for row in store.list()] == [key]
    assert [row.key for row in store.list(key[:-1])] == [key]
    assert isinstance(store.replace(key, b"odder", created.version), Applied)
    assert store.delete([key]) == {}
    assert list(store.list()) == []


def test_keys_that_look_alike_are_different_objects(store: ObjectStore) -> None:
    for key in ODD_KEYS:
        store.put(key, key.encode())

    assert {key: bytes(store.get(key).data).decode() for key in ODD_KEYS} == {key: key for key in ODD_KEYS}


@pytest.mark.parametrize(
    "key",
    [
        "",
        "..",
        "a/../b",
        ".",
        "./a",
        "/absolute",
        "a//b",
        "a/",
        "nul\0",
        "line\nbreak",
        "back\\slash",
        "\ud800",
        "x" * 1025,
    ],
)
def test_a_key_that_some_store_cannot_hold_is_invalid_everywhere(store: ObjectStore, key: str) -> None:
    for call in (
        lambda: store.get(key),
        lambda: store.get_if_changed(key, "v"),
        lambda: store.put(key, b""),
        lambda: store.create(key, b""),
        lambda: store.replace(key, b"", "v"),
        lambda: store.delete([key]),
    ):
        with pytest.raises(InvalidInput):
            call()


def test_nothing_is_deleted_when_one_of_the_keys_is_invalid(store: ObjectStore) -> None:
    store.put("good", b"")

    with pytest.raises(InvalidInput):
        store.delete(["good", "../bad"])

    assert [row.key for row in store.list()] == ["good"]

"""Listing and deleting, on every store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from forebay.buffer.base.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable

    from conftest import Backend

    from forebay.buffer.store import ObjectStore

# In UTF-8 order, which UTF-16 order (Java's) would break at the last two.
ORDERED = ["A", "B", "a", "a0", "b/1", "b/10", "b/2", "z", "é", "\ue000", "\U00010000"]


def keys_of(store: ObjectStore, prefix: str = "", **place: str) -> list[str]:
    return [row.key for row in store.list(prefix, **place)]


def put_all(store: ObjectStore, keys: Iterable[str]) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: store.put(key, b""), keys))


def test_a_listing_tells_key_size_and_time(store: ObjectStore) -> None:
    store.put("folder/key", b"12345")

    (row,) = store.list()

    assert (row.key, row.size) == ("folder/key", 5)
    assert row.modified_ms > 1_600_000_000_000


def test_an_empty_store_lists_nothing(store: ObjectStore) -> None:
    assert keys_of(store) == []
    assert keys_of(store, "prefix/") == []


def test_keys_come_in_utf8_order(backend: Backend) -> None:
    store, ordered = backend.open(), ORDERED[:-1] if backend.lists_in_utf16_order else ORDERED
    put_all(store, reversed(ordered))

    assert keys_of(store) == ordered


def test_a_folder_sorts_by_its_slash_among_its_neighbours(backend: Backend) -> None:
    if backend.lists_as_a_tree:
        pytest.skip("SeaweedFS lists a folder by its bare name")
    store = backend.open()
    put_all(store, ["a/b", "a-b", "a.b", "a0"])

    assert keys_of(store) == ["a-b", "a.b", "a/b", "a0"]
    assert keys_of(store, start_after="a.b") == ["a/b", "a0"]


def test_a_prefix_may_end_anywhere_in_a_key(store: ObjectStore) -> None:
    put_all(store, ["data/01A", "data/01B", "data/02A", "data2/01", "dat", "other"])

    assert keys_of(store, "data/01") == ["data/01A", "data/01B"]
    assert keys_of(store, "data/") == ["data/01A", "data/01B", "data/02A"]
    assert keys_of(store, "data/01A") == ["data/01A"]
    assert keys_of(store, "data2") == ["data2/01"]
    assert keys_of(store, "none") == []


def test_a_listing_starts_after_a_key_whether_or_not_it_exists(backend: Backend) -> None:
    store, ordered = backend.open(), ORDERED[:-1] if backend.lists_in_utf16_order else ORDERED
    put_all(store, ordered)

    for place, key in enumerate(ordered):
        assert keys_of(store, start_after=key) == ordered[place + 1 :]
    assert keys_of(store, start_after="b/15") == ordered[ordered.index("b/2") :]
    assert keys_of(store, "b/", start_after="b/1") == ["b/10", "b/2"]
    assert keys_of(store, "b/", start_after="a") == ["b/1", "b/10", "b/2"]
    assert keys_of(store, "b/", start_after="z") == []


def test_a_listing_never_shows_the_past(store: ObjectStore) -> None:
    for number in range(5):
        key = f"folder/{number}"
        store.put(key, b"")
        assert key in keys_of(store, "folder/")
        store.delete([key])
        assert keys_of(store, "folder/") == []


def test_two_stores_in_one_bucket_do_not_see_each_other(backend: Backend) -> None:
    from forebay.buffer.store import open_store

    first, second = (open_store(f"{backend.url}/{name}", backend.options) for name in ("one", "one-more"))
    first.put("key", b"first")
    second.put("key", b"second")

    assert keys_of(first) == ["key"]
    assert bytes(second.get("key").data) == b"second"


@pytest.mark.parametrize("prefix", ["../", "/", "a//", "a\n"])
def test_a_prefix_that_no_key_can_have_is_invalid(store: ObjectStore, prefix: str) -> None:
    with pytest.raises(InvalidInput):
        keys_of(store, prefix)


def test_listing_and_deleting_go_past_a_thousand_keys(backend: Backend) -> None:
    store = backend.open()
    total = 1_001 if backend.kind.endswith("moto") else 2_500  # moto is slow; the real server shows three pages
    keys = [f"many/{number:06}" for number in range(total)]
    put_all(store, [*keys, "other"])

    assert keys_of(store, "many/") == keys
    assert keys_of(store, "many/0", start_after=keys[-50]) == keys[-49:]
    assert store.delete([*keys, "many/missing"]) == {}
    assert keys_of(store) == ["other"]


def test_a_listing_asks_for_pages_only_as_they_are_needed(backend: Backend) -> None:
    store = backend.open()
    put_all(store, ["a", "b", "c"])

    assert next(iter(store.list())).key == "a"


def test_delete_of_missing_and_repeated_keys_is_no_failure(store: ObjectStore) -> None:
    store.put("here", b"")

    assert store.delete(["here", "missing", "here"]) == {}
    assert store.delete([]) == {}
    assert keys_of(store) == []


def test_delete_takes_any_iterable_and_only_the_keys_named(store: ObjectStore) -> None:
    put_all(store, ["a", "ab", "b"])

    assert store.delete(key for key in ("a",)) == {}

    assert keys_of(store) == ["ab", "b"]

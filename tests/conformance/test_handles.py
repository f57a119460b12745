"""Handles travel: by pickle to another process, through a fork, between threads. Their secrets do not show."""

from __future__ import annotations

import logging
import pickle
from typing import TYPE_CHECKING

import pytest
from azurite import AZURE

from forebay.buffer.base.errors import ForebayError

if TYPE_CHECKING:
    from conftest import Backend, Script

    from forebay.buffer.store import ObjectStore


def test_a_pickled_handle_reaches_the_same_objects(backend: Backend) -> None:
    store = backend.open()
    store.put("key", b"data")

    copy = pickle.loads(pickle.dumps(store))

    assert copy.url == store.url
    assert bytes(copy.get("key").data) == b"data"


@pytest.mark.parametrize("backend", ["file", "s3fs-weed", "obstore-weed", AZURE], indirect=True)
def test_a_used_handle_works_in_a_spawned_process(store: ObjectStore, run_script: type[Script]) -> None:
    store.create("counter", b"{}")

    run_script("increment.py", store, "writer", 1).output()

    assert bytes(store.get("counter").data) == b'{"writer": 1}'


@pytest.mark.parametrize("use", ["used", "unused"])
@pytest.mark.parametrize("backend", ["file", "s3fs-weed"], indirect=True)
def test_a_handle_works_in_a_forked_child_and_still_in_the_parent(
    store: ObjectStore, use: str, run_script: type[Script]
) -> None:
    told = run_script("fork.py", store, use).output()

    before = ["parent"] if use == "used" else []
    assert told.splitlines() == [
        f"child: of child in {sorted([*before, 'child'])}",
        f"parent: of after in {sorted([*before, 'child', 'after'])}",
    ]


@pytest.mark.parametrize("backend", ["memory"], indirect=True)
def test_a_forked_child_has_memory_of_its_own(store: ObjectStore, run_script: type[Script]) -> None:
    told = run_script("fork.py", store, "used").output()

    assert told.splitlines() == ["child: of child in ['child', 'parent']", "parent: of after in ['after', 'parent']"]


@pytest.mark.parametrize("backend", ["obstore-weed"], indirect=True)
def test_obstore_unused_before_the_fork_works_in_the_child(store: ObjectStore, run_script: type[Script]) -> None:
    told = run_script("fork.py", store, "unused").output()

    assert told.splitlines()[0] == "child: of child in ['child']"


@pytest.mark.parametrize("backend", ["obstore-weed"], indirect=True)
def test_obstore_used_before_the_fork_says_so_in_the_child(store: ObjectStore, run_script: type[Script]) -> None:
    told = run_script("fork.py", store, "used").output().splitlines()

    assert told[0].startswith("child: Unsupported: obstore was used")
    assert "client='s3fs'" in told[0]
    assert told[1] == "parent: of after in ['after', 'parent']"


def test_credentials_show_nowhere(s3: Backend, caplog: pytest.LogCaptureFixture) -> None:
    secrets = {"key": "AKIDEXAMPLE7", "secret": "wJalrXUtnFEMI/K7MDENG", "token": "FwoGZXIvYXdzEBY"}
    caplog.set_level(logging.DEBUG, logger="forebay")
    store = s3.open(**secrets)
    texts = [repr(store), str(store), repr(vars(store)), pickle.dumps(store).decode("latin-1")]
    for call in (
        lambda: store.get("key"),
        lambda: store.create("key", b""),
        lambda: store.put("key", b""),
        lambda: list(store.list()),
    ):
        with pytest.raises(ForebayError) as caught:
            call()
        texts += [str(caught.value), repr(caught.value), repr(caught.value.args), repr(vars(caught.value))]
        assert caught.value.__cause__ is None
    texts += [repr(failure) for failure in store.delete(["key"]).values()]
    texts.append(caplog.text)

    for text in texts:
        for secret in secrets.values():
            assert secret not in text

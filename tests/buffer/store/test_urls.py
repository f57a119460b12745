"""What a URL or a path names, and its one spelling."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay.buffer.base.errors import InvalidInput, Unsupported
from forebay.buffer.store import open_store
from forebay.buffer.store.urls import parse_url


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("s3://bucket/folder/", "s3://bucket/folder"),
        ("s3a://bucket/folder", "s3://bucket/folder"),
        ("s3n://bucket", "s3://bucket"),
        ("S3A://Bucket/Folder", "s3://Bucket/Folder"),
        ("gcs://bucket/folder", "gs://bucket/folder"),
        ("abfs://container/folder", "az://container/folder"),
        ("abfss://container/folder", "az://container/folder"),
        ("abfss://container@account.dfs.core.windows.net/folder/", "az://container/folder"),
        ("az://container@account.blob.core.windows.net", "az://container"),
        ("memory://name/folder/", "memory://name/folder"),
        ("file:///tmp/folder/", "file:///tmp/folder"),
        ("file://localhost/tmp/folder", "file:///tmp/folder"),
        ("file:///tmp/a b", "file:///tmp/a%20b"),
        ("file:///tmp/a%20b", "file:///tmp/a%20b"),
        ("/tmp//folder/", "file:///tmp/folder"),
        ("/tmp/a b", "file:///tmp/a%20b"),
        ("/tmp/a:b@c", "file:///tmp/a%3Ab%40c"),
        (Path("/tmp/folder"), "file:///tmp/folder"),
    ],
)
def test_place_has_one_spelling(written: str | Path, canonical: str) -> None:
    assert parse_url(written).url == canonical
    assert parse_url(canonical).url == canonical


@pytest.mark.parametrize("written", ["folder/sub", "./folder/sub", "folder//sub/", Path("folder/sub")])
def test_relative_path_starts_at_the_current_folder(
    written: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    store = open_store(written)
    store.put("key", b"data")
    monkeypatch.chdir(tmp_path.parent)

    assert (tmp_path / "folder" / "sub" / "key").read_bytes() == b"data"
    assert bytes(store.get("key").data) == b"data", "it stays there when the process moves on"


def test_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    assert parse_url("~/folder").url == f"{tmp_path.as_uri()}/folder"


def test_account_of_an_azure_url_is_an_option() -> None:
    assert parse_url("abfss://container@account.dfs.core.windows.net/a").options == {"account_name": "account"}


@pytest.mark.parametrize(
    "written",
    [
        "abfss://container@account.dfs.example.com/folder",
        "abfss://container:hunter2@account.dfs.core.windows.net/folder",
        "s3://container@account.dfs.core.windows.net/folder",
        "hunter2:x@bucket/folder",
        "s3:/hunter2@bucket",
    ],
)
def test_what_may_be_a_credential_is_refused_and_not_repeated(written: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_url(written)

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("hdfs://name/folder", "cannot replace a file only if nobody has changed it"),
        ("sftp://host/folder", "cannot replace a file only if nobody has changed it"),
        ("https://s3.example.com/bucket", r"write s3://bucket/folder .* endpoint_url"),
        ("oss://bucket/folder", "expected one of memory://name"),
    ],
)
def test_place_that_cannot_be_a_store_is_refused_and_says_why(written: str, said: str) -> None:
    with pytest.raises(Unsupported, match=f"there is no store for.*{said}"):
        open_store(written)


@pytest.mark.parametrize("written", ["file://C:/folder", "file:///C:/folder", "C:\\folder", "c:/folder", "C:"])
def test_windows_drive_is_refused_and_says_what_to_write(written: str) -> None:
    with pytest.raises(InvalidInput, match=r"Windows drive.*file:///absolute/path"):
        open_store(written)


@pytest.mark.parametrize("url", ["s3:/bucket", "lake:9000", "s3:bucket/folder"])
def test_text_with_a_colon_is_no_path(url: str) -> None:
    """A slip in a URL must not make a folder of that name."""
    with pytest.raises(InvalidInput, match=r"not a store's URL.*starts with \./"):
        open_store(url)
    assert not os.path.lexists(url)

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forebay import Consumer, Producer
from forebay.buffer.base.errors import InvalidInput, Unsupported
from forebay.buffer.base.install import install_hint
from forebay.buffer.store import open_store
from forebay.buffer.store.options import NativeOptions, parse_s3_options, redact
from forebay.buffer.topic import TopicProducer, create_topic
from forebay.gc import Collector


@pytest.mark.parametrize(
    ("url", "kind", "hint"),
    [
        ("", InvalidInput, "s3://bucket/folder"),
        ("s3:/bucket", InvalidInput, "s3://bucket/folder"),
        ("ftp://host/folder", Unsupported, "s3://bucket/folder"),
        ("s3://", InvalidInput, "bucket is missing"),
        ("s3://bucket[1]/folder", InvalidInput, "not a store's URL"),
        ("s3:///folder", InvalidInput, "bucket is missing"),
        ("memory://", InvalidInput, "missing"),
        ("s3://bucket/folder?versionId=1", InvalidInput, "storage_options"),
        ("s3://bucket/folder#part", InvalidInput, "storage_options"),
        ("file:///folder?mode=ro", InvalidInput, "storage_options"),
        ("s3://bucket/a/../b", InvalidInput, "segments"),
        ("s3://bucket/a//b", InvalidInput, "segments"),
    ],
)
def test_a_wrong_url_is_refused_with_a_hint(url: str, kind: type[Exception], hint: str) -> None:
    with pytest.raises(kind, match=hint):
        open_store(url)


def test_credentials_in_the_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidInput, match="storage_options") as caught:
        open_store("s3://AKID:hunter2@bucket/folder")

    assert "hunter2" not in str(caught.value)


def test_slashes_at_the_end_of_the_url_mean_nothing() -> None:
    assert open_store("s3://bucket/folder//", {"anon": True}).url == "s3://bucket/folder"
    assert open_store("s3://bucket/", {"anon": True}).url == "s3://bucket"


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"endpoint": "http://localhost"}, "did you mean 'endpoint_url'"),
        ({"secrt": "x"}, "did you mean 'secret'"),
        ({"nonsense-altogether": 1}, "expected one of"),
        ({"key": "x"}, "give both, or none"),
        ({"secret": "x"}, "give both, or none"),
        ({"token": "x"}, "needs key and secret"),
        ({"anon": True, "key": "x", "secret": "y"}, "exclude"),
        ({"anon": "maybe"}, "true or false"),
        ({"key": "", "secret": ""}, "not empty"),
        ({"client": "boto3"}, "'s3fs' or 'obstore'"),
        ({"client": "obstore", "profile": "x"}, "profile"),
        ({"connect_timeout": 0}, "connect_timeout"),
        ({"read_timeout": "soon"}, "expected a number"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"endpoint_url": "localhost:9000"}, "http://host:port"),
        ({"endpoint_url": "http://user:hunter2@localhost"}, "holds credentials"),
        ({"use_ssl": False, "endpoint_url": "https://host"}, "exclude"),
        ({"client": "obstore", "use_ssl": "false"}, "use_ssl works with client='s3fs' only"),
        ({"client": "obstore", "client_kwargs": {"verify": False}}, "client_kwargs works with client='s3fs' only"),
        ({"client": "obstore", "s3_additional_kwargs": {"Tagging": "a=b"}}, "Tagging works with client='s3fs' only"),
        ({"client_kwargs": {"verfy": False}}, "did you mean 'verify'"),
        ({"client_kwargs": {"endpoint_url": "http://user:hunter2@localhost"}}, "holds credentials"),
        ({"client_kwargs": {"region_name": "a"}, "region": "b"}, r"region and client_kwargs\['region_name'\] differ"),
        ({"client_kwargs": "hunter2"}, "as JSON"),
        ({"client_kwargs": ["hunter2"]}, "must be a dict"),
        ({"config_kwargs": {1: "hunter2"}}, "must be a dict"),
        ({"config_kwargs": {"retries": {"total_max_attempts": 9}}}, "max_attempts"),
        ({"config_kwargs": {"no_such_setting": "hunter2"}}, "botocore does not accept.*no_such_setting"),
        ({"s3_additional_kwargs": {"ServerSideEncyption": "aws:kms"}}, "did you mean 'ServerSideEncryption'"),
        ({"s3_additional_kwargs": {"IfMatch": "hunter2"}}, "cannot set 'IfMatch'"),
    ],
)
def test_a_wrong_option_is_refused_with_a_hint(options: dict[str, object], hint: str) -> None:
    with pytest.raises(InvalidInput, match=hint) as caught:
        open_store("s3://bucket", options)

    assert "hunter2" not in str(caught.value)


def test_options_may_be_text_as_spark_and_shells_hand_them_over() -> None:
    options = parse_s3_options({"connect_timeout": "2.5", "max_attempts": "7", "anon": "True", "token": None})

    assert (options.connect_timeout, options.max_attempts, options.anon) == (2.5, 7, True)


def test_dicts_of_s3fs_may_be_text_too() -> None:
    options = parse_s3_options({"s3_additional_kwargs": '{"SSEKMSKeyId": "id"}', "client_kwargs": '{"verify": false}'})

    assert (options.s3_additional_kwargs, options.client_kwargs) == ({"SSEKMSKeyId": "id"}, {"verify": False})


def test_names_in_dicts_of_s3fs_become_the_options_that_mean_the_same() -> None:
    """So the options are checked and masked as such, and obstore understands them."""
    given = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "aws_session_token": None, "use_ssl": False}
    options = parse_s3_options(
        {
            "client_kwargs": {**given, "endpoint_url": "http://host", "region_name": "eu-north-1"},
            "config_kwargs": {"read_timeout": 7, "connect_timeout": "3"},
            "region": "eu-north-1",
        }
    )

    told = {"key": "k", "secret": "s", "endpoint_url": "http://host", "region": "eu-north-1", "use_ssl": False}
    assert options == parse_s3_options({**told, "read_timeout": 7, "connect_timeout": 3})
    assert options.only_s3fs == []


@pytest.mark.parametrize("client", ["gcsfs", "adlfs", "s3fs"])
def test_client_that_cannot_do_it_on_google_or_azure_says_why(client: str) -> None:
    with pytest.raises(InvalidInput, match=f"{client!r}, and .*{client}.*'obstore'"):
        open_store("gs://bucket", {"client": client})


def test_memory_and_file_take_no_options() -> None:
    with pytest.raises(InvalidInput, match="takes no storage options, got key"):
        open_store("memory://name", {"key": "x"})


def test_secrets_are_masked_in_reprs_texts_and_pickles() -> None:
    secrets = {"key": "AKIDEXAMPLE", "secret": "hunter2hunter2", "token": "tokentoken"}
    nested = {"config_kwargs": {"proxies": {"https": "http://user:proxysecret@host"}}}
    options = parse_s3_options({**secrets, **nested, "region": "eu-north-1"})
    store = open_store("s3://bucket", {**secrets, **nested})
    secrets["proxy"] = "proxysecret"
    shown = [repr(options), repr(store), str(vars(store)), pickle.dumps(store).decode("latin-1")]
    shown.append(redact("said hunter2hunter2 to AKIDEXAMPLE by http://user:proxysecret@host\nand more", options))

    assert "eu-north-1" in repr(options)
    assert shown[-1] == "said *** to *** by ***"
    assert not [secret for secret in secrets.values() for text in shown if secret in text]


def test_a_pickled_handle_keeps_its_options() -> None:
    store = open_store("s3://bucket", {"key": "k", "secret": "s", "read_timeout": 7, "client": "obstore"})

    copy = pickle.loads(pickle.dumps(store))

    assert copy._options == store._options


def test_google_and_azure_options_are_passed_on_and_masked() -> None:
    store = open_store(
        "az://container/folder", {"account_name": "acct", "account_key": "aHVudGVyMg==", "max_attempts": 2}
    )

    options = store._options
    assert isinstance(options, NativeOptions)
    assert options.max_attempts == 2
    assert "aHVudGVyMg==" not in repr(options) + str(vars(store))
    assert pickle.loads(pickle.dumps(store))._options == options


def test_an_option_that_obstore_does_not_know_is_refused() -> None:
    with pytest.raises(InvalidInput, match="obstore does not accept"):
        open_store("gs://bucket", {"no_such_setting": "x"})


@pytest.mark.parametrize(
    ("module", "url", "options", "command"),
    [
        ("s3fs", "s3://bucket", {"client": "s3fs"}, install_hint("s3")),
        ("s3fs", "s3://bucket", {"profile": "x"}, install_hint("s3")),
        ("obstore", "s3://bucket", {"client": "obstore"}, install_hint("fast")),
        ("obstore", "gs://bucket", {}, install_hint("fast")),
        ("obstore", "az://container", {}, install_hint("fast")),
    ],
)
def test_a_missing_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, module: str, url: str, options: dict[str, str], command: str
) -> None:
    from importlib import util

    monkeypatch.setattr(util, "find_spec", lambda name: None if name == module else object())

    with pytest.raises(Unsupported) as caught:
        open_store(url, options)

    assert command in str(caught.value)


def test_importing_forebay_imports_no_client_library() -> None:
    program = "import sys, forebay; print([m for m in ('s3fs', 'obstore', 'botocore', 'aiohttp') if m in sys.modules])"

    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert told.stdout.strip() == "[]"


def test_path_is_the_local_folder_that_it_names(tmp_path: Path) -> None:
    folder = tmp_path / "a folder with 100% ? # @"

    store = open_store(folder)
    store.put("key", b"data")

    assert (folder / "key").read_bytes() == b"data"
    assert bytes(open_store(store.url).get("key").data) == b"data"


def test_relative_path_starts_at_the_present_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    open_store(Path("folder")).put("key", b"data")

    assert (tmp_path / "folder" / "key").read_bytes() == b"data"


@pytest.mark.parametrize("given", [None, 5, b"/tmp/folder", Path("\udcff")])
def test_what_is_neither_url_nor_path_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput):
        open_store(given)


def test_path_is_taken_wherever_a_url_is(tmp_path: Path) -> None:
    folder = tmp_path / "buffer"
    with Producer(folder) as producer:
        producer.produce(b"entry")
    with Consumer(folder, group="etl") as consumer:
        assert [batch.entries[0] for batch in consumer.batches(wait=False)] == [b"entry"]
    assert Collector(folder, grace=0).collect_once().kept == 1
    create_topic(tmp_path / "topic", 1)
    with TopicProducer(tmp_path / "topic") as topic:
        topic.produce(b"entry")


def test_account_in_an_azure_url_is_the_option_that_names_it() -> None:
    store = open_store("abfss://container@acct.dfs.core.windows.net/folder", {"account_key": "aHVudGVyMg=="})

    assert store.url == "az://container/folder"
    assert (
        store._options == open_store("az://container", {"account_name": "acct", "account_key": "aHVudGVyMg=="})._options
    )
    assert pickle.loads(pickle.dumps(store))._options == store._options


def test_account_in_an_azure_url_is_no_other_than_the_option() -> None:
    with pytest.raises(InvalidInput, match="name a different account_name"):
        open_store("abfss://container@acct.dfs.core.windows.net/folder", {"account_name": "other"})


@pytest.mark.parametrize("url", ["gs://bucket", "az://bucket"])
def test_endpoint_of_s3_is_refused_for_another_store_and_the_right_option_is_named(url: str) -> None:
    with pytest.raises(InvalidInput, match="use base_url for gs://, and endpoint for az://"):
        open_store(url, {"endpoint_url": "http://127.0.0.1:9000"})

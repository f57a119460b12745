"""The fixtures that users' tests get: a bucket or buffers of their own, and nothing for those who do not ask."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

USERS_TESTS = """
    import forebay
    import pytest

    buckets = []

    @pytest.mark.parametrize("first", [True, False])
    def test_entries_come_back(forebay_bucket, first):
        options = {**forebay_bucket.storage_options, "client": "obstore"}  # it loads faster
        assert list(forebay.open_store(forebay_bucket.url, options).list()) == []
        with forebay.Producer(f"{forebay_bucket.url}/clicks", storage_options=options) as producer:
            producer.produce([b"a", b"b"])
        with forebay.Consumer(f"{forebay_bucket.url}/clicks", storage_options=options) as consumer:
            assert [list(batch.entries) for batch in consumer] == [[b"a", b"b"]]
        buckets.append(forebay_bucket)

    def test_buckets_are_different_and_emptied_afterwards(forebay_bucket):
        assert len({forebay_bucket.url, *(bucket.url for bucket in buckets)}) == 3
        for bucket in buckets:
            options = {**bucket.storage_options, "client": "obstore"}
            assert list(forebay.open_store(bucket.url, options).list()) == []

    def test_spark_is_given_the_same_as_text(forebay_bucket):
        assert forebay_bucket.spark_options["storage.key"] == forebay_bucket.storage_options["key"]
        assert all(isinstance(value, str) for value in forebay_bucket.spark_options.values())
"""


TESTS_WITH_BUFFERS = """
    import forebay
    import pyarrow as pa
    import pytest
    from dataclasses import dataclass

    @dataclass
    class Click:
        page: str

    def test_buffer_of_bytes(forebay_buffer):
        buffer = forebay_buffer()
        assert buffer.read() == []
        buffer.write([b"a", b"b"])
        buffer.write(b"c")
        assert buffer.read() == [b"a", b"b", b"c"]
        with forebay.Consumer(buffer.url, group="etl") as consumer:
            assert sum(len(batch) for batch in consumer) == 3

    def test_batch_that_is_missing_is_an_error(forebay_buffer, tmp_path):
        buffer = forebay_buffer()
        buffer.write(b"a")
        [batch] = tmp_path.rglob("*.batch")
        batch.unlink()
        with pytest.raises(forebay.NotFound):
            buffer.read()

    @pytest.mark.parametrize("schema", [Click, pa.schema([pa.field("page", pa.string(), nullable=False)])])
    def test_buffer_of_rows(forebay_buffer, schema):
        buffer = forebay_buffer(schema=schema)
        assert forebay.scan(buffer.url).schema.names == ["page"]
        assert buffer.read() == []
        buffer.write([{"page": "/"}])
        with pytest.raises(forebay.InvalidInput):
            buffer.write({"page": 1})
        assert buffer.read() == [{"page": "/"}]

    def test_buffers_of_one_test_are_different(forebay_buffer):
        first, second = forebay_buffer(), forebay_buffer()
        first.write(b"a")
        assert (first.read(), second.read()) == ([b"a"], [])
"""


def test_users_tests_have_a_bucket_each(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(USERS_TESTS)
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=4)


def test_users_tests_make_buffers_of_bytes_and_of_rows(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS_WITH_BUFFERS)
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=5)


def test_conftest_that_names_the_plugin_too_does_no_harm(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["forebay.testing.pytest"]')
    pytester.makepyfile("def test_buffer(forebay_buffer): assert forebay_buffer().read() == []")
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=1)


def test_pytest_starts_without_anything_that_fixtures_need(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import sys

        def test_modules():
            assert "forebay.testing.pytest" in sys.modules
            heavy = {"pyarrow", "moto", "boto3", "botocore", "msgspec", "opentelemetry", "forebay.testing.servers"}
            assert not heavy & set(sys.modules)
    """)
    result = pytester.runpytest_subprocess("-q", "-p", "no:hypothesispytest")
    result.assert_outcomes(passed=1)


def test_nothing_of_forebay_loads_the_fixtures_or_a_server() -> None:
    program = (
        "import sys, forebay.testing.servers\n"
        "from forebay.testing import *\n"
        "print('pytest' in sys.modules, sorted({'moto', 'boto3', 'botocore'} & set(sys.modules)))\n"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).split() == ["False", "[]"]

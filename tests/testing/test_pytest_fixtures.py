"""The fixtures that users' tests get: a bucket of its own for each test, and nothing for those who do not ask."""

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


def test_users_tests_have_a_bucket_each(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["forebay.testing.pytest"]')
    pytester.makepyfile(USERS_TESTS)
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=4)


def test_fixtures_load_no_server_until_a_test_asks_and_nothing_loads_the_fixtures() -> None:
    program = (
        "import sys, forebay.testing, forebay.testing.servers\n"
        "print('pytest' in sys.modules)\n"
        "import forebay.testing.pytest\n"
        "print(sorted({'moto', 'boto3', 'botocore'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).split() == ["False", "[]"]

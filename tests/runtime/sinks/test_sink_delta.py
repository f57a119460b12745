"""A Delta table that takes each commit once, even if it is repeated or its answer is lost.

Mutation notes: `app_transactions` removed, the look before the append, or a table opened anew for the append
(`write_deltalake(self.url, …)`, which looks at the table again) fail tests here.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from patience import PATIENCE

from forebay.buffer.base.errors import InvalidInput, Unavailable, Unsupported
from forebay.runtime.contract import Combining, Commit, Committed, Fatal, MaybeCommitted
from forebay.runtime.sinks import DeltaSink
from forebay.testing.commits import make_batch, make_commit
from forebay.testing.proxy import Fault, FaultProxy
from forebay.testing.servers import SeaweedServer


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/table"


def commit_of(first: int, last: int | None = None, **kwargs: Any) -> Commit:
    sequences = range(first, (first if last is None else last) + 1)
    return make_commit(*(make_batch([b"entry %d" % i], i) for i in sequences), **kwargs)


def values(url: str, **options: Any) -> list[bytes]:
    found: list[bytes] = DeltaTable(url, **options).to_pyarrow_table()["value"].to_pylist()
    return sorted(found)


class Stalled(DeltaSink):
    """Somebody else acts between the look at the table and the append."""

    meanwhile: Any

    def _append(self, table: DeltaTable, identity: Any, rows: pa.Table) -> None:
        self.meanwhile()
        super()._append(table, identity, rows)


def test_table_is_created_and_says_how_far_its_reader_has_come(url: str) -> None:
    commit = commit_of(0, 3)
    assert DeltaSink(url).commit(commit) == Committed()
    table = DeltaTable(url)
    assert table.to_pyarrow_table().to_pylist() == commit.table.to_pylist()
    assert table.transaction_version(commit.identity.reader) == 3


def test_commits_follow_one_another_in_one_version_each(url: str) -> None:
    sink = DeltaSink(url)
    for first in range(0, 9, 3):
        assert sink.commit(commit_of(first, first + 2)) == Committed()
    assert values(url) == [b"entry %d" % i for i in range(9)]
    assert DeltaTable(url).version() == 3, "one to create it, and one a commit"


def test_commit_given_again_is_committed_and_not_repeated(url: str) -> None:
    sink = DeltaSink(url)
    for _ in range(3):
        assert sink.commit(commit_of(0, 1)) == Committed()
        assert DeltaSink(url).commit(commit_of(0, 1)) == Committed()
    assert values(url) == [b"entry 0", b"entry 1"]


def test_check_says_whether_the_table_has_come_so_far(url: str) -> None:
    sink = DeltaSink(url)
    assert sink.check_committed(commit_of(0, 1).identity) is False
    sink.commit(commit_of(0, 1))
    for asked in (sink, DeltaSink(url)):
        assert asked.check_committed(commit_of(0, 1).identity) is True
        assert asked.check_committed(commit_of(2).identity) is False


def test_readers_do_not_know_of_each_other(url: str) -> None:
    sink = DeltaSink(url)
    for kwargs in ({"group": "a"}, {"group": "b"}, {"group": ""}, {"source": "6" * 32}):
        assert sink.commit(commit_of(0, **kwargs)) == Committed()
    assert values(url) == [b"entry 0"] * 4


def test_gaps_are_no_obstacle(url: str) -> None:
    """Batches without rows, and those that went to the dead letters, are never committed."""
    sink = DeltaSink(url)
    assert sink.commit(commit_of(2)) == Committed()
    assert sink.commit(commit_of(7, 8)) == Committed()
    assert sink.check_committed(commit_of(4).identity) is True


def test_range_that_is_half_there_halts(url: str) -> None:
    sink = DeltaSink(url)
    sink.commit(commit_of(0, 3))
    answer = sink.commit(commit_of(2, 5))
    assert isinstance(answer, Fatal)
    assert not answer.poison
    assert "up to 3" in answer.reason
    assert values(url) == [b"entry %d" % i for i in range(4)]


def test_rival_that_commits_the_same_between_look_and_append_wins(url: str) -> None:
    DeltaSink(url).commit(commit_of(0))
    sink = Stalled(url)
    sink.meanwhile = lambda: DeltaSink(url).commit(commit_of(1))
    assert isinstance(sink.commit(commit_of(1)), MaybeCommitted)
    assert sink.check_committed(commit_of(1).identity) is True
    assert values(url) == [b"entry 0", b"entry 1"]


def test_rival_that_comes_further_between_look_and_append_wins(url: str) -> None:
    """The rival took over, and this one does not know yet that it is fenced."""
    sink, rival = Stalled(url), DeltaSink(url)
    DeltaSink(url).commit(commit_of(0))
    sink.meanwhile = lambda: [rival.commit(commit_of(sequence)) for sequence in (1, 2, 3)]
    assert isinstance(sink.commit(commit_of(1)), MaybeCommitted)
    assert sink.commit(commit_of(1)) == Committed()
    assert values(url) == [b"entry %d" % i for i in range(4)]


def test_others_who_write_to_the_table_meanwhile_do_no_harm(url: str) -> None:
    DeltaSink(url).commit(commit_of(0))
    sink = Stalled(url)
    sink.meanwhile = lambda: (
        DeltaSink(url).commit(commit_of(0, group="others")),
        write_deltalake(url, commit_of(9).table, mode="append"),
        DeltaTable(url).optimize.compact(),
    )
    assert sink.commit(commit_of(1)) == Committed()
    assert values(url) == [b"entry 0", b"entry 0", b"entry 1", b"entry 9"]


def test_sinks_in_many_threads_that_commit_the_same_leave_it_once(url: str) -> None:
    DeltaSink(url).commit(commit_of(0))
    barrier = Barrier(4)

    def race(_: int) -> list[type]:
        sink, answers = DeltaSink(url), []
        for sequence in range(1, 8):
            barrier.wait(timeout=PATIENCE)
            while True:
                answer = sink.commit(commit_of(sequence))
                answers.append(type(answer))
                if answer == Committed() or sink.check_committed(commit_of(sequence).identity):
                    break
        return answers

    with ThreadPoolExecutor(4) as runtimes:
        answers = [answer for found in runtimes.map(race, range(4)) for answer in found]
    assert MaybeCommitted in answers, "no two of them met"
    assert values(url) == [b"entry %d" % i for i in range(8)]


def test_sources_of_one_runtime_share_the_sink(url: str) -> None:
    sink = DeltaSink(url)

    def run(source: str) -> None:
        for sequence in range(4):
            assert sink.commit(commit_of(sequence, source=source * 32)) == Committed()

    with ThreadPoolExecutor(3) as sources:
        list(sources.map(run, "abc"))
    assert values(url) == sorted([b"entry %d" % i for i in range(4)] * 3)


def test_runtimes_that_create_the_table_at_once_lose_nothing(url: str) -> None:
    barrier = Barrier(4)

    def run(source: str) -> None:
        sink = DeltaSink(url)
        barrier.wait(timeout=PATIENCE)
        while sink.commit(commit_of(0, source=source * 32)) != Committed():
            pass

    with ThreadPoolExecutor(4) as runtimes:
        list(runtimes.map(run, "abcd"))
    assert values(url) == [b"entry 0"] * 4


def test_rows_are_cast_to_the_columns_of_the_table(url: str) -> None:
    schema = pa.schema([("extra", pa.string()), ("n", pa.int32()), ("text", pa.string())])
    DeltaTable.create(url, schema=schema)
    rows = pa.table({"text": pa.array(["a"], pa.large_string()).dictionary_encode(), "n": pa.array([7], pa.int64())})
    assert DeltaSink(url).commit(make_commit(make_batch([b"x"]), decoder=lambda _: rows)) == Committed()
    assert DeltaTable(url).to_pyarrow_table().to_pylist() == [{"extra": None, "n": 7, "text": "a"}]


STRICT = pa.schema([pa.field("n", pa.int32(), nullable=False), pa.field("text", pa.string())])
N = pa.array([1], pa.int32())


@pytest.mark.parametrize(
    ("rows", "reason", "poison"),
    [
        (pa.table({"n": N, "other": [1]}), r"no column other: add it with merge_schema=True", False),
        (pa.table({"text": ["a"]}), "n must not be null, and the rows have no such column", False),
        (pa.table({"n": [[1]]}), "n: conflict, int32 to list<.*>: let the decoder give", True),
        (
            pa.table({"n": pa.array([1 << 40])}),
            "n: expected int32 not null, found int64: Integer .*not in range",
            True,
        ),
        (pa.table({"n": pa.array([None], pa.int32())}), "n: expected int32 not null, found null", True),
        (pa.table({"n": pa.array([-1], pa.int32())}), "failed validation check", True),
    ],
    ids=["unknown column", "missing column", "other type", "too large", "null", "constraint"],
)
def test_rows_that_do_not_fit_halt_and_say_what_to_do(url: str, rows: pa.Table, reason: str, poison: bool) -> None:
    DeltaTable.create(url, schema=STRICT).alter.add_constraint({"positive": "n > 0"})
    sink = DeltaSink(url)
    answer = sink.commit(make_commit(make_batch([b"x"]), decoder=lambda _: rows))
    assert isinstance(answer, Fatal), answer
    assert re.search(reason, answer.reason), answer.reason
    assert answer.poison is poison
    good = make_commit(make_batch([b"x"], 1), decoder=lambda _: pa.table({"n": N}))
    assert sink.commit(good) == Committed(), "the next one is not harmed"


def test_columns_that_delta_does_not_have_halt(url: str) -> None:
    rows = pa.table({"t": pa.array([1], pa.duration("s"))})
    answer = DeltaSink(url).commit(make_commit(make_batch([b"x"]), decoder=lambda _: rows))
    assert isinstance(answer, Fatal)
    assert "column t: duration[s] cannot be stored so that Spark reads it; use int64" in answer.reason


def test_failure_after_the_version_was_written_is_told_by_the_next_look(url: str) -> None:
    """Checkpoints and cleaning up come after it, and may fail."""

    class Failing(DeltaSink):
        def _append(self, table: DeltaTable, identity: Any, rows: pa.Table) -> None:
            super()._append(table, identity, rows)
            raise OSError("the checkpoint could not be written")

    sink = Failing(url)
    assert isinstance(sink.commit(commit_of(0)), MaybeCommitted)
    assert sink.check_committed(commit_of(0).identity) is True
    assert sink.commit(commit_of(0)) == Committed()
    assert values(url) == [b"entry 0"]


def test_exception_that_is_no_answer_is_not_taken_for_one(url: str) -> None:
    """The runtime gives up after some of these; it would wait for ever for an answer that says "maybe"."""

    class Broken(DeltaSink):
        def _append(self, table: DeltaTable, identity: Any, rows: pa.Table) -> None:
            raise TypeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        Broken(url).commit(commit_of(0))


def test_commits_are_in_order_and_combined_unless_told_otherwise(url: str) -> None:
    assert DeltaSink(url).in_order
    assert DeltaSink(url).combining == Combining(target_bytes=128 << 20)


# On S3


@pytest.fixture
def proxy(weed: SeaweedServer) -> Any:
    with FaultProxy(weed.endpoint_url) as proxy:
        yield proxy


def native(options: dict[str, Any]) -> dict[str, str]:
    """The same options, in delta-rs's words."""
    return {
        "access_key_id": options["key"],
        "secret_access_key": options["secret"],
        "endpoint": options["endpoint_url"],
        "region": options["region"],
        "allow_http": "true",
    }


def test_table_on_s3_is_reached_by_forebays_options(weed: SeaweedServer) -> None:
    url = "s3://tests/delta-plain"
    sink = DeltaSink(url, storage_options=weed.storage_options)
    assert sink.check_committed(commit_of(0).identity) is False
    assert sink.commit(commit_of(0, 4)) == Committed()
    assert values(url, storage_options=native(weed.storage_options)) == [b"entry %d" % i for i in range(5)]


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("s3a://bucket/table/", "s3://bucket/table"),
        ("abfss://container@account.dfs.core.windows.net/table", "az://container/table"),
        ("/tmp/table", "file:///tmp/table"),
    ],
)
def test_url_has_the_spelling_that_stores_have(written: str, url: str) -> None:
    assert DeltaSink(written).url == url


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE_ANSWER, Fault.RESET_BEFORE_ANSWER, Fault.CUT_BEFORE_REQUEST])
def test_lost_answer_to_the_version_is_found_out_and_nothing_is_doubled(
    weed: SeaweedServer, proxy: FaultProxy, fault: Fault
) -> None:
    """The client retries and meets its own version. The table has the commit once, whatever the client answers."""
    url = f"s3://tests/delta-{fault.name}"
    sink = DeltaSink(url, storage_options={**weed.storage_options, "endpoint_url": proxy.endpoint_url})
    sink.commit(commit_of(0))
    proxy.choose = once_for(fault, "PUT /tests/delta-.*/_delta_log/0+2.json")
    answer = sink.commit(commit_of(1))
    if isinstance(answer, MaybeCommitted):
        assert sink.check_committed(commit_of(1).identity) is True
    else:
        assert answer == Committed()
    assert sink.commit(commit_of(2)) == Committed()
    assert values(url, storage_options=native(weed.storage_options)) == [b"entry 0", b"entry 1", b"entry 2"]
    assert any("_delta_log/00000000000000000002.json" in line for line in proxy.requests)


def once_for(fault: Fault, pattern: str) -> Any:
    left = [fault]

    def choose(line: str) -> Fault:
        return left.pop() if left and re.match(pattern, line) else Fault.NONE

    return choose


def test_store_that_is_away_is_waited_for_and_shows_no_secret(weed: SeaweedServer, proxy: FaultProxy) -> None:
    options = {**weed.storage_options, "endpoint_url": proxy.endpoint_url, "max_attempts": 1}
    sink = DeltaSink("s3://tests/delta-away", storage_options=options)
    sink.commit(commit_of(0))
    proxy.choose = lambda _: Fault.CUT_BEFORE_REQUEST
    answer = sink.commit(commit_of(1))
    assert isinstance(answer, MaybeCommitted)
    with pytest.raises(Unavailable) as raised:
        sink.check_committed(commit_of(1).identity)
    for shown in (answer.reason, str(raised.value), repr(sink)):
        assert "delta-away" in shown or "DeltaSink" in shown
        assert weed.storage_options["secret"] not in shown
    proxy.choose = lambda _: Fault.NONE
    assert sink.check_committed(commit_of(1).identity) is False
    assert sink.commit(commit_of(1)) == Committed()


def test_options_and_urls_that_cannot_work_are_refused_at_once() -> None:
    with pytest.raises(InvalidInput, match="profile"):
        DeltaSink("s3://bucket/table", storage_options={"profile": "me"})
    with pytest.raises(InvalidInput, match="endpoint_url"):
        DeltaSink("s3://bucket/table", storage_options={"endpoint": "x"})
    with pytest.raises(InvalidInput, match="no storage options"):
        DeltaSink("file:///tmp/table", storage_options={"key": "x"})
    with pytest.raises(Unsupported, match="memory"):
        DeltaSink("memory://table")


def test_deltalake_that_is_missing_or_too_old_is_refused(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr("forebay.runtime.sinks.delta.version", lambda _: "1.5.9")
    with pytest.raises(Unsupported, match=r"1\.6 or newer, and 1\.5\.9 is installed"):
        DeltaSink(url)

    def missing(_: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr("forebay.runtime.sinks.delta.version", missing)
    with pytest.raises(Unsupported, match="and none is installed"):
        DeltaSink(url)


def test_commit_failed_is_still_what_delta_raises_for_a_rival(url: str) -> None:
    """What the sink relies on in deltalake itself, in case a release changes it."""
    rows = commit_of(0).table
    DeltaTable.create(url, schema=rows.schema)
    behind = DeltaTable(url)
    ours = CommitProperties(app_transactions=[Transaction("reader", 1)])
    write_deltalake(url, rows, mode="append", commit_properties=ours)
    with pytest.raises(CommitFailedError):
        write_deltalake(behind, rows, mode="append", commit_properties=ours)
    assert DeltaTable(url).transaction_version("reader") == 1

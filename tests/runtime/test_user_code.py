"""Code of the user's that a runtime calls: if it raises what is no error, the run ends with that, and does not hang."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest
from filled import new_buffer, run

from forebay.buffer.eventlog import AuditTrail, EventLog
from forebay.buffer.eventlog.memory import MemoryBackend
from forebay.buffer.read.fetch import Batch
from forebay.runtime import Committed
from forebay.runtime.contract import Commit, CommitIdentity
from forebay.runtime.sinks import CallableSink
from forebay.testing.ledger import LedgerSink

NO_ERRORS = [asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit]
"""What `except Exception` does not catch."""

both = pytest.mark.parametrize("raised", NO_ERRORS)


@both
def test_sink_that_raises_no_error_ends_the_run_with_it(raised: type[BaseException]) -> None:
    with pytest.raises(raised, match="from the sink"):
        run(new_buffer(f"sink-{raised.__name__}", 5), LedgerSink((False, raised("from the sink"))))


@both
def test_question_to_a_sink_that_raises_no_error_ends_the_run_with_it(raised: type[BaseException]) -> None:
    class Asked(LedgerSink):
        def check_committed(self, identity: CommitIdentity) -> bool:
            raise raised("from the question")

    with pytest.raises(raised, match="from the question"):
        run(new_buffer(f"question-{raised.__name__}", 5), Asked((False, OSError("lost"))))


@both
def test_decoder_that_raises_no_error_ends_the_run_with_it(raised: type[BaseException]) -> None:
    def decode(_batch: Batch) -> pa.Table:
        raise raised("from the decoder")

    with pytest.raises(raised, match="from the decoder"):
        run(new_buffer(f"decoder-{raised.__name__}", 5), LedgerSink(), decoder=decode)


@both
def test_function_as_a_sink_that_raises_no_error_ends_the_run_with_it(raised: type[BaseException]) -> None:
    def fail(_commit: Commit) -> None:
        raise raised("from the function")

    with CallableSink(fail) as sink, pytest.raises(raised, match="from the function"):
        run(new_buffer(f"function-{raised.__name__}", 5), sink)


@both
def test_async_function_as_a_sink_that_raises_no_error_ends_the_run_with_it(raised: type[BaseException]) -> None:
    async def fail(_commit: Commit) -> None:
        await asyncio.sleep(0)
        raise raised("from the coroutine")

    with CallableSink(fail) as sink, pytest.raises(raised, match="from the coroutine"):
        run(new_buffer(f"coroutine-{raised.__name__}", 5), sink)


def test_task_beside_an_async_function_that_exits_does_not_end_the_loop_for_the_others() -> None:
    async def exits() -> None:
        raise SystemExit("from a task beside")

    async def function(_commit: Commit) -> None:
        beside = asyncio.get_running_loop().create_task(exits())
        await asyncio.wait([beside])
        assert isinstance(beside.exception(), SystemExit)

    with CallableSink(function) as sink:
        assert run(new_buffer("beside", 5), sink).rows == 10


@both
def test_audit_trail_that_raises_no_error_ends_the_run_with_it(raised: type[BaseException]) -> None:
    class Failing(AuditTrail):
        def record(self, kind: str, buffer: str, **details: Any) -> None:
            if kind == "runtime.resumed":
                raise raised("from the trail")

    trail = Failing(EventLog(MemoryBackend("memory://trail")))
    with pytest.raises(raised, match="from the trail"):
        run(new_buffer(f"trail-{raised.__name__}", 5), LedgerSink(), events=trail)


def test_run_after_one_that_was_ended_so_commits_everything() -> None:
    store = new_buffer("after", 5)
    with pytest.raises(SystemExit):
        run(store, LedgerSink((False, SystemExit("from the sink"))))
    sink = LedgerSink((True, Committed()))
    run(store, sink)
    assert len(sink.rows) == 5

from __future__ import annotations

from random import Random

import pytest

from forebay.buffer.base.backoff import full_jitter
from forebay.buffer.base.errors import Unavailable, Unknown
from forebay.buffer.store.failures import Failure, RequestFailed
from forebay.buffer.store.retry import Patience, Retry
from forebay.testing.clock import ManualClock


def test_full_jitter_draws_from_the_whole_range_and_stays_below_the_cap() -> None:
    random = Random(1)
    for attempt, most in [(0, 0.1), (1, 0.2), (3, 0.8), (10, 2.0), (5_000, 2.0)]:
        waits = [full_jitter(random, attempt, 0.1, 2.0) for _ in range(500)]
        assert 0 <= min(waits) < most * 0.05
        assert most * 0.95 < max(waits) <= most


@pytest.mark.parametrize(("failures", "calls"), [(0, 1), (2, 3)])
def test_a_transient_failure_is_repeated_until_it_passes(failures: int, calls: int) -> None:
    clock, seen = ManualClock(), []

    def request() -> str:
        seen.append(clock.monotonic())
        if len(seen) <= failures:
            raise RequestFailed(Failure(503))
        return "done"

    assert Retry(clock, Random(1), attempts=4).call(request) == "done"
    assert len(seen) == calls


def test_repeats_are_bounded_and_take_time() -> None:
    clock, seen = ManualClock(), []

    def request() -> None:
        seen.append(clock.monotonic())
        raise RequestFailed(Failure(None))

    with pytest.raises(RequestFailed):
        Retry(clock, Random(1), attempts=4).call(request)

    assert len(seen) == 4
    assert seen == sorted(set(seen))


@pytest.mark.parametrize("failure", [Failure(403), Failure(404, "NoSuchKey"), Failure(412), Failure(501), Failure(400)])
def test_a_failure_that_stays_is_not_repeated(failure: Failure) -> None:
    seen = []

    def request() -> None:
        seen.append(1)
        raise RequestFailed(failure)

    with pytest.raises(RequestFailed):
        Retry(ManualClock(), Random(1), attempts=4).call(request)

    assert len(seen) == 1


def test_wait_that_the_store_asks_for_is_kept() -> None:
    clock, seen = ManualClock(), []

    def request() -> None:
        seen.append(clock.monotonic())
        raise RequestFailed(Failure(429, retry_after=7.0))

    with pytest.raises(RequestFailed):
        Retry(clock, Random(1), attempts=3).call(request)

    assert seen == [0.0, 7.0, 14.0]


def test_patience_waits_for_a_store_that_is_away_and_no_longer_than_told() -> None:
    clock, seen = ManualClock(), []

    def request() -> None:
        seen.append(clock.monotonic())
        raise Unavailable("away")

    with pytest.raises(Unavailable):
        Patience(clock, Random(1), 30.0).call(request)
    assert max(seen) == 30.0

    with pytest.raises(Unavailable):
        Patience(clock, Random(1), 30.0).call(request, latest=lambda: 40.0)
    assert max(seen) == 40.0


def test_patience_has_a_bound_on_attempts() -> None:
    seen = []

    def request() -> None:
        seen.append(1)
        raise Unknown("away")

    with pytest.raises(Unknown):
        Patience(ManualClock(), Random(1), 1e9, attempts=7).call(request)
    assert len(seen) == 7

"""Time spans that callers pass in: whatever no clock can wait for is refused by name, wherever it is taken."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from forebay import Consumer, Producer, hold
from forebay.buffer.base.checks import check_seconds, check_timeout, check_whole
from forebay.buffer.base.errors import InvalidInput
from forebay.buffer.coordinator import CoordinatorConfig
from forebay.buffer.eventlog import Event, open_event_log
from forebay.buffer.inspect.migrate import migrate
from forebay.buffer.manifest.register import Limits
from forebay.buffer.topic import TopicConsumer, TopicProducer, create_topic
from forebay.gc import Collector, Retention
from forebay.runtime import RuntimeConfig

IMPOSSIBLE = [math.inf, -math.inf, math.nan, 1e300, 10**400, "5", True]
URL = "memory://test-checks"


@pytest.mark.parametrize("value", IMPOSSIBLE, ids=lambda value: str(value)[:8])
@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("grace", lambda value: Producer(URL, grace=value)),
        ("flush_interval", lambda value: Producer(URL, flush_interval=value)),
        ("flush_interval", lambda value: CoordinatorConfig(flush_interval=value)),
        ("max_poll_interval", lambda value: Consumer(URL, max_poll_interval=value)),
        ("max_poll_interval", lambda value: TopicConsumer(URL, max_poll_interval=value)),
        ("flush_interval", lambda value: TopicProducer(URL, flush_interval=value)),
        ("ttl", lambda value: hold(URL, ttl=value)),
        ("grace", lambda value: Collector(URL, grace=value)),
        ("interval", lambda value: Collector(URL).start(value)),
        ("max_age", lambda value: Retention(max_age=value)),
        ("grace", lambda value: migrate(URL, grace=value)),
        ("max_seconds", lambda value: Limits(max_seconds=value)),
        ("poll_interval", lambda value: open_event_log(URL, poll_interval=value)),
        ("drain_seconds", lambda value: RuntimeConfig(drain_seconds=value)),
    ],
)
def test_time_span_that_no_clock_can_wait_for_is_refused_by_name(
    name: str, use: Callable[[Any], object], value: object
) -> None:
    with pytest.raises(InvalidInput, match=name):
        use(value)


@pytest.mark.parametrize("timeout", [math.inf, math.nan, 1e300, 10**400, "5"], ids=lambda value: str(value)[:8])
def test_timeout_that_no_lock_can_wait_for_is_refused_and_nothing_is_changed(timeout: Any) -> None:
    with Producer(f"{URL}-{str(timeout)[:8]}") as producer:
        with pytest.raises(InvalidInput, match="timeout"):
            producer.produce(b"a", timeout=timeout)
        handle = producer.produce(b"a")
        for wait in (handle.result, producer.close):
            with pytest.raises(InvalidInput, match="timeout"):
                wait(timeout)
        handle.result()


@pytest.mark.parametrize("timeout", [math.inf, math.nan, 1e300])
def test_topic_producer_and_subscription_refuse_the_same_timeouts(timeout: float) -> None:
    with TopicProducer(create_topic(f"{URL}-topic-{timeout}", 1).url) as producer:
        for wait in (producer.flush().wait, producer.close):
            with pytest.raises(InvalidInput, match="timeout"):
                wait(timeout=timeout)
    with open_event_log(f"{URL}-events-{timeout}") as log:
        log.append("t", Event("k"))
        subscription, _assignment = log.subscribe("t")
        with subscription, pytest.raises(InvalidInput, match="timeout"):
            subscription.poll(timeout)


def test_timeout_below_zero_counts_as_zero_and_none_has_no_limit() -> None:
    assert check_timeout(-1) == 0.0
    assert check_timeout(None) is None


def test_zero_seconds_are_taken_only_where_they_mean_something() -> None:
    assert check_seconds(0, "grace", zero=True) == 0.0
    with pytest.raises(InvalidInput, match="positive"):
        check_seconds(0, "interval")
    with pytest.raises(InvalidInput, match="grace must be 0 or a positive number of seconds, not -1"):
        check_seconds(-1, "grace", zero=True)


def test_whole_number_beyond_what_is_stored_names_the_bound() -> None:
    with pytest.raises(InvalidInput, match=f"at most {2**62}"):
        check_whole(2**63, "last_acked")
    with pytest.raises(InvalidInput, match="bits"):
        check_whole(10**5000, "last_acked")

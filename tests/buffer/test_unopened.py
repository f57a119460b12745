"""Objects whose constructor failed, and objects that belong to one process."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from forebay import Consumer, Producer, hold, scan
from forebay.buffer.base.errors import Unsupported
from forebay.buffer.eventlog import EventLog, open_event_log
from forebay.buffer.eventlog.subscription import Subscription
from forebay.buffer.holds import HeldRange
from forebay.buffer.topic import Topic, TopicConsumer, TopicProducer, create_topic
from forebay.buffer.topic.holds import HeldTopic
from forebay.gc import Collector
from forebay.runtime import CallableSink, Runtime
from forebay.runtime.catalog import Catalog


@pytest.mark.parametrize(
    "kind",
    [
        *(Producer, Consumer, TopicProducer, TopicConsumer, Topic, HeldRange, HeldTopic, EventLog, Subscription),
        *(Catalog, Runtime),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_was_never_opened_is_shown_and_freed_without_an_error(kind: type[Any]) -> None:
    unopened = kind.__new__(kind)  # what a constructor leaves that raises at once

    assert kind.__name__ in repr(unopened)

    del unopened
    gc.collect()


@pytest.mark.parametrize(
    ("name", "hint", "make"),
    [
        ("Producer", "URL", Producer),
        ("Consumer", "fetch_handle", Consumer),
        ("EventLog", "URL", open_event_log),
        ("TopicProducer", "URL", lambda url: TopicProducer(create_topic(url, 1).url)),
        ("TopicConsumer", "fetch_handle", lambda url: TopicConsumer(create_topic(url, 1).url)),
    ],
)
@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_belongs_to_its_process_says_what_to_pickle_instead(
    name: str, hint: str, make: Callable[[str], Any], duplicate: Callable[[Any], object]
) -> None:
    with (
        make(f"memory://unopened-{name}-{duplicate.__name__}") as opened,
        pytest.raises(Unsupported, match=f"a {name} cannot be pickled.*{hint}"),
    ):
        duplicate(opened)


def test_runtime_says_what_to_pickle_instead() -> None:
    with pytest.raises(Unsupported, match=r"Runtime cannot be pickled.*Source"):
        pickle.dumps(Runtime([], CallableSink(lambda _rows: None)))


@pytest.mark.parametrize("make", [scan, Collector])
def test_scan_and_collector_say_what_to_pickle_instead(make: Callable[[str], Any]) -> None:
    url = f"memory://unopened-{make.__name__}"
    with Producer(url) as producer:
        producer.produce(b"entry")
    with pytest.raises(Unsupported, match=r"a (Scan|Collector) cannot be pickled.*pass on its URL"):
        pickle.dumps(make(url))


def test_hold_says_what_to_pass_on_instead() -> None:
    url = "memory://unopened-hold"
    with Producer(url) as producer:
        producer.produce(b"entry").result()
    with hold(url) as held, pytest.raises(Unsupported, match=r"HeldRange cannot be pickled.*descriptors"):
        pickle.dumps(held)

"""A whole life on real stores: produced, read, collected, verified."""

from __future__ import annotations

from pathlib import Path

import pytest
from azurite import AZURE
from azurite import KIND as AZURITE

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.consumer import Consumer
from forebay.buffer.inspect.verify import Severity, verify
from forebay.buffer.producer import Producer
from forebay.buffer.store import open_store
from forebay.gc import Collector


@pytest.mark.parametrize("kind", ["file", "s3fs", "obstore", AZURE])
@pytest.mark.parametrize("profile", ["native", "opendata"])
def test_what_was_read_is_deleted_and_the_rest_is_intact(
    kind: str, profile: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "file":
        store = open_store(f"file://{tmp_path}/clicks")
    elif kind == AZURITE:
        azurite = request.getfixturevalue("azurite")
        store = open_store(f"az://tests/collected-{profile}", azurite.storage_options)
    else:
        weed = request.getfixturevalue("weed")
        url = f"s3://tests/collected-{kind}-{profile}"
        store = open_store(url, {**weed.storage_options, "client": kind})
    with Producer(store, profile=profile, manifest_path="manifest", data_prefix="data") as producer:  # type: ignore[arg-type]
        for number in range(6):
            producer.produce([b"entry %d" % number]).result()
    with Consumer(store) as consumer:
        consumer.next_descriptors(4)
        consumer.ack_through(3)
    collector = Collector(store, grace=0.0)
    clock = SystemClock()
    for _ in range(100):
        # The store tells time in seconds: what it was given in this one is collected in the next.
        report = collector.collect_once()
        assert report.failed == {}
        if len(list(store.list("data/"))) == 2:
            break
        clock.sleep(0.1)
        if profile == "opendata":
            with Consumer(store):
                pass  # a claim writes the manifest, which is how the store tells the time
    assert len(list(store.list("data/"))) == 2
    assert verify(store).severity is Severity.OK
    with Consumer(store) as consumer:
        assert [bytes(batch.entries[0]) for batch in consumer] == [b"entry 4", b"entry 5"]

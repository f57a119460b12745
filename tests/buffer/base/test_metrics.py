"""Metrics are recorded under the names of their table."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from importlib.metadata import version
from typing import Any

import pytest

PROGRAM = textwrap.dedent("""
    import json
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))

    import forebay
    with forebay.Producer("memory://metrics") as producer:
        producer.produce([b"a", b"b", b"c"]).result()
    CONSUME
    seen = {}
    for resource in reader.get_metrics_data().resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    value = getattr(point, "value", None)
                    seen.setdefault(metric.name, []).append(
                        [point.count if value is None else value, dict(point.attributes)]
                    )
    print(json.dumps(seen))
""")

READ_ALL = """
with forebay.Consumer("memory://metrics") as consumer:
    for batch in consumer:
        consumer.ack_through(batch.sequence)
"""

READ_ONE_LATER = """
class Later(forebay.buffer.base.clock.SystemClock):
    def now_ms(self):
        return super().now_ms() + 3_600_000

forebay.Consumer("memory://metrics", clock=Later()).next_batch()
"""


def measure(consuming: str) -> dict[str, list[Any]]:
    """In a process of its own: a provider can be set once."""
    program = PROGRAM.replace("CONSUME", consuming)
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    seen: dict[str, list[Any]] = json.loads(shown.stdout)
    return seen


def test_consumer_shows_how_many_batches_wait_and_how_old_what_it_read_is() -> None:
    seen = measure(READ_ONE_LATER)
    [[length, attributes]] = seen["forebay.queue.length"]
    assert (length, attributes) == (1, {"buffer": "memory://metrics"})
    [[age, attributes]] = seen["forebay.consumer.lag"]
    assert age >= 3600
    assert attributes == {"buffer": "memory://metrics"}


def test_a_batch_produced_and_consumed_is_counted_under_the_names_of_the_table() -> None:
    seen = measure(READ_ALL)
    for points in seen.values():
        for _value, attributes in points:
            assert attributes["buffer"] == "memory://metrics"
    counted = {name: sum(point[0] for point in points) for name, points in seen.items()}
    assert counted["forebay.batches.flushed"] == counted["forebay.batches.fetched"] == 1
    assert counted["forebay.entries.flushed"] == counted["forebay.entries.fetched"] == 3
    assert counted["forebay.bytes.flushed"] == 3 * 5
    assert counted["forebay.bytes.written"] == counted["forebay.bytes.fetched"] > 0
    assert counted["forebay.acks"] == counted["forebay.descriptors.handed_out"] == 1
    assert counted["forebay.flush.duration"] == counted["forebay.fetch.duration"] == 1
    roles = {point[1]["role"]: point[0] for point in seen["forebay.manifest.writes"]}
    assert roles["producer"] >= 1
    assert roles["consumer"] >= 2


# A program with an SDK of its own and no views: what its exporter gets of every instrument.
DESCRIBE = textwrap.dedent("""
    import json
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from forebay.buffer.base import metrics as ours

    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    for name, instrument in vars(ours).items():
        for verb in ("add", "set", "record"):
            if not name.startswith("_") and hasattr(instrument, verb):
                getattr(instrument, verb)(1)
    [resource] = reader.get_metrics_data().resource_metrics
    [scope] = resource.scope_metrics
    print(json.dumps({
        "scope": [scope.scope.name, scope.scope.version],
        "bounds": ours.SECONDS,
        "metrics": [
            [m.name, m.unit, m.description, getattr(m.data.data_points[0], "explicit_bounds", None)]
            for m in scope.metrics
        ],
    }))
""")


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    shown = subprocess.run([sys.executable, "-c", DESCRIBE], capture_output=True, text=True, check=True)
    described: dict[str, Any] = json.loads(shown.stdout)
    return described


def test_every_instrument_has_a_unit_and_a_description(described: dict[str, Any]) -> None:
    assert len(described["metrics"]) > 30
    assert [name for name, unit, what, _ in described["metrics"] if not unit or not what] == []


def test_histograms_of_seconds_bring_bounds_in_seconds_to_a_users_own_sdk(described: dict[str, Any]) -> None:
    bounds = {name: bounds for name, unit, _, bounds in described["metrics"] if bounds is not None}
    assert "forebay.flush.duration" in bounds
    assert set(map(tuple, bounds.values())) == {tuple(described["bounds"])}


def test_scope_is_forebay_in_its_installed_version(described: dict[str, Any]) -> None:
    assert described["scope"] == ["forebay", version("forebay")]

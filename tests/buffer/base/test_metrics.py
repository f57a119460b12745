"""Metrics are recorded under the names of their table."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import textwrap
from typing import Any

from forebay.buffer.base import metrics

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
                        [point.count if value is None else value, metric.unit, dict(point.attributes)]
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


def table() -> dict[str, str]:
    """The docstring's table: name to unit."""
    assert metrics.__doc__ is not None
    return dict(re.findall(r"^\| `(forebay\.[a-z_.]+)` \| \w+ \| `([^`]+)` \|", metrics.__doc__, re.MULTILINE))


def measure(consuming: str) -> dict[str, list[Any]]:
    """In a process of its own: a provider can be set once."""
    program = PROGRAM.replace("CONSUME", consuming)
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    seen: dict[str, list[Any]] = json.loads(shown.stdout)
    return seen


def test_consumer_shows_how_many_batches_wait_and_how_old_what_it_read_is() -> None:
    seen = measure(READ_ONE_LATER)
    [[length, _, attributes]] = seen["forebay.queue.length"]
    assert (length, attributes) == (1, {"buffer": "memory://metrics"})
    [[age, _, attributes]] = seen["forebay.consumer.lag"]
    assert age >= 3600
    assert attributes == {"buffer": "memory://metrics"}


def test_a_batch_produced_and_consumed_is_counted_under_the_names_of_the_table() -> None:
    seen = measure(READ_ALL)
    units = table()
    for name, points in seen.items():
        for _value, unit, attributes in points:
            assert units[name] == unit
            assert attributes["buffer"] == "memory://metrics"
    counted = {name: sum(point[0] for point in points) for name, points in seen.items()}
    assert counted["forebay.batches.flushed"] == counted["forebay.batches.fetched"] == 1
    assert counted["forebay.entries.flushed"] == counted["forebay.entries.fetched"] == 3
    assert counted["forebay.bytes.flushed"] == 3 * 5
    assert counted["forebay.bytes.written"] == counted["forebay.bytes.fetched"] > 0
    assert counted["forebay.acks"] == counted["forebay.descriptors.handed_out"] == 1
    assert counted["forebay.flush.duration"] == counted["forebay.fetch.duration"] == 1
    roles = {point[2]["role"]: point[0] for point in seen["forebay.manifest.writes"]}
    assert roles["producer"] >= 1
    assert roles["consumer"] >= 2


def test_every_instrument_is_in_the_table_with_its_unit() -> None:
    made = re.findall(r'create_\w+\("([^"]+)", "([^"]+)"\)', inspect.getsource(metrics))
    assert dict(made) == table()

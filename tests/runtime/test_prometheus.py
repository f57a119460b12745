"""Metrics for Prometheus: served as they are named, and the dashboard and documents name what is served."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.metrics import Instrument

from forebay import InvalidInput, Unsupported
from forebay.buffer.base import metrics
from forebay.buffer.base.install import install_hint
from forebay.cli.export_metrics import GAUGES
from forebay.runtime.prometheus import serve_metrics

DOCS = Path(__file__).parent.parent.parent / "docs"

# In a process of its own: a provider can be set once.
PROGRAM = textwrap.dedent("""
    import json
    from urllib.request import urlopen

    from prometheus_client.parser import text_string_to_metric_families

    import forebay
    from forebay.buffer.base import metrics
    from forebay.runtime import CallableSink, Runtime, Source
    from forebay.runtime.prometheus import serve_metrics

    def scrape(url):
        families = text_string_to_metric_families(urlopen(url).read().decode())
        return [[s.name, s.labels, s.value] for f in families for s in f.samples if s.name.startswith("forebay")]

    with serve_metrics(0) as server:
        with forebay.Producer("memory://prometheus") as producer:
            producer.produce([b"a", b"b", b"c"])
        with CallableSink(lambda commit: None) as sink:
            Runtime([Source("memory://prometheus", group="etl")], sink).run(until_caught_up=True, show_progress=False)
        run = scrape(server.url)
        for name, instrument in vars(metrics).items():
            for verb in ("add", "set", "record"):
                if not name.startswith("_") and hasattr(instrument, verb):
                    getattr(instrument, verb)(1)
        everything = scrape(server.url)
    server.close()
    with serve_metrics(0) as another:
        print(json.dumps({"run": run, "everything": everything, "again": scrape(another.url)}))
""")


@pytest.fixture(scope="module")
def scraped() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def served(scraped: dict[str, Any]) -> set[str]:
    """The names that a query would use, histograms without their endings, and those of `forebay export-metrics`."""
    names = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name, _labels, _value in scraped["everything"]}
    return names | set(GAUGES)


def names_in(text: str) -> set[str]:
    found = re.findall(r"\bforebay_[a-z_]+[a-z]\b(?![\w.*])", text)
    fixtures = {"forebay_bucket", "forebay_buffer"}
    return {re.sub(r"(?<=_seconds)_(bucket|count|sum)$", "", name) for name in found} - fixtures


def test_running_runtime_can_be_scraped(scraped: dict[str, Any]) -> None:
    samples = {(name, labels.get("buffer"), labels.get("group")): value for name, labels, value in scraped["run"]}
    assert samples["forebay_runtime_rows_total", "memory://prometheus", "etl"] == 3
    assert samples["forebay_entries_flushed_total", "memory://prometheus", None] == 3
    assert samples["forebay_runtime_lag_batches", "memory://prometheus", "etl"] == 0


def test_durations_are_counted_by_bounds_in_seconds(scraped: dict[str, Any]) -> None:
    bounds = [labels["le"] for name, labels, _ in scraped["run"] if name == "forebay_flush_duration_seconds_bucket"]
    assert {"0.005", "1.0", "60.0", "+Inf"} <= set(bounds)


def test_server_that_was_closed_can_be_started_again(scraped: dict[str, Any]) -> None:
    assert scraped["again"] == scraped["everything"]


def test_every_metric_is_served_and_on_the_dashboard_and_no_other(scraped: dict[str, Any]) -> None:
    dashboard = json.loads((DOCS / "grafana" / "forebay.json").read_text())
    shown = set()
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            shown |= names_in(target["expr"])
    assert shown == served(scraped)
    made = [value for value in vars(metrics).values() if isinstance(value, Instrument)]
    assert len(shown) == len(made) + len(GAUGES)


def test_documents_name_only_metrics_that_are_served(scraped: dict[str, Any]) -> None:
    named = set().union(*(names_in(path.read_text()) for path in DOCS.glob("*.md")))
    assert named
    assert named <= served(scraped)


def alert_rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DOCS / "grafana" / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_alert_rules_name_only_metrics_that_are_served(scraped: dict[str, Any]) -> None:
    for rule in alert_rules():
        named = names_in(rule["expr"])
        assert named, rule["alert"]
        assert named <= served(scraped), rule["alert"]


@pytest.mark.parametrize("rule", alert_rules(), ids=lambda rule: rule["alert"])
def test_alert_rule_is_one_that_prometheus_takes(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch("Forebay[A-Za-z]+", rule["alert"])
    assert rule["expr"].count("(") == rule["expr"].count(")")
    assert re.fullmatch("[0-9]+[mh]", rule.get("for", "1m"))
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert set(rule["annotations"]) == {"summary", "description"}
    by = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", rule["expr"]))))
    assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= by, "labels that the alert has not"


def test_documents_list_every_alert_once() -> None:
    listed = re.findall(r"^\| `(Forebay\w+)` \|", (DOCS / "monitoring.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(rule["alert"] for rule in alert_rules())


def test_panels_have_places_of_their_own() -> None:
    panels = json.loads((DOCS / "grafana" / "forebay.json").read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in panels):
        cells = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert not cells & taken
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_port_in_use_is_an_error_that_names_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match=rf"127\.0\.0\.1:{port}: Address already in use; choose another"):
            serve_metrics(port)


@pytest.mark.parametrize("port", [-1, 65_536, "9464"])
def test_port_that_is_none_is_refused(port: Any) -> None:
    with pytest.raises(InvalidInput, match="port"):
        serve_metrics(port)


@pytest.mark.parametrize("missing", ["prometheus_client", "opentelemetry.exporter.prometheus"])
def test_missing_extra_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delattr("opentelemetry.exporter.prometheus", raising=False)
    with pytest.raises(Unsupported, match=re.escape(install_hint("metrics"))):
        serve_metrics(0)


def test_process_that_exports_its_metrics_already_is_told_so() -> None:
    program = textwrap.dedent("""
        from opentelemetry import metrics
        from opentelemetry.sdk.metrics import MeterProvider
        metrics.set_meter_provider(MeterProvider())
        import forebay
        from forebay.runtime.prometheus import serve_metrics
        try:
            serve_metrics(0)
        except forebay.InvalidInput as error:
            print(error)
    """)
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "by an OpenTelemetry SDK" in shown.stdout

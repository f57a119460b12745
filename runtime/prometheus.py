"""Metrics of this process for Prometheus to scrape. Needs the extra `metrics`.

A program that has an OpenTelemetry SDK of its own needs none of this: its exporter gets forebay's metrics as it is.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from forebay.buffer.base.checks import check_whole
from forebay.buffer.base.errors import InvalidInput, Unsupported
from forebay.buffer.base.install import install_hint
from forebay.buffer.base.lifecycle import Closing, shows_unopened

if TYPE_CHECKING:
    from threading import Thread
    from wsgiref.simple_server import WSGIServer

    from prometheus_client import CollectorRegistry
    from prometheus_client.registry import Collector


class MetricsServer(Closing):
    """An HTTP server of this process's metrics, in a thread of its own; `close()` ends it."""

    def __init__(self, url: str, server: WSGIServer, thread: Thread) -> None:
        self.url = url
        """Where to scrape, such as `http://127.0.0.1:9464/metrics`."""
        self._server = server
        self._thread = thread

    def close(self) -> None:
        """Listen no more. Closing again does nothing."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @shows_unopened
    def __repr__(self) -> str:
        return f"<MetricsServer at {self.url}>"


def serve_metrics(port: int, host: str = "127.0.0.1") -> MetricsServer:
    """Serve this process's metrics to Prometheus until the server that is returned is closed.

    Args:
        port: where to listen; 0 takes a free one.
        host: the address to listen on. Anyone who can reach it can read the URLs of buffers and the names of groups.

    Raises:
        InvalidInput: nothing can listen there, or this process exports its metrics elsewhere already.
        Unsupported: the extra `metrics` is not installed.
    """
    _check_installed()
    from prometheus_client import REGISTRY  # noqa: PLC0415 - an extra

    serving = _listen(port, host, REGISTRY)
    try:
        _install_exporter()
    except BaseException:
        serving.close()
        raise
    return serving


def serve_collector(collector: Collector, port: int, host: str = "127.0.0.1") -> MetricsServer:
    """Serve what a collector of `prometheus_client` returns for each scrape, and nothing of this process.

    Raises:
        InvalidInput: nothing can listen there.
        Unsupported: the extra `metrics` is not installed.
    """
    _check_installed()
    from prometheus_client import CollectorRegistry  # noqa: PLC0415 - an extra

    registry = CollectorRegistry()
    registry.register(collector)
    return _listen(port, host, registry)


def _check_installed() -> None:
    try:
        import prometheus_client  # noqa: F401, PLC0415 - an extra
        from opentelemetry.exporter import prometheus  # noqa: F401, PLC0415
    except ImportError as error:
        raise Unsupported(f"serving metrics needs the extra `metrics`: {install_hint('metrics')}") from error


def _listen(port: int, host: str, registry: CollectorRegistry) -> MetricsServer:
    from prometheus_client import start_http_server  # noqa: PLC0415 - an extra

    check_whole(port, "port", most=65_535)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise InvalidInput(f"metrics cannot be served on {host}:{port}: {error.strerror}; choose another") from error
    return MetricsServer(f"http://{host}:{server.server_port}/metrics", server, thread)


@cache
def _install_exporter() -> None:
    """Let OpenTelemetry hand the metrics to Prometheus; once for the life of the process, as OpenTelemetry has it."""
    from opentelemetry import metrics  # noqa: PLC0415
    from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: PLC0415
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415

    if isinstance(metrics.get_meter_provider(), MeterProvider):
        raise InvalidInput(
            "this process exports metrics already, by an OpenTelemetry SDK, and those of forebay "
            "with them: add a Prometheus reader there instead"
        )
    metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))

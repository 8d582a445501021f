"""Serve /metrics and /healthz from counters in shared memory.

A process of its own does it: a scraper can slow down neither the mount nor its supervisor. This module is loaded only
where there is an endpoint, because prometheus_client takes 40 ms to load.
"""

import logging
import socket
import sys
import wsgiref.simple_server
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, product
from socketserver import ThreadingMixIn
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from fastfuse.errors import MountError
from fastfuse.metrics import BUILD_INFO, HISTOGRAMS, METRICS, Counters

_log = logging.getLogger(__name__)


class _SharedCollector(Collector):
    def __init__(self, channels: Mapping[str, Counters]) -> None:
        # A mount has no name. Of several channels, all have the same labels.
        self._channels = [
            ({**({"channel": name} if name else {}), **counters.labels}, counters)
            for name, counters in channels.items()
        ]

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily(BUILD_INFO.name, BUILD_INFO.help, labels=[BUILD_INFO.label])
        build.add_metric([*BUILD_INFO.values], 1)
        yield build
        names = [*self._channels[0][0]] if self._channels else []
        channels = [([*labels.values()], counters) for labels, counters in self._channels]
        for metric in METRICS:
            kind = GaugeMetricFamily if metric.is_gauge else CounterMetricFamily
            family = kind(metric.name, metric.help, labels=[*names, *filter(None, [metric.label])])
            for (own, counters), value in product(channels, metric.values):
                family.add_metric([*own, *filter(None, [value])], counters.get(metric.name, value) * metric.unit)
            yield family
        for histogram in HISTOGRAMS:
            distributions = HistogramMetricFamily(histogram.name, histogram.help, labels=names)
            for own, counters in channels:
                seen = counters.distribution(histogram)
                bounds = (*map(floatToGoString, seen.bounds_s), "+Inf")
                distributions.add_metric(own, [*zip(bounds, accumulate(seen.counts), strict=True)], seen.sum_s)
            yield distributions


class _QuietHandler(wsgiref.simple_server.WSGIRequestHandler):
    timeout = 5.0  # a client that is silent for so many seconds loses its thread

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not worth a log line each."""


class _Server(ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    """One thread for each client: a browser's spare connection, which says nothing, must not hold up a probe."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Log what went wrong, but for a client that has gone, as a load balancer does, or that gets no thread."""
        if not isinstance(sys.exception(), OSError | RuntimeError):
            _log.exception("a scrape failed for an unforeseen reason")


def bind_metrics(host: str, port: int) -> socket.socket:
    """Return a listening socket for the endpoint, so that a bad address is refused before anything is mounted.

    Raises:
        MountError: the address cannot be listened on.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise MountError(
            f"cannot listen on {host}:{port} for metrics: {error.strerror or error}",
            hint="name a free port of this host with --metrics-listen; 'ss -ltnp' names what has this one",
        ) from error


def endpoint_url(listener: socket.socket) -> str:
    """Return where `listener` can be scraped."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"


def health(channels: Mapping[str, Counters]) -> str:
    """Return why somebody who asks ``/healthz`` should not send readers, or "" if nothing speaks against it."""
    for name, counters in channels.items():
        if counters.get("fastfuse_draining"):
            reason = "stopping"
        elif counters.get("fastfuse_reads_failing"):
            reason = "reads fail: nothing was delivered"
        elif not name and not counters.get("fastfuse_listed_timestamp_seconds"):
            reason = "listing"
        else:
            continue
        return f"{name}: {reason}" if name else reason
    return ""


def serve_metrics(listener: socket.socket, channels: Mapping[str, Counters]) -> None:
    """Answer scrapes for ever; a job's counters by channel, those of a mount under an empty name."""
    registry = CollectorRegistry()
    registry.register(_SharedCollector(channels))
    address = listener.getsockname()[:2]
    server = _Server(address, _QuietHandler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.server_name, server.server_port = address
    server.setup_environ()
    metrics = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/healthz":
            scraped: Iterable[bytes] = metrics(environ, start_response)
            return scraped
        reason = health(channels)
        start_response("503 Service Unavailable" if reason else "200 OK", [("Content-Type", "text/plain")])
        return [f"{reason or 'ok'}\n".encode()]

    server.set_app(answer)
    server.serve_forever()

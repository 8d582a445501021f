"""Metrics: what is scraped of them, and their slots, a contract with the processes that count.

docs/METRICS.md has their names and labels, and tests/docs compares it."""

import http.client
import math
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from fastfuse import __version__
from fastfuse.errors import MountError
from fastfuse.filesystem.figures import scrapes
from fastfuse.filesystem.figures.scrapes import bind_metrics, health, serve_metrics
from fastfuse.filesystem.figures.status import TroubleGauges
from fastfuse.filesystem.processes.children import fork_child, wait_child
from fastfuse.metrics import (
    BUILD_INFO,
    HISTOGRAMS,
    METRICS,
    Counters,
    mount_labels,
)

HISTOGRAM_NAMES = ("fastfuse_get_first_byte_seconds", "fastfuse_get_seconds", "fastfuse_read_seconds")


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def scrape(counters: Counters) -> Iterator[tuple[str, int]]:
    """The address of an endpoint in a process of its own, as the supervisor starts it."""
    with bind_metrics("127.0.0.1", 0) as listener:
        host, port = listener.getsockname()
        server = fork_child(lambda: serve_metrics(listener, {"": counters}))
    yield host, port
    os.kill(server, signal.SIGKILL)
    assert wait_child(server) == -signal.SIGKILL


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrapes._QuietHandler, "timeout", 0.1)


def scraped(address: tuple[str, int]) -> str:
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        connection.request("GET", "/metrics")
        reply = connection.getresponse()
        assert reply.status == 200
        return reply.read().decode()
    finally:
        connection.close()


def test_the_exposition_has_every_metric_with_every_label(counters: Counters, scrape: tuple[str, int]) -> None:
    counters.count("fastfuse_fetch_requests", 3, "denied")
    counters.set("fastfuse_waiting_reads", 5)
    families = {family.name: family for family in text_string_to_metric_families(scraped(scrape))}
    assert families.keys() == {metric.name for metric in METRICS} | {*HISTOGRAM_NAMES, BUILD_INFO.name}
    [build] = families[BUILD_INFO.name].samples
    assert (build.labels, build.value) == ({"version": __version__}, 1)
    for metric in METRICS:
        assert families[metric.name].type == ("gauge" if metric.is_gauge else "counter")
        name = metric.name + ("" if metric.is_gauge else "_total")
        assert [(sample.name, sample.labels) for sample in families[metric.name].samples] == [
            (name, {metric.label: value} if metric.label else {}) for value in metric.values
        ]
    assert [sample.value for sample in families["fastfuse_fetch_requests"].samples] == [0, 0, 3, 0, 0, 0, 0, 0]
    assert families["fastfuse_waiting_reads"].samples[0].value == 5


def test_a_histogram_counts_each_time_once_and_sums_them(counters: Counters, scrape: tuple[str, int]) -> None:
    assert tuple(histogram.name for histogram in HISTOGRAMS) == HISTOGRAM_NAMES
    for name in HISTOGRAM_NAMES:
        observe = counters.observer(name)
        for took_s in (0.0, 0.001, 0.0011, 0.02, 31.0):
            observe(took_s)
    families = {family.name: family for family in text_string_to_metric_families(scraped(scrape))}
    for name in HISTOGRAM_NAMES:
        found = {sample.name + sample.labels.get("le", ""): sample.value for sample in families[name].samples}
        assert [found[f"{name}_bucket{bound}"] for bound in ("0.001", "0.0025", "0.01", "0.025", "30.0", "+Inf")] == [
            *(2, 3, 3, 4, 4, 5)
        ]
        assert found[f"{name}_count"] == 5
        assert found[f"{name}_sum"] == pytest.approx(31.0221)


@given(st.lists(st.floats(0, 40), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_a_quantile_lies_in_the_bucket_of_the_time_that_it_estimates(times_s: list[float], share: float) -> None:
    counters = Counters()
    observe = counters.observer("fastfuse_get_seconds")
    for took_s in times_s:
        observe(took_s)
    [histogram] = [one for one in HISTOGRAMS if one.name == "fastfuse_get_seconds"]
    bounds = (0.0, *histogram.bounds_s, float("inf"))
    exact = sorted(times_s)[max(0, math.ceil(share * len(times_s) - 1e-9) - 1)]
    lower, upper = next((low, high) for low, high in pairwise(bounds) if exact <= high)
    assert lower <= counters.distribution(histogram).quantile(share) <= min(upper, histogram.bounds_s[-1])


def test_each_metric_says_of_which_mount_it_is_also_where_that_is_not_utf_8() -> None:
    counters = Counters(labels=mount_labels(Path(os.fsdecode(b"/mnt/\xff")), "bucket"))
    families = scrapes._SharedCollector({"": counters}).collect()
    labels = [sample.labels for family in families if family.name != BUILD_INFO.name for sample in family.samples]
    assert {(one["mount"], one["bucket"]) for one in labels} == {("/mnt/\ufffd", "bucket")}


def test_neither_silent_clients_nor_those_that_go_disturb_a_scrape_or_the_log(
    counters: Counters, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scrapes._QuietHandler, "timeout", None)

    def serve() -> None:
        monkeypatch.setattr(sys, "stderr", (tmp_path / "stderr").open("w", buffering=1))
        serve_metrics(listener, {"": counters})

    with bind_metrics("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        server = fork_child(serve)
    for _ in range(5):
        with socket.create_connection(address) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # the end is a reset
            client.send(b"GET /healthz HTTP/1.0\r\n")
    with ExitStack() as silent:
        for _ in range(32):
            silent.enter_context(socket.create_connection(address))
        assert "fastfuse_requests_total 0.0" in scraped(address)
    os.kill(server, signal.SIGKILL)
    wait_child(server)
    assert (tmp_path / "stderr").read_text() == ""


@pytest.mark.usefixtures("impatient")
def test_a_client_that_says_nothing_does_not_hold_its_thread_for_ever(scrape: tuple[str, int]) -> None:
    with socket.create_connection(scrape, timeout=60) as silent:
        assert silent.recv(1) == b""


def test_a_client_that_no_thread_can_be_made_for_is_hung_up_on_without_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    with (
        scrapes._Server(("127.0.0.1", 0), scrapes._QuietHandler) as server,
        socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as client,
    ):
        server.handle_request()
        assert client.recv(1) == b""
    assert not caplog.messages


@pytest.mark.parametrize(
    ("numbers", "status", "text"),
    [
        ({}, 503, "listing"),
        ({"fastfuse_listed_timestamp_seconds": 1}, 200, "ok"),
        ({"fastfuse_listed_timestamp_seconds": 1, "fastfuse_in_trouble": 1}, 200, "ok"),
        ({"fastfuse_listed_timestamp_seconds": 1, "fastfuse_reads_failing": 1}, 503, "reads fail"),
        ({"fastfuse_reads_failing": 1, "fastfuse_draining": 1}, 503, "stopping"),
    ],
)
def test_probes_learn_whether_the_mount_serves(
    counters: Counters, scrape: tuple[str, int], numbers: dict[str, int], status: int, text: str
) -> None:
    for name, number in numbers.items():
        counters.set(name, number)
    connection = http.client.HTTPConnection(*scrape, timeout=60)
    connection.request("GET", "/healthz")
    reply = connection.getresponse()
    assert reply.status == status
    assert reply.read().decode().startswith(text)
    connection.close()


def test_a_channel_whose_requests_are_tried_in_vain_is_ill_and_well_once_one_succeeds() -> None:
    train = Counters()
    gauges = TroubleGauges(train)
    trouble = {"since": time.time() - 60, "failures": {"503 SlowDown": 9}, "requests": 3}
    assert gauges.look(trouble, 0.0)
    assert health({"test": Counters(), "train": train}) == "train: reads fail: nothing was delivered"
    train.count("fastfuse_fetch_requests", 1, "ok")
    assert not gauges.look(trouble, 1.0)
    assert (health({"train": train}), train.get("fastfuse_in_trouble")) == ("", 1)


def test_numbers_do_not_overlap(counters: Counters) -> None:
    names = [(metric.name, value) for metric in METRICS for value in metric.values]
    numbers = {name: number for number, name in enumerate(names)}
    for (name, value), number in numbers.items():
        counters.count(name, number, value)
    assert {of: counters.get(*of) for of in numbers} == numbers
    assert counters.memory("fastfuse_requests")[0] == counters.get("fastfuse_requests")


@pytest.mark.parametrize(
    ("name", "value"), [("fastfuse_nothing", ""), ("fastfuse_errors", "EPERM"), ("fastfuse_errors", "")]
)
def test_what_is_not_declared_is_not_counted(counters: Counters, name: str, value: str) -> None:
    with pytest.raises(KeyError):
        counters.count(name, 1, value)


def test_an_address_that_is_taken_is_refused() -> None:
    with bind_metrics("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MountError, match=f"cannot listen on 127.0.0.1:{port} for metrics: Address already"):
            bind_metrics("127.0.0.1", port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "::ffff:192.0.2.1"])
def test_an_address_that_is_not_ours_is_refused(host: str) -> None:
    with pytest.raises(MountError, match=f"cannot listen on {host}:9567") as caught:
        bind_metrics(host, 9567)
    assert "--metrics-listen" in caught.value.hint


def test_ipv6_loopback_is_an_address() -> None:
    with bind_metrics("::1", 0) as listener:
        assert listener.family == socket.AF_INET6

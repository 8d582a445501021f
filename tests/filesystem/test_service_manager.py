"""sd_notify(3), against a socket of our own."""

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.s3server import LoopbackServer, MemoryObjects
from fastfuse.filesystem.talking.service_manager import Notifier
from tests.mounting import ENVIRONMENT, mounted


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.setblocking(False)
        yield receiver


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    return clock


def test_it_says_every_five_seconds_that_it_lives_once_it_is_ready(manager: socket.socket, clock: list[float]) -> None:
    notifier = Notifier(manager.getsockname())
    notifier.is_alive()
    notifier.ready()
    assert manager.recv(1024) == b"READY=1"
    for clock[0], is_sent in ((104.9, False), (105.0, True), (109.9, False), (200.0, True), (204.0, False)):
        notifier.is_alive()
        if is_sent:
            assert manager.recv(1024) == b"WATCHDOG=1"
        with pytest.raises(BlockingIOError):
            manager.recv(1024)


def test_a_shorter_watchdog_hears_it_three_times_as_often(manager: socket.socket, clock: list[float]) -> None:
    notifier = Notifier(manager.getsockname(), watchdog_s=6.0)
    notifier.ready()
    assert manager.recv(1024) == b"READY=1"
    for clock[0] in (102.0, 104.0):
        notifier.is_alive()
        assert manager.recv(1024) == b"WATCHDOG=1"


def test_a_manager_that_does_not_read_stops_nothing(
    manager: socket.socket, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Notifier(manager.getsockname())
    notifier.ready()
    for _ in range(2000):  # more than any queue of datagrams holds
        clock[0] += 5
        notifier.is_alive()
    assert not caplog.records


@pytest.mark.parametrize(
    ("status", "sent"), [("listing s3://b/a\nREADY=1", b"listing s3://b/a"), ("skipped \udcff", b"skipped ?")]
)
def test_a_status_is_one_line_of_utf8(manager: socket.socket, status: str, sent: bytes) -> None:
    Notifier(manager.getsockname()).status(status)
    assert manager.recv(1024) == b"STATUS=" + sent


def test_an_at_sign_names_a_socket_in_the_abstract_namespace(tmp_path: Path) -> None:
    name = f"fastfuse-test{tmp_path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + name)
        receiver.setblocking(False)
        Notifier("@" + name).ready()
        assert receiver.recv(1024) == b"READY=1"


@pytest.mark.parametrize("nowhere", [None, ""])
def test_without_a_socket_nothing_is_logged(nowhere: str | None, caplog: pytest.LogCaptureFixture) -> None:
    Notifier(nowhere).ready()
    assert not caplog.records


def test_a_manager_that_is_gone_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Notifier(str(tmp_path / "gone")).ready()
    assert [record.getMessage() for record in caplog.records] == [
        "the service manager did not take READY=1: No such file or directory"
    ]


@pytest.mark.fuse
def test_a_mount_says_that_it_lives_for_as_long_as_it_serves() -> None:
    environment = {**ENVIRONMENT, "WATCHDOG_USEC": "3000000"}
    with (
        LoopbackServer({"bucket": MemoryObjects({"data/a": b"a"})}) as server,
        mounted("s3://bucket/data", server.endpoint_url, environment=environment) as mount,
    ):
        mount.notify_socket.settimeout(60)
        assert mount.notify_socket.recv(1024).startswith(b"STATUS=serving")
        assert [mount.notify_socket.recv(1024) for _ in range(2)] == [b"WATCHDOG=1"] * 2

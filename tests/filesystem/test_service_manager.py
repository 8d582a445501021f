"""sd_notify(3), against a socket of our own."""

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


@pytest.mark.parametrize(("watchdog", "every_s"), [({}, 5.0), ({"watchdog_s": 6.0}, 2.0)])
def test_it_says_that_it_lives_every_five_seconds_or_three_times_as_often_as_the_watchdog_looks(
    manager: socket.socket, clock: list[float], watchdog: dict[str, float], every_s: float
) -> None:
    notifier = Notifier(manager.getsockname(), **watchdog)
    notifier.alive()
    notifier.ready()
    assert manager.recv(1024) == b"READY=1"
    for passed_s, is_sent in ((-0.1, False), (0.0, True), (every_s - 0.1, False), (100.0, True), (100.0, False)):
        clock[0] = 100.0 + every_s + passed_s
        notifier.alive()
        if is_sent:
            assert manager.recv(1024) == b"WATCHDOG=1"
        with pytest.raises(BlockingIOError):
            manager.recv(1024)


def test_a_manager_that_does_not_read_stops_nothing(
    manager: socket.socket, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Notifier(manager.getsockname())
    notifier.ready()
    for _ in range(2000):  # more than any queue of datagrams holds
        clock[0] += 5
        notifier.alive()
    assert not caplog.records


def test_a_status_is_one_line_of_utf8_also_to_an_abstract_socket(tmp_path: Path) -> None:
    name = f"fastfuse-test{tmp_path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}")
        receiver.setblocking(False)
        for status, sent in ("listing s3://b/a\nREADY=1", b"listing s3://b/a"), ("skipped \udcff", b"skipped ?"):
            Notifier(f"@{name}").status(status)
            assert receiver.recv(1024) == b"STATUS=" + sent


def test_only_a_manager_that_is_gone_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for nowhere in (None, "", str(tmp_path / "gone")):
        Notifier(nowhere).ready()
    assert caplog.messages == ["the service manager did not take READY=1: No such file or directory"]


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

"""Asking a running mount: who may, and what is said to whom nobody answers."""

import json
import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastfuse.errors import MountError
from fastfuse.mount import control
from fastfuse.mount.control import RefreshReport, accept_request, listen, request_refresh
from fastfuse.mount.mountpoint import MountEntry

DEVICE = f"test:{os.getpid()}"


@pytest.fixture(autouse=True)
def _connections_are_no_signals_here() -> Iterator[None]:
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGIO, before)


@pytest.fixture
def mountpoint(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place where mountinfo has a mount of ours."""
    entry = MountEntry(Path("/mnt"), DEVICE, "fuse.fastfuse", "s3://b/", os.geteuid())
    monkeypatch.setattr(control, "find_mount", lambda _: entry)
    return entry.path


def test_a_report_in_words() -> None:
    report = RefreshReport(added=1200, removed=0, replaced=3, files=1_000_000, elapsed_s=2.04)
    assert str(report) == "1,200 added, 0 removed, 3 replaced; 1,000,000 objects now, 2.0 s"


def test_a_mount_that_nobody_serves_does_not_answer(mountpoint: Path) -> None:
    with pytest.raises(MountError, match="the mount at /mnt does not answer"):
        request_refresh(mountpoint)


def test_a_connection_is_a_signal() -> None:
    heard = threading.Event()
    signal.signal(signal.SIGIO, lambda *_: heard.set())
    with listen(DEVICE), socket.socket(socket.AF_UNIX) as client:
        client.connect(f"\0fastfuse-{DEVICE}-{os.getpid()}")
        assert heard.wait(60)


def test_requests_are_taken_one_after_the_other_without_waiting() -> None:
    with listen(DEVICE) as listener:
        assert accept_request(listener) is None
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"\0fastfuse-{DEVICE}-{os.getpid()}")
            connection = accept_request(listener)
            assert connection is not None
            connection.close()
            assert accept_request(listener) is None


def test_somebody_elses_request_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with listen(DEVICE) as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(f"\0fastfuse-{DEVICE}-{os.getpid()}")
        monkeypatch.setattr(control, "_PEER", _Stranger("3i"))
        assert accept_request(listener) is None
        assert client.recv(1) == b""


class _Stranger(struct.Struct):
    """SO_PEERCRED of another user."""

    def unpack(self, buffer: object, /) -> tuple[int, int, int]:
        return (1, 54321, 54321)


def test_an_impostor_is_not_believed(mountpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listen(DEVICE):
        monkeypatch.setattr(control, "_PEER", _Stranger("3i"))
        with pytest.raises(MountError, match="does not answer"):
            request_refresh(mountpoint)


@pytest.mark.parametrize(
    "told", [b"", json.dumps({"error": {"kind": "MountError", "message": "m", "hint": "h"}}).encode()]
)
def test_a_failure_is_raised_as_it_was_told(mountpoint: Path, told: bytes) -> None:
    with listen(DEVICE) as listener:
        listener.setblocking(True)

        def answer() -> None:
            connection, _ = listener.accept()
            connection.sendall(told)
            connection.close()

        server = threading.Thread(target=answer)
        server.start()
        with pytest.raises(MountError, match="^m$" if told else "does not answer"):
            request_refresh(mountpoint)
        server.join()

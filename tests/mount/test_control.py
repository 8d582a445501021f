"""Asking a running mount: who may, and what is said to whom nobody answers."""

import contextlib
import json
import os
import resource
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastfuse.errors import MountError
from fastfuse.mount import control, sockets
from fastfuse.mount.children import error_message
from fastfuse.mount.control import RefreshReport, accept_request, listen, request_refresh
from fastfuse.mount.mountpoint import MountEntry
from fastfuse.mount.sockets import addresses, control_prefix

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


@contextlib.contextmanager
def answering(told: bytes) -> Iterator[None]:
    """Somebody who says `told` to whoever connects first."""
    with listen(DEVICE) as listener:
        listener.setblocking(True)

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(BrokenPipeError):  # hung up on
                connection.sendall(told)

        server = threading.Thread(target=answer)
        server.start()
        yield
        server.join()


def test_a_report_in_words() -> None:
    report = RefreshReport(added=1200, removed=0, replaced=3, files=1_000_000, elapsed_s=2.04)
    assert str(report) == "1,200 added, 0 removed, 3 replaced; 1,000,000 objects now, 2.0 s"


def test_a_mount_that_nobody_serves_does_not_answer(mountpoint: Path) -> None:
    with pytest.raises(MountError, match="the mount at /mnt does not answer"):
        request_refresh(mountpoint)


def test_a_connection_is_a_signal() -> None:
    heard = threading.Event()
    signal.signal(signal.SIGIO, lambda *_: heard.set())
    with listen(DEVICE) as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(listener.getsockname())
        assert heard.wait(60)


def test_requests_are_taken_one_after_the_other_without_waiting() -> None:
    with listen(DEVICE) as listener:
        assert accept_request(listener) is None
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(listener.getsockname())
            connection = accept_request(listener)
            assert connection is not None
            connection.close()
            assert accept_request(listener) is None


def test_a_mount_has_a_socket_although_the_one_before_at_its_number_is_still_there() -> None:
    with listen(DEVICE) as first, listen(DEVICE) as second:
        assert addresses(control_prefix(DEVICE)) == sorted(
            listener.getsockname().decode() for listener in (first, second)
        )
    assert addresses(control_prefix(DEVICE)) == []


def test_a_request_for_which_there_is_no_descriptor_has_to_wait(caplog: pytest.LogCaptureFixture) -> None:
    with listen(DEVICE) as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(listener.getsockname())
        lowest_free = os.dup(0)
        os.close(lowest_free)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
        try:
            assert accept_request(listener) is None
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert "has to wait: [Errno 24] Too many open files" in caplog.text
        connection = accept_request(listener)
        assert connection is not None
        connection.close()


def test_somebody_elses_request_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with listen(DEVICE) as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(listener.getsockname())
        monkeypatch.setattr(sockets, "_PEER", _Stranger("3i"))
        assert accept_request(listener) is None
        assert client.recv(1) == b""


class _Stranger(struct.Struct):
    """SO_PEERCRED of another user."""

    def unpack(self, buffer: object, /) -> tuple[int, int, int]:
        return (1, 54321, 54321)


def test_an_impostor_is_not_believed(mountpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = {"added": 1, "removed": 0, "replaced": 0, "files": 1, "elapsed_s": 0.1}
    with answering(json.dumps(report).encode()):
        assert request_refresh(mountpoint) == RefreshReport(**report)  # type: ignore[arg-type]
    monkeypatch.setattr(sockets, "_PEER", _Stranger("3i"))
    with answering(json.dumps(report).encode()), pytest.raises(MountError, match="does not answer"):
        request_refresh(mountpoint)


@pytest.mark.parametrize("told", [b'{"added": 1', b'{"kept": 1}', b"[]", b'{"error": 1}'])
def test_an_answer_that_is_no_report_is_told(mountpoint: Path, told: bytes) -> None:
    with answering(told), pytest.raises(MountError, match="answered what is no report"):
        request_refresh(mountpoint)


@pytest.mark.parametrize("told", [b"", error_message(MountError("m", hint="h"))])
def test_a_failure_is_raised_as_it_was_told(mountpoint: Path, told: bytes) -> None:
    with answering(told), pytest.raises(MountError, match="^m$" if told else "does not answer"):
        request_refresh(mountpoint)

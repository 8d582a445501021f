"""Asking a running mount: who may, and what is said to whom nobody answers."""

import contextlib
import json
import os
import resource
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from fastfuse.errors import MountError
from fastfuse.filesystem.mounting.mountpoint import MountEntry
from fastfuse.filesystem.processes import sockets
from fastfuse.filesystem.processes.children import error_message, heard
from fastfuse.filesystem.processes.sockets import addresses, control_prefix
from fastfuse.filesystem.talking import control
from fastfuse.filesystem.talking.control import (
    ControlSocket,
    RefreshReport,
    ask_status,
    entry_of,
    request_refresh,
    send_answer,
)

pytestmark = pytest.mark.usefixtures("no_sigio")

DEVICE = f"test:{os.getpid()}"


@pytest.fixture
def mountpoint(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place where mountinfo has a mount of ours."""
    entry = MountEntry(Path("/mnt"), DEVICE, "fuse.fastfuse", "s3://b/", os.geteuid())
    monkeypatch.setattr(control, "find_mount", lambda _: entry)
    return entry.path


@contextlib.contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """A mount whose listener is handed to `answer`."""
    with sockets.listen(control_prefix(DEVICE), backlog=16) as listener:
        listener.setblocking(True)
        server = threading.Thread(target=answer, args=(listener,))
        server.start()
        yield
        server.join()


def answering(told: bytes) -> contextlib.AbstractContextManager[None]:
    """Somebody who says `told` to whoever connects first."""

    def answer(listener: socket.socket) -> None:
        with listener.accept()[0] as connection, contextlib.suppress(ConnectionError):  # hung up on
            connection.recv(4096)
            connection.sendall(told)

    return serving(answer)


def test_a_mount_that_hangs_refreshes_nothing_and_has_no_room_for_more_questions_in_the_end(mountpoint: Path) -> None:
    with sockets.listen(control_prefix(DEVICE), backlog=1), contextlib.ExitStack() as clients:
        with pytest.raises(MountError, match="the mount at /mnt does not answer"):
            request_refresh(mountpoint, within_s=0.1)
        (address,) = addresses(control_prefix(DEVICE))
        with contextlib.suppress(BlockingIOError):
            while True:
                connection = clients.enter_context(socket.socket(socket.AF_UNIX))
                connection.setblocking(False)
                connection.connect(address)
        with pytest.raises(MountError, match="the mount at /mnt does not answer"):
            ask_status(entry_of(mountpoint), within_s=0.1)


def test_room_among_those_who_wait_is_waited_for(mountpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sockets.listen(control_prefix(DEVICE), backlog=0) as listener, client():
        listener.settimeout(60)
        connect = socket.socket.connect

        def connect_and_tell(connection: socket.socket, address: str) -> None:
            asks.set()
            connect(connection, address)

        monkeypatch.setattr(socket.socket, "connect", connect_and_tell)
        asks, told = threading.Event(), list[object]()
        asking = threading.Thread(target=lambda: told.append(ask_status(entry_of(mountpoint))))
        asking.start()
        assert asks.wait(60)
        listener.accept()[0].close()
        with listener.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(b'{"fastfuse": 1}')
        asking.join()
        assert told == [{"fastfuse": 1}]


def test_an_impostor_without_room_is_not_waited_for(mountpoint: Path) -> None:
    with socket.socket(socket.AF_UNIX) as impostor, socket.socket(socket.AF_UNIX) as held:
        impostor.bind(f"\0{control_prefix(DEVICE)}-0")  # which sorts first
        impostor.listen(0)
        held.connect(impostor.getsockname())
        with answering(b'{"fastfuse": 1}'):
            assert ask_status(entry_of(mountpoint), within_s=3600) == {"fastfuse": 1}


def test_a_mount_to_which_nobody_may_connect_does_not_answer(mountpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "connect_in_turn", Mock(side_effect=PermissionError))
    with sockets.listen(control_prefix(DEVICE), backlog=1), pytest.raises(MountError, match="does not answer"):
        ask_status(entry_of(mountpoint))


def test_a_mount_that_answers_a_byte_at_a_time_for_ever_does_not_answer(mountpoint: Path) -> None:
    def answer(listener: socket.socket) -> None:
        with listener.accept()[0] as connection, contextlib.suppress(ConnectionError):  # hung up on
            connection.settimeout(0.01)
            while connection.send(b" "):
                with contextlib.suppress(TimeoutError):
                    connection.recv(4096, socket.MSG_WAITALL)

    watched = control.watching(entry_of(mountpoint), {"request": "trace"}, within_s=0.2)
    for asking in (lambda: ask_status(entry_of(mountpoint), within_s=0.2), watched.__enter__):
        told = r"the mount (at /mnt does not answer|answered what is no trace)"
        with serving(answer), pytest.raises(MountError, match=told):
            asking()


def test_a_refresh_may_take_longer_than_any_answer(mountpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A silence after which the mount is asked is short here, and the time for an answer as long as ever."""
    monkeypatch.setattr(control, "ask_status", lambda entry, **_: ask_status(entry))
    told = {"fastfuse": 1, "added": 1, "removed": 0, "replaced": 0, "files": 1, "elapsed_s": 0.1}

    def answer(listener: socket.socket) -> None:
        with listener.accept()[0] as refreshing:
            for _ in range(3):
                with listener.accept()[0] as asking:
                    assert json.loads(asking.recv(4096))["request"] == "status"
                    asking.sendall(b'{"fastfuse": 1}')
            refreshing.sendall(json.dumps(told).encode())

    with serving(answer):
        assert request_refresh(mountpoint, within_s=0.1).files == 1


@contextlib.contextmanager
def control_socket() -> Iterator[ControlSocket]:
    control = ControlSocket(DEVICE)
    try:
        yield control
    finally:
        control.close()


@contextlib.contextmanager
def client() -> Iterator[socket.socket]:
    (address,) = addresses(control_prefix(DEVICE))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        yield connection


def test_a_connection_is_a_signal_and_so_is_what_it_says() -> None:
    heard = threading.Semaphore(0)
    signal.signal(signal.SIGIO, lambda *_: heard.release())
    with control_socket() as control, client() as connection:
        assert heard.acquire(timeout=60)
        assert list(control.requests()) == []
        connection.sendall(b'{"fastfuse": 1, "request": "status"}\n')
        assert heard.acquire(timeout=60)
        ((asked, asking),) = control.requests()
        assert asked == {"fastfuse": 1, "request": "status"}
        with asking.dup():  # as a child has
            send_answer(asking, b"{}")
            assert connection.recv(10) == b"{}"
            assert connection.recv(10) == b""


def test_requests_are_taken_together_and_each_once() -> None:
    with control_socket() as control, client() as first, client() as second:
        assert list(control.requests()) == []
        first.sendall(b'{"fastfuse": 1, "request": "refresh"}\n')
        second.sendall(b'{"fastfuse": 1, "request": "status"}\n')
        found = list(control.requests())
        assert [asked["request"] for asked, _ in found] == ["refresh", "status"]
        assert list(control.requests()) == []
        for _, asking in found:
            asking.close()


def test_of_a_request_only_what_means_something_is_passed_on() -> None:
    """What a worker cannot take apart would end it."""
    members = f'"every_s": 0.5, "level": "{"x" * 65}", "sample": [1], "more": {"[" * 900 + "]" * 900}'
    with control_socket() as control, client() as connection:
        assert list(control.requests()) == []
        connection.sendall(f'{{"fastfuse": 1, "request": "top", {members}}}\n'.encode())
        ((asked, asking),) = control.requests()
        asking.close()
        assert asked == {"fastfuse": 1, "request": "top", "every_s": 0.5}


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"refresh\n", b"[" * 4096, b"[]\n", b"\xff\n", b'{"fastfuse": 1, "request": "status"}'),
        *(b'{"fastfuse": 2, "request": "status"}\n', b'{"fastfuse": 1, "request": "stop"}\n'),
        b'{"fastfuse": 1, "request": ["status"]}\n',
    ],
)
def test_what_is_no_request_is_refused(line: bytes) -> None:
    with control_socket() as control, client() as connection:
        assert list(control.requests()) == []
        connection.sendall(line)
        connection.shutdown(socket.SHUT_WR)
        assert list(control.requests()) == []
        with pytest.raises(MountError, match="does not know this request"):
            heard(connection.recv(4096))


def test_a_client_that_says_nothing_is_hung_up_on(clock: list[float]) -> None:
    with control_socket() as control, client() as connection:
        assert list(control.requests()) == []
        clock[0] += 10
        assert list(control.requests()) == []
        with pytest.raises(MountError, match="no request came"):
            heard(connection.recv(4096))


def test_a_mount_has_a_socket_although_the_one_before_at_its_number_is_still_there() -> None:
    with control_socket(), control_socket():
        assert len(addresses(control_prefix(DEVICE))) == 2
    assert addresses(control_prefix(DEVICE)) == []


def test_a_request_for_which_there_is_no_descriptor_has_to_wait(caplog: pytest.LogCaptureFixture) -> None:
    with control_socket() as control, client() as connection:
        connection.sendall(b'{"fastfuse": 1, "request": "status"}\n')
        lowest_free = os.dup(0)
        os.close(lowest_free)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
        try:
            assert list(control.requests()) == []
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert "has to wait: [Errno 24] Too many open files" in caplog.text
        ((_, asking),) = control.requests()
        asking.close()


def test_somebody_elses_request_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with control_socket() as control, client() as connection:
        connection.sendall(b'{"fastfuse": 1, "request": "status"}\n')
        monkeypatch.setattr(sockets, "_PEER", _Stranger("3i"))
        assert list(control.requests()) == []
        with pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_strangers_who_connect_without_end_keep_the_mount_from_nothing(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    monkeypatch.setattr(sockets, "_PEER", _Stranger("3i"))
    monkeypatch.setattr(control, "_BACKLOG", 2)
    with control_socket() as taking, client(), client(), client() as last:
        for _ in range(2):
            assert list(taking.requests()) == []
            with pytest.raises(BlockingIOError):
                last.recv(1, socket.MSG_DONTWAIT)
        clock[0] += 0.1
        assert list(taking.requests()) == []
        assert last.recv(1, socket.MSG_DONTWAIT) == b""


class _Stranger(struct.Struct):
    """SO_PEERCRED of another user."""

    def unpack(self, buffer: object, /) -> tuple[int, int, int]:
        return (1, 54321, 54321)


def test_an_impostor_is_not_believed(mountpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = {"added": 1, "removed": 0, "replaced": 0, "files": 1, "elapsed_s": 0.1}
    told = json.dumps({"fastfuse": 1, **report}).encode()
    with answering(told):
        assert request_refresh(mountpoint) == RefreshReport(**report)  # type: ignore[arg-type]
    monkeypatch.setattr(sockets, "_PEER", _Stranger("3i"))
    with answering(told), pytest.raises(MountError, match="does not answer"):
        request_refresh(mountpoint)


@pytest.mark.parametrize("told", [b"", error_message(MountError("m", hint="h"))])
def test_a_failure_is_raised_as_it_was_told(mountpoint: Path, told: bytes) -> None:
    with answering(told), pytest.raises(MountError, match="^m$" if told else "does not answer"):
        request_refresh(mountpoint)


@pytest.mark.parametrize("told", [b'{"fastfuse": 2}', b"[]", b"{", b'{"error": 1}'])
def test_an_answer_of_another_version_is_told(mountpoint: Path, told: bytes) -> None:
    with answering(told), pytest.raises(MountError, match="answered what is no status"):
        ask_status(entry_of(mountpoint))
    watched = control.watching(entry_of(mountpoint), {"request": "trace"})
    with answering(told + b"\n"), pytest.raises(MountError, match="answered what is no trace"), watched:
        pass

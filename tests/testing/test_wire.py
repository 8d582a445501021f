import os
import socket
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fastfuse.testing.buckets import FileSpan, MemoryContent
from fastfuse.testing.wire import BadRequestError, Reply, RequestReader, ResponseWriter, close_by_reset


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Server's end and client's end of one TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        server, _ = listener.accept()
        client.settimeout(5)
        with server:
            yield server, client


def test_requests_are_read_one_by_one_however_they_arrive(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    first = b"GET /b/a%2Fb+c?prefix=x+%2B%FF&list-type=2&flag HTTP/1.1\r\nHost: h\r\nX-Some:  value \r\n\r\n"
    second = b"HEAD / HTTP/1.1\r\nConnection: close\r\n\r\n"
    reader = RequestReader(server)
    client.sendall(first + second[:9])
    request = reader.read()
    assert request is not None
    assert (request.method, request.path, request.keep_alive) == ("GET", b"/b/a%2Fb+c", True)
    assert request.query == {"prefix": b"x +\xff", "list-type": b"2", "flag": b""}
    assert request.headers == {"host": "h", "x-some": "value"}
    client.sendall(second[9:])
    request = reader.read()
    assert request is not None
    assert (request.method, request.keep_alive) == ("HEAD", False)
    client.close()
    assert reader.read() is None


@pytest.mark.parametrize("header", ["Content-Length: 5", "Transfer-Encoding: chunked", "connection: Close"])
def test_a_request_with_a_body_is_the_last_of_its_connection(
    pair: tuple[socket.socket, socket.socket], header: str
) -> None:
    server, client = pair
    client.sendall(f"PUT /b/k HTTP/1.1\r\n{header}\r\n\r\n".encode())
    request = RequestReader(server).read()
    assert request is not None
    assert not request.keep_alive


@pytest.mark.parametrize(
    "head",
    [
        b"GET /\r\n\r\n",
        b"GET / HTTP/2\r\n\r\n",
        b"GET http://other/ HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nLong: " + b"x" * 40_000,
    ],
)
def test_nonsense_is_refused(pair: tuple[socket.socket, socket.socket], head: bytes) -> None:
    server, client = pair
    client.sendall(head)
    with pytest.raises(BadRequestError):
        RequestReader(server).read()


def test_a_reset_connection_is_not_closed_in_good_order(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    close_by_reset(server)
    server.close()
    with pytest.raises(ConnectionResetError):
        client.recv(1)


@dataclass(frozen=True)
class _FileContent:
    fd: int
    size_bytes: int

    def spans(self, start: int, end: int) -> Generator[FileSpan | memoryview, None, None]:
        middle = (start + end) // 2
        yield FileSpan(self.fd, start, middle - start)
        yield FileSpan(self.fd, middle, end - middle)


def _received(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.parametrize("bytes_per_s", [0.0, 50e6])
def test_a_reply_from_a_file_is_its_head_and_the_bytes_of_the_range(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path, bytes_per_s: float
) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "file").write_bytes(data)
    server, client = pair
    with (tmp_path / "file").open("rb") as file:
        content = _FileContent(file.fileno(), len(data))
        reply = Reply(status=206, headers={"ETag": '"e"'}, content=content, start=1000, end=2_500_000)
        writer = ResponseWriter(server, reply, bytes_per_s=bytes_per_s, closing=threading.Event())

        def send() -> None:
            writer.send_head(keep_alive=False)
            writer.send_body(0, reply.body_bytes)
            server.close()

        thread = threading.Thread(target=send)
        thread.start()
        head, _, body = _received(client).partition(b"\r\n\r\n")
        thread.join()
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 206 Partial Content",
        b'ETag: "e"',
        b"Content-Length: 2499000",
        b"Connection: close",
    ]
    assert body == data[1000:2_500_000]
    assert writer.sent_bytes == 2_499_000


def test_a_file_that_has_become_shorter_ends_the_connection(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"short")
    with (tmp_path / "file").open("rb") as file:
        reply = Reply(status=200, content=_FileContent(file.fileno(), 100), end=100)
        writer = ResponseWriter(pair[0], reply, bytes_per_s=0, closing=threading.Event())
        with pytest.raises(ConnectionAbortedError):
            writer.send_body(0, 100)
    assert writer.sent_bytes == 5


class _RecordingClosing(threading.Event):
    """Takes down what the pacer wants to wait, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits_s.append(timeout or 0.0)
        return False


def test_a_paced_body_is_sent_in_slices_each_waiting_for_its_share_of_time(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    closing = _RecordingClosing()
    reply = Reply(status=200, content=MemoryContent(bytes(10_000)), end=10_000)
    ResponseWriter(pair[0], reply, bytes_per_s=100_000, closing=closing).send_body(0, 10_000)
    # 10 ms of 100 kB/s is 1 kB; nothing really waits here, so the last slice is due after the whole 0.1 s.
    assert len(closing.waits_s) == 10
    assert 0.05 < closing.waits_s[-1] <= 0.1

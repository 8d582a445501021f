import socket
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.s3server.buckets import FileSpan
from bench.s3server.wire import BadRequestError, Reply, RequestReader, ResponseWriter


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


@dataclass(frozen=True)
class _FileContent:
    fd: int
    size_bytes: int

    def spans(self, start: int, end: int) -> Generator[FileSpan | memoryview, None, None]:
        middle = (start + end) // 2
        yield FileSpan(self.fd, start, middle - start)
        yield FileSpan(self.fd, middle, end - middle)


def test_a_file_made_shorter_ends_the_connection(pair: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"short")
    with (tmp_path / "file").open("rb") as file:
        reply = Reply(status=200, content=_FileContent(file.fileno(), 100), end=100)
        writer = ResponseWriter(pair[0], reply, bytes_per_s=0, closing=threading.Event())
        with pytest.raises(ConnectionAbortedError):
            writer.send_body(0, 100)
    assert writer.sent_bytes == 5

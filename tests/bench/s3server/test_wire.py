import socket
from collections.abc import Iterator

import pytest

from bench.s3server.wire import RequestReader


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

"""TLS on a socket that does not block: records of any size, in any pieces, and what ends them."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastfuse.store.connection import Connection, StallWatch
from fastfuse.store.tls import TlsSocket
from tests.servers import create_chain

HEAD = b"HTTP/1.1 206 Partial\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a client and of a server."""
    authority, issued = create_chain(tmp_path_factory.mktemp("tls"))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(issued.certificate, issued.key)
    return ssl.create_default_context(cafile=str(authority)), server


@contextmanager
def serving(context: ssl.SSLContext, serve: Callable[[ssl.SSLSocket], object]) -> Iterator[socket.socket]:
    """Our end of a pair of sockets whose other end speaks TLS, and is closed after `serve`."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    def run() -> None:
        with context.wrap_socket(theirs, server_side=True) as secured:
            serve(secured)

    thread = threading.Thread(target=run)
    thread.start()
    with ours:
        yield ours
    thread.join()


async def opened(sock: socket.socket, context: ssl.SSLContext) -> Connection:
    secured = TlsSocket(sock, context, "127.0.0.1")
    await secured.handshake()
    return Connection(secured, StallWatch(60.0), trio.CapacityLimiter(1))


def in_records(secured: ssl.SSLSocket, records: list[bytes]) -> None:
    """All of them are there before the client looks for the first."""
    secured.recv(1)
    for record in records:
        secured.sendall(record)


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=200), cuts=st.lists(st.integers(0, 260), max_size=6), copies=st.sampled_from([1, 900]))
async def test_a_reply_is_read_however_it_is_cut_into_records(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], body: bytes, cuts: list[int], copies: int
) -> None:
    body *= copies
    reply = HEAD % len(body) + body
    ends = [*sorted(cuts), len(reply)]
    records = [reply[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True) if start < end]
    with serving(contexts[1], lambda secured: in_records(secured, records)) as sock:
        connection = await opened(sock, contexts[0])
        assert await connection.ask(b"?") is not None
        data = bytearray(len(body))
        assert await connection.read_into(memoryview(data)) == len(body)
        assert data == body
        assert connection.is_reusable
        connection.close()


@pytest.mark.parametrize("says_so", [True, False])
async def test_a_body_that_ends_early_is_known_by_its_length(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], says_so: bool
) -> None:
    def serve(secured: ssl.SSLSocket) -> None:
        in_records(secured, [HEAD % 10, b"hello"])
        if says_so:
            with suppress(OSError):  # the answer, for which it waits, never comes
                secured.unwrap()

    with serving(contexts[1], serve) as sock:
        connection = await opened(sock, contexts[0])
        assert await connection.ask(b"?") is not None
        data = bytearray(10)
        assert await connection.read_into(memoryview(data)) == 5
        assert not connection.is_reusable
        connection.close()


async def test_where_nothing_comes_before_the_end_there_is_no_reply(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    with serving(contexts[1], lambda secured: secured.recv(1)) as sock:
        connection = await opened(sock, contexts[0])
        assert await connection.ask(b"?") is None
        connection.close()


async def test_a_request_that_the_socket_does_not_take_at_once_arrives_once(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    request = bytes(range(256)) * 8000
    seen = bytearray()

    def serve(secured: ssl.SSLSocket) -> None:
        while len(seen) < len(request):
            seen.extend(secured.recv(1 << 16))
        secured.sendall(HEAD % 0)

    with serving(contexts[1], serve) as sock:
        connection = await opened(sock, contexts[0])
        assert await connection.ask(request) is not None
        connection.close()
    assert seen == request


async def test_what_is_no_tls_is_an_error_of_the_handshake(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        theirs.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(ssl.SSLError):
            await TlsSocket(ours, contexts[0], "127.0.0.1").handshake()


async def test_the_end_of_a_connection_ends_the_handshake(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(ssl.SSLEOFError):
            await TlsSocket(ours, contexts[0], "127.0.0.1").handshake()

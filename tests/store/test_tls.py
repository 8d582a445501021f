"""TLS on a socket that does not block: records of any size, in any pieces, and what ends them."""

import _ssl
import ctypes
import os
import random
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastfuse.store import openssl
from fastfuse.store.connection import TASK_BYTES, Connection, StallWatch
from fastfuse.store.receivers import Receivers
from fastfuse.store.tls import TlsSocket
from tests.servers import create_chain

# A thread receives it.
LONG_BYTES = 4 * TASK_BYTES
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
    try:
        with ours:
            yield ours
    finally:
        if isinstance(serve, InRecords):
            serve.end()
        thread.join()


async def opened(sock: socket.socket, context: ssl.SSLContext) -> Connection:
    secured = TlsSocket(sock, context, "127.0.0.1")
    await secured.handshake()
    return Connection(secured, StallWatch(60.0, 60.0), Receivers())


async def body_of(connection: Connection, size_bytes: int) -> bytes:
    """What comes of a body of that size."""
    assert await connection.ask(b"?") is not None
    data = bytearray(size_bytes)
    return bytes(data[: await connection.read_into(memoryview(data))])


class InRecords:
    """A server that sends all its records before anybody asks it."""

    def __init__(self, records: list[bytes], *, end: Literal["", "by TLS", "by TCP"] = "") -> None:
        """It closes the connection when it is told to, and says first by what `end` names that nothing more comes."""
        self._records = records
        self._end = end
        self._is_sent = threading.Event()
        self._ended = threading.Event()

    def __call__(self, secured: ssl.SSLSocket) -> None:
        for record in self._records:
            secured.sendall(record)
        if self._end == "by TLS":
            secured.settimeout(0)
            with suppress(OSError):  # the answer to it is not waited for
                secured.unwrap()
        elif self._end == "by TCP":
            secured.shutdown(socket.SHUT_WR)
        self._is_sent.set()
        self._ended.wait()

    async def is_sent(self) -> None:
        await trio.to_thread.run_sync(self._is_sent.wait)

    def end(self) -> None:
        self._ended.set()


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=200), cuts=st.lists(st.integers(0, 260), max_size=6), copies=st.sampled_from([1, 300]))
async def test_a_reply_is_read_however_it_is_cut_into_records(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], body: bytes, cuts: list[int], copies: int
) -> None:
    body *= copies
    reply = HEAD % len(body) + body
    ends = [*sorted(cuts), len(reply)]
    server = InRecords([reply[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True) if start < end])
    with serving(contexts[1], server) as sock:
        connection = await opened(sock, contexts[0])
        await server.is_sent()
        assert await body_of(connection, len(body)) == body
        assert connection.is_reusable
        assert connection.is_fresh()
        connection.close()


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.sampled_from([0, 1, 100, TASK_BYTES, TASK_BYTES + 1, 1 << 20]), min_size=1, max_size=4),
    # With its head, up to where: and so what is taken with the head.
    record_bytes=st.sampled_from([100, 3000, 1 << 14, 1 << 20]),
)
async def test_long_replies_and_short_ones_follow_one_another(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], sizes: list[int], record_bytes: int
) -> None:
    bodies = [random.randbytes(size) for size in sizes]

    def serve(secured: ssl.SSLSocket) -> None:
        for body in bodies:
            assert secured.recv(100) == b"?"
            reply = HEAD % len(body) + body
            for start in range(0, len(reply), record_bytes):
                secured.sendall(reply[start : start + record_bytes])

    with serving(contexts[1], serve) as sock:
        connection = await opened(sock, contexts[0])
        for body in bodies:
            assert await body_of(connection, len(body)) == body
            assert connection.is_reusable
        connection.close()


@pytest.mark.parametrize("end", ["by TLS", "by TCP"])
@pytest.mark.parametrize("size_bytes", [10, LONG_BYTES])
async def test_a_body_that_ends_early_is_known_by_its_length(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], size_bytes: int, end: Literal["by TLS", "by TCP"]
) -> None:
    server = InRecords([HEAD % size_bytes, b"hello"], end=end)
    with serving(contexts[1], server) as sock:
        connection = await opened(sock, contexts[0])
        await server.is_sent()
        assert await body_of(connection, size_bytes) == b"hello"
        assert not connection.is_reusable
        connection.close()


async def test_of_a_long_body_nothing_is_taken_that_is_no_tls(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    is_begun = threading.Event()

    def serve(secured: ssl.SSLSocket) -> None:
        secured.sendall(HEAD % LONG_BYTES + b"hello")
        is_begun.wait()
        # A record of its own length, of which no key makes anything.
        os.write(secured.fileno(), b"\x17\x03\x03\x40\x00" + bytes(1 << 14))
        secured.recv(1)

    with serving(contexts[1], serve) as sock:
        connection = await opened(sock, contexts[0])
        assert await connection.ask(b"?") is not None
        is_begun.set()
        data = bytearray(LONG_BYTES)
        assert await connection.read_into(memoryview(data)) == 5
        assert data.rstrip(b"\0") == b"hello"
        assert not connection.is_reusable
        connection.close()


async def test_in_a_long_body_the_keys_may_change(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """The answer that the server wants to that goes with the next request (RFC 8446, 4.6.3)."""
    library = openssl._library()
    if library is None:
        pytest.skip("this Python has no OpenSSL within reach")
    library.SSL_key_update.argtypes = ctypes.c_void_p, ctypes.c_int
    body = random.randbytes(LONG_BYTES)

    def serve(secured: ssl.SSLSocket) -> None:
        assert secured.recv(100) == b"?"
        secured.sendall(HEAD % len(body) + body[: LONG_BYTES // 2])
        assert library.SSL_key_update(openssl._address_of(secured), 1) == 1  # SSL_KEY_UPDATE_REQUESTED
        secured.sendall(body[LONG_BYTES // 2 :])
        assert secured.recv(100) == b"?"
        secured.sendall(HEAD % 5 + b"hello")

    with serving(contexts[1], serve) as sock:
        connection = await opened(sock, contexts[0])
        assert await body_of(connection, len(body)) == body
        assert await body_of(connection, 5) == b"hello"
        connection.close()


@pytest.mark.usefixtures("unlinked")
async def test_where_openssl_is_out_of_reach_the_task_decrypts_all_of_a_long_body(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    body = random.randbytes(LONG_BYTES)
    with serving(contexts[1], InRecords([HEAD % len(body) + body])) as sock:
        connection = await opened(sock, contexts[0])
        assert await body_of(connection, len(body)) == body
        connection.close()


async def test_what_is_within_reach_is_the_connection_itself(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    if not hasattr(_ssl, "__file__"):
        pytest.skip("OpenSSL is part of this Python")
    assert openssl.is_reachable()
    library = openssl._library()
    assert library is not None
    library.SSL_get_servername.argtypes = ctypes.c_void_p, ctypes.c_int
    library.SSL_get_servername.restype = ctypes.c_char_p
    names = (b"a.test", b"b.test")
    made = [contexts[0].wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=name.decode()) for name in names]
    assert [library.SSL_get_servername(openssl._address_of(tls), 0) for tls in made] == [*names]


class _Elsewhere:
    """What another version of Python may have."""

    def __init__(self, held: object, context: ssl.SSLContext) -> None:
        self._sslobj, self.context = held, context


class _Behind:
    """Something else is where the connection was looked for: right before the context."""

    __slots__ = ("a", "b")

    def __init__(self, context: ssl.SSLContext) -> None:
        self.a, self.b = (None,) * 10_000, context  # large enough for whatever is looked up in it


def test_what_is_not_proved_to_be_the_connection_is_not_used(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    context, another = contexts
    tls = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="a.test")
    held = tls._sslobj  # type: ignore[attr-defined]
    assert openssl._address_of(_Elsewhere(held, context))  # type: ignore[arg-type]
    for unlike in (None, object(), _Behind(another), _Behind(context)):
        assert not openssl._address_of(_Elsewhere(unlike, context))  # type: ignore[arg-type]
    assert not openssl._address_of(_Elsewhere(held, another))  # type: ignore[arg-type]


@pytest.mark.parametrize("size_bytes", [1, 4096, 4097, 100_000])
async def test_a_thread_decrypts_what_comes_next_and_no_more_than_it_is_asked_for(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], size_bytes: int
) -> None:
    body = random.randbytes(1 + size_bytes + 10)
    server = InRecords([body])
    with serving(contexts[1], server) as sock:
        secured = TlsSocket(sock, contexts[0], "127.0.0.1")
        await secured.handshake()
        await server.is_sent()
        data = bytearray(len(body))
        places = memoryview(data)
        # More than that is taken from the socket.
        assert secured.recv_into(places[:1]) == 1
        assert await trio.to_thread.run_sync(secured.receive_all, places[1 : 1 + size_bytes]) == size_bytes
        was_quiet = secured.is_quiet
        assert secured.recv_into(places[1 + size_bytes :]) == 10
        assert data == body
        assert (was_quiet, secured.is_quiet) == (False, True)
        secured.close()


@pytest.mark.parametrize("surplus", [b"more", HEAD % 5 + b"wrong"])
@pytest.mark.parametrize("size_bytes", [5, 20_000, LONG_BYTES])
async def test_what_nobody_asked_for_is_never_the_next_reply(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], surplus: bytes, size_bytes: int
) -> None:
    body = bytes(size_bytes)
    server = InRecords([HEAD % len(body), body[:-3], body[-3:] + surplus])
    with serving(contexts[1], server) as sock:
        connection = await opened(sock, contexts[0])
        assert await body_of(connection, len(body)) == body
        await server.is_sent()
        assert not (connection.is_reusable and connection.is_fresh())
        connection.close()


async def test_a_connection_that_was_ended_behind_its_reply_is_not_fresh(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    """Also before the socket itself is closed."""
    server = InRecords([HEAD % 5 + b"hello"], end="by TLS")
    with serving(contexts[1], server) as sock:
        connection = await opened(sock, contexts[0])
        await server.is_sent()
        assert await body_of(connection, 5) == b"hello"
        assert not connection.is_fresh()
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
        # SSLEOFError or SSLZeroReturnError, as the version of Python has it.
        with pytest.raises(ssl.SSLError):
            await TlsSocket(ours, contexts[0], "127.0.0.1").handshake()

"""TLS beneath a connection: records of any size, in any pieces, by a task or a thread, and what ends them."""

import _ssl
import ctypes
import os
import random
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastfuse.s3 import openssl
from fastfuse.s3.connection import TASK_BYTES, Connection, StallWatch
from fastfuse.s3.receivers import Receivers
from fastfuse.s3.tls import TlsSocket
from tests.s3.queues import unread_bytes
from tests.servers import create_chain

PATIENCE_S = 60.0
# A thread receives it.
LONG_BYTES = 4 * TASK_BYTES
# Not `is_reachable`: where OpenSSL is a library, that it is not reached is a failure.
linked = pytest.mark.skipif(not hasattr(_ssl, "__file__"), reason="OpenSSL is part of this Python, without names")
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
            assert not sock.getblocking()
        connection.close()


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 503 Slow\r\nTransfer-Encoding: chunked\r\n\r\n1388\r\n" + bytes(5000) + b"\r\n0\r\n\r\n",
        b"HTTP/1.1 403 No\r\nx: " + b"x" * 6000 + b"\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
    ids=["document", "head"],
)
async def test_a_refusal_in_one_record_is_there_with_it_also_where_a_long_body_was_expected(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], reply: bytes
) -> None:
    with serving(contexts[1], InRecords([reply])) as sock:
        connection = await opened(sock, contexts[0])
        with trio.fail_after(PATIENCE_S):
            head = await connection.ask(b"?", body_bytes=LONG_BYTES)
            assert head is not None
            assert await connection.read_untold(LONG_BYTES) == reply.partition(b"\r\n\r\n")[2]
        connection.close()


async def test_what_broke_one_connection_is_no_error_of_the_next(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    """OpenSSL keeps errors by thread, and one thread receives for both."""
    receivers = Receivers()
    body = random.randbytes(LONG_BYTES)
    told = HEAD % len(body)

    async def receive(sock: socket.socket, data: bytearray, least_bytes: int) -> int:
        secured = TlsSocket(sock, contexts[0], "127.0.0.1")
        await secured.handshake()
        with trio.fail_after(PATIENCE_S):
            while unread_bytes(sock) < least_bytes:  # part of a record is taken with the one before
                await trio.lowlevel.checkpoint()
        connection = Connection(secured, StallWatch(60.0, 60.0), receivers)
        assert await connection.ask(b"?", body_bytes=len(body)) is not None
        count = await connection.read_into(memoryview(data))
        connection.close()
        return count

    with (
        serving(contexts[1], InRecords([told], end="by TCP")) as first,
        serving(contexts[1], InRecords([told + body[:10_000], body[10_000:]])) as second,
    ):
        assert await receive(first, bytearray(len(body)), 0) == 0
        data = bytearray(len(body))
        assert await receive(second, data, 1 << 15) == len(body)
        assert data == body


@linked
async def test_a_signal_in_a_long_body_is_outlived(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    body, waits = random.randbytes(LONG_BYTES), threading.Event()

    def serve(secured: ssl.SSLSocket) -> None:
        secured.sendall(body[:100_000])
        waits.wait()
        secured.sendall(body[100_000:])

    with serving(contexts[1], serve) as sock:
        secured = TlsSocket(sock, contexts[0], "127.0.0.1")
        await secured.handshake()
        data, counts = bytearray(len(body)), SimpleQueue[int]()
        thread = threading.Thread(target=lambda: counts.put(secured.receive_all(memoryview(data))))
        before = signal.signal(signal.SIGUSR1, lambda *_: None)
        try:
            thread.start()
            with trio.fail_after(PATIENCE_S):
                while data[99_999] != body[99_999] or not is_asleep(thread):
                    await trio.lowlevel.checkpoint()
            assert thread.ident is not None
            signal.pthread_kill(thread.ident, signal.SIGUSR1)
        finally:
            waits.set()
            thread.join()
            signal.signal(signal.SIGUSR1, before)
        assert counts.get(timeout=PATIENCE_S / 10) == len(body)
        assert data == body
        secured.close()


def is_asleep(thread: threading.Thread) -> bool:
    return Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()[0] == "S"


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


@linked
async def test_in_a_long_body_the_keys_may_change(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """The answer that the server wants to that goes with the next request (RFC 8446, 4.6.3)."""
    library = openssl._library()
    assert library is not None
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


@linked
async def test_what_is_within_reach_is_the_connection_itself(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
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


@linked
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


def test_a_connection_that_is_not_found_is_an_error_of_its_own(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    with pytest.raises(ssl.SSLError, match="not found"):
        openssl.Records(_Elsewhere(None, contexts[0]), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", [None, "/no/file", __file__])
def test_what_is_no_library_is_out_of_reach(monkeypatch: pytest.MonkeyPatch, path: str | None) -> None:
    monkeypatch.setattr(_ssl, "__file__", path, raising=False)
    assert openssl._library.__wrapped__() is None


@linked
async def test_what_openssl_was_asked_for_is_given_back(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    tls = contexts[0].wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="a.test")
    records = openssl.Records(tls, 0)
    library, freed = records._library, list[object]()
    kept = [records._buffered, records._socket]

    class Noting:
        def BIO_free_all(self, chain: object) -> None:
            freed.append(chain)
            library.BIO_free_all(chain)

    records._library = Noting()  # type: ignore[assignment]
    del records
    assert freed == kept


@linked
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

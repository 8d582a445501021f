"""Connections of the TLS module with the other end in the hands of the test."""

import ctypes
import ctypes.util
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastfuse.s3.tls import TlsConnection, TlsContext
from tests.s3.certificates import issue

PATIENCE_S = 60.0
HOST = "s3.example.test"
# <openssl/ssl.h>: SSL_CTRL_SET_MAX_PROTO_VERSION
SET_MAX_PROTO_VERSION = 124

AUTHORITY = issue(is_authority=True, subject="authority")
SERVER = issue(HOST, by=AUTHORITY)


def server_context_of(path: Path) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(path)
    return made


@contextmanager
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The client's end of a TCP connection, which does not block, and the server's."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        server, _ = listener.accept()
        with server:
            client.setblocking(False)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield client, server


class Server:
    """The server's end of a TLS connection, in the hands of the test: its records wait until they are taken."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self.sock = sock
        self._coming, self._going = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._coming, self._going, server_side=True)

    def take(self) -> bytes:
        return self._going.read()

    def flush(self) -> None:
        self.sock.sendall(self.take())

    def send(self, data: bytes) -> None:
        self.tls.write(data)
        self.flush()

    def receive(self) -> bytes:
        with suppress(BlockingIOError):
            self._coming.write(self.sock.recv(1 << 16, socket.MSG_DONTWAIT))
        try:
            return self.tls.read()
        except ssl.SSLWantReadError:
            return b""

    def step(self) -> bool:
        """Go on with the handshake as far as what came allows; return whether it is done."""
        with suppress(BlockingIOError):
            self._coming.write(self.sock.recv(1 << 16, socket.MSG_DONTWAIT))
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self.flush()
        return True

    def end(self) -> None:
        """Say by TLS that nothing more comes."""
        with suppress(ssl.SSLWantReadError):
            self.tls.unwrap()
        self.flush()


def shake_hands(connection: TlsConnection, server: Server) -> None:
    is_done = [False, False]
    while not all(is_done):
        if not is_done[0]:
            is_done[0] = connection.handshake() == "done"
        if not is_done[1]:
            is_done[1] = server.step()


class Ends:
    """A connection after its handshake, with its socket and its server."""

    def __init__(self, connection: TlsConnection, sock: socket.socket, server: Server) -> None:
        self.connection, self.sock, self.server = connection, sock, server

    def has_come(self) -> None:
        assert select.select([self.sock], [], [], PATIENCE_S)[0]

    def read(self, size_bytes: int) -> bytes:
        received = b""
        while len(received) < size_bytes:
            try:
                piece = self.connection.recv(size_bytes - len(received))
            except BlockingIOError:
                self.has_come()
                continue
            if not piece:
                break
            received += piece
        return received

    def say_hello(self) -> None:
        self.server.send(b"hello")
        assert self.read(5) == b"hello"


@contextmanager
def connected(context: TlsContext, server_context: ssl.SSLContext, host: str = HOST) -> Iterator[Ends]:
    with sockets() as (client, theirs):
        ends = Ends(TlsConnection(context, client.fileno(), host), client, Server(theirs, server_context))
        shake_hands(ends.connection, ends.server)
        yield ends


class OpensslServer:
    """The server's end of a TLS connection over a socket that blocks, through OpenSSL's public API."""

    def __init__(self, sock: socket.socket, identity: Path, most_version: int = 0) -> None:
        """`most_version` is the newest version that it speaks; 0 means TLS 1.3."""
        library = self._library = ctypes.CDLL(ctypes.util.find_library("ssl"))
        for name in ("TLS_server_method", "SSL_CTX_new", "SSL_new"):
            getattr(library, name).restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(library.SSL_CTX_new(ctypes.c_void_p(library.TLS_server_method())))
        library.SSL_CTX_ctrl.argtypes = ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_void_p
        assert library.SSL_CTX_ctrl(self._context, SET_MAX_PROTO_VERSION, most_version, None) == 1
        assert library.SSL_CTX_use_certificate_file(self._context, bytes(identity), 1) == 1
        assert library.SSL_CTX_use_PrivateKey_file(self._context, bytes(identity), 1) == 1
        self._tls = ctypes.c_void_p(library.SSL_new(self._context))
        assert library.SSL_set_fd(self._tls, sock.fileno()) == 1

    def __enter__(self) -> "OpensslServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._library.SSL_free(self._tls)
        self._library.SSL_CTX_free(self._context)

    def accept(self) -> None:
        assert self._library.SSL_accept(self._tls) == 1

    def send(self, data: bytes) -> None:
        assert self._library.SSL_write(self._tls, data, len(data)) == len(data)

    def receive(self, most_bytes: int) -> bytes:
        data = ctypes.create_string_buffer(most_bytes)
        count = self._library.SSL_read(self._tls, data, most_bytes)
        return data.raw[: max(0, count)]

    def ask_to_renegotiate(self) -> None:
        assert self._library.SSL_renegotiate(self._tls) == 1
        assert self._library.SSL_do_handshake(self._tls) == 1

    def reason(self) -> str:
        """Return why the last call failed."""
        library = ctypes.CDLL(ctypes.util.find_library("crypto"))
        library.ERR_get_error.restype, library.ERR_reason_error_string.restype = ctypes.c_ulong, ctypes.c_char_p
        words: bytes = library.ERR_reason_error_string(ctypes.c_ulong(library.ERR_get_error()))
        return words.decode()

    def update_keys(self) -> None:
        """Send with a new key from now on, and ask the client to do so."""
        assert self._library.SSL_key_update(self._tls, 1) == 1
        assert self._library.SSL_do_handshake(self._tls) == 1


def accepted(connection: TlsConnection, client: socket.socket, server: OpensslServer) -> TlsConnection:
    """Return `connection` after its handshake."""
    thread = threading.Thread(target=server.accept)
    thread.start()
    while connection.handshake() != "done":
        assert select.select([client], [], [], PATIENCE_S)[0]
    thread.join()
    return connection


def is_error_queue_empty() -> bool:
    """Return whether OpenSSL keeps no error for this thread: Python's `ssl` would take it for one of its own."""
    library = ctypes.CDLL(ctypes.util.find_library("crypto"))
    library.ERR_peek_error.restype = ctypes.c_ulong
    return library.ERR_peek_error() == 0  # type: ignore[no-any-return]

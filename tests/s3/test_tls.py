"""The compiled TLS module: certificates, versions, sessions, bodies, what ends a connection, and broken records."""

import ctypes
import ctypes.util
import os
import random
import re
import select
import signal
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from fastfuse.s3.tls import CertificateError, TlsConnection, TlsContext, TlsError
from tests.s3.certificates import Identity, issue
from tests.s3.queues import unread_bytes
from tests.s3.tls_peers import (
    AUTHORITY,
    HOST,
    PATIENCE_S,
    SERVER,
    Ends,
    OpensslServer,
    Server,
    accepted,
    connected,
    is_error_queue_empty,
    server_context_of,
    sockets,
)

# With its key's check, and the byte that says what it is.
RECORD_BYTES_AT_LEAST = 5 + 16 + 1
TLS1_2 = 0x0303  # <openssl/ssl.h>: TLS1_2_VERSION
# More than a socket, OpenSSL's buffer and a record hold.
BODY = random.Random(0).randbytes(3 << 20)
# Of a test's `server_context`.
VERSIONS = pytest.mark.parametrize(
    "server_context", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"], indirect=True
)


@pytest.fixture
def server_context(server_file: Path, request: pytest.FixtureRequest) -> ssl.SSLContext:
    made = server_context_of(server_file)
    made.maximum_version = getattr(request, "param", ssl.TLSVersion.TLSv1_3)
    return made


@pytest.fixture
def ends(context: TlsContext, server_context: ssl.SSLContext) -> Iterator[Ends]:
    with connected(context, server_context) as made:
        yield made


@contextmanager
def receiving(ends: Ends, data: bytearray, silence_s: float = PATIENCE_S) -> Iterator[SimpleQueue[int | BaseException]]:
    """A thread named "receiver" that receives all of `data`; yields where it puts what comes of it."""
    outcome: SimpleQueue[int | BaseException] = SimpleQueue()
    seconds = int(silence_s)
    timeout = struct.pack("@ll", seconds, int((silence_s - seconds) * 1e6))
    ends.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
    ends.sock.setblocking(True)

    def receive() -> None:
        try:
            outcome.put(ends.connection.receive_all(memoryview(data)))
        except OSError as error:
            outcome.put(error)

    thread = threading.Thread(target=receive, name="receiver")
    thread.start()
    try:
        while thread.is_alive() and not is_busy(ends.connection):
            os.sched_yield()
        yield outcome
    finally:
        with suppress(OSError):
            ends.sock.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def is_busy(connection: TlsConnection) -> bool:
    try:
        connection.send(b"")
    except RuntimeError:
        return True
    return False


# Certificates


def verdict_of(attempt: Callable[[], object]) -> str:
    """Return "accepted", or the reason why the certificate is not."""
    try:
        attempt()
    except CertificateError as error:
        return str(error.strerror)
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    return "accepted"


def our_verdict(identity: Path, authorities: str, host: str) -> str:
    def attempt() -> None:
        with connected(TlsContext(authorities=authorities), server_context_of(identity), host):
            pass

    return verdict_of(attempt)


def verdict_of_python(identity: Path, authorities: str, host: str) -> str:
    """Return what Python's `ssl` says, set as urllib3 sets it."""
    context = ssl.create_default_context(cafile=authorities)
    context.hostname_checks_common_name = False
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname=host)
    server = server_context_of(identity).wrap_bio(to_server, to_client, server_side=True)

    def attempt() -> None:
        for end in (client, server, client):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()

    return verdict_of(attempt)


NO_SIGNER = issue(by=AUTHORITY)
BEHIND_NO_SIGNER = issue(HOST, by=NO_SIGNER)
OTHER_AUTHORITY = issue(is_authority=True, subject="authority")
INTERMEDIATE = issue(by=AUTHORITY, is_authority=True, subject="intermediate")
BEHIND_INTERMEDIATE = issue(HOST, by=INTERMEDIATE)


@pytest.mark.parametrize(
    ("identity", "host", "reason"),
    [
        (SERVER, HOST, "accepted"),
        (SERVER, HOST.upper(), "accepted"),
        (SERVER, "s4.example.test", "ostname mismatch"),
        (SERVER, "127.0.0.1", "IP address mismatch"),
        (issue("127.0.0.1", by=AUTHORITY), "127.0.0.1", "accepted"),
        (issue("127.0.0.2", by=AUTHORITY), "127.0.0.1", "IP address mismatch"),
        (issue("::1", by=AUTHORITY), "::1", "accepted"),
        (issue("::1", by=AUTHORITY), "0:0:0:0:0:0:0:1", "accepted"),
        (issue("*.example.test", by=AUTHORITY), "127.0.0.1", "IP address mismatch"),
        (issue("*.example.test", by=AUTHORITY), HOST, "accepted"),
        (issue("*.example.test", by=AUTHORITY), "bucket.s3.example.test", "ostname mismatch"),
        (issue("*.example.test", by=AUTHORITY), "example.test", "ostname mismatch"),
        (issue("s*.example.test", by=AUTHORITY), HOST, "ostname mismatch"),
        (issue("*", by=AUTHORITY), "localhost", "ostname mismatch"),
        (issue("xn--bcher-kva.example", by=AUTHORITY), "bücher.example", "accepted"),
        (issue(by=AUTHORITY, subject=HOST), HOST, "ostname mismatch"),
        (issue("else.example.test", by=AUTHORITY, subject=HOST), HOST, "ostname mismatch"),
        (issue(HOST), HOST, "self-signed certificate"),
        # The second are the words of OpenSSL 3.0.2.
        (issue(HOST, by=OTHER_AUTHORITY), HOST, "unable to get local issuer certificate|key identifier mismatch"),
        (issue(HOST, by=issue(is_authority=True, subject="unknown")), HOST, "unable to get local issuer certificate"),
        (issue(HOST, by=AUTHORITY, from_days=-2, to_days=-1), HOST, "certificate has expired"),
        (issue(HOST, by=AUTHORITY, from_days=1, to_days=2), HOST, "certificate is not yet valid"),
        (issue(HOST, by=AUTHORITY, usage=ExtendedKeyUsageOID.CLIENT_AUTH), HOST, "purpose"),
        (BEHIND_INTERMEDIATE, HOST, "unable to get local issuer certificate"),
        (replace(BEHIND_INTERMEDIATE, chain=[INTERMEDIATE.certificate]), HOST, "accepted"),
        (replace(BEHIND_NO_SIGNER, chain=[NO_SIGNER.certificate]), HOST, "invalid CA certificate"),
    ],
)
def test_certificates_are_accepted_as_by_python(
    tmp_path: Path, authority: str, identity: Identity, host: str, reason: str
) -> None:
    path = identity.write(tmp_path, "identity")
    ours = our_verdict(path, authority, host)
    theirs = verdict_of_python(path, authority, host)
    assert re.search(reason, ours)
    assert (ours == "accepted") == (theirs == "accepted"), theirs


def test_a_self_signed_certificate_and_an_intermediate_authority_without_its_root_are_trusted(tmp_path: Path) -> None:
    path = issue(HOST).write(tmp_path, "self-signed")
    assert our_verdict(path, str(path), HOST) == verdict_of_python(path, str(path), HOST) == "accepted"
    # As in Python 3.13 and later.
    path = BEHIND_INTERMEDIATE.write(tmp_path, "server")
    assert our_verdict(path, str(INTERMEDIATE.write(tmp_path, "intermediate")), HOST) == "accepted"


def test_without_authorities_any_certificate_is_accepted(tmp_path: Path) -> None:
    server = server_context_of(issue("else.example.test", from_days=-2, to_days=-1).write(tmp_path, "expired"))
    with connected(TlsContext(authorities=None), server) as ends:
        ends.say_hello()


def test_a_file_of_authorities_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.pem"):
        TlsContext(authorities=str(tmp_path / "missing.pem"))
    (tmp_path / "junk.pem").write_text("nothing")
    with pytest.raises(TlsError, match="no certificate"):
        TlsContext(authorities=str(tmp_path / "junk.pem"))
    assert is_error_queue_empty()


@pytest.mark.parametrize("host", ["", ".example.test", "a..b", "a" * 64, "s3.example.test\0.else", "fe80::1%eth0"])
def test_what_is_no_host_name_is_refused(context: TlsContext, host: str) -> None:
    with socket.socket() as sock, pytest.raises(TlsError, match="not a host name"):
        TlsConnection(context, sock.fileno(), host)


# What is agreed upon


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_older_versions_are_refused(context: TlsContext, server_context: ssl.SSLContext) -> None:
    server_context.set_ciphers("ALL:@SECLEVEL=0")
    server_context.minimum_version = server_context.maximum_version = ssl.TLSVersion.TLSv1_1
    with sockets() as (client, theirs):
        connection, server = TlsConnection(context, client.fileno(), HOST), Server(theirs, server_context)
        assert connection.handshake() == "read"
        with pytest.raises(ssl.SSLError):
            server.step()
        with pytest.raises(TlsError, match="protocol version"):
            connection.handshake()


@pytest.mark.parametrize(("host", "told"), [(HOST, [HOST]), ("127.0.0.1", [None]), ("::1", [None])])
def test_the_server_is_told_a_name_alone(tmp_path: Path, authority: str, host: str, told: list[str | None]) -> None:
    server = server_context_of(issue(HOST, "127.0.0.1", "::1", by=AUTHORITY).write(tmp_path, "server"))
    server.set_alpn_protocols(["h2", "http/1.1"])
    seen: list[str | None] = []
    server.sni_callback = lambda _tls, name, _context: seen.append(name)
    with connected(TlsContext(authorities=authority), server, host) as ends:
        assert ends.server.tls.selected_alpn_protocol() is None
    assert seen == told


def test_the_ciphers_are_those_of_python(context: TlsContext) -> None:
    """They are read from the ClientHello (RFC 8446, 4.1.2), as `shared_ciphers` is wrong before Python 3.11.3."""
    with sockets() as (client, server):
        assert TlsConnection(context, client.fileno(), HOST).handshake() == "read"
        hello = memoryview(server.recv(1 << 16))
    behind_random = hello[5 + 4 + 2 + 32 :]  # the heads of record and message, and the version
    behind_session = behind_random[1 + behind_random[0] :]
    size_bytes = int.from_bytes(behind_session[:2])
    offered = set(struct.unpack(f">{size_bytes // 2}H", behind_session[2 : 2 + size_bytes]))
    no_renegotiation = 0x00FF  # no cipher, but sent as one (RFC 5746)
    assert len(offered) > 1
    assert offered - {no_renegotiation} <= {one["id"] & 0xFFFF for one in ssl.create_default_context().get_ciphers()}


# Sessions


@VERSIONS
def test_a_later_connection_resumes_the_session(context: TlsContext, server_context: ssl.SSLContext) -> None:
    resumed = []
    for _ in range(3):
        with connected(context, server_context) as ends:
            ends.say_hello()  # the tickets come before it
            resumed.append(ends.server.tls.session_reused)
        # Now nobody has the connection any more, which is what OpenSSL forbids resumption for.
        del ends
    assert resumed == [False, True, True]


@VERSIONS
def test_no_session_is_resumed_elsewhere(tmp_path: Path, authority: str, server_context: ssl.SSLContext) -> None:
    server = server_context_of(issue(HOST, "s4.example.test", by=AUTHORITY).write(tmp_path, "server"))
    server.maximum_version = server_context.maximum_version
    context = TlsContext(authorities=authority)
    hosts = [(context, HOST), (context, "s4.example.test"), (TlsContext(authorities=authority), HOST), (context, HOST)]
    resumed = []
    for one, host in hosts:
        with connected(one, server, host) as ends:
            ends.say_hello()
            resumed.append(ends.server.tls.session_reused)
    assert resumed == [False, False, False, True]


def test_a_thread_keeps_the_session_too(context: TlsContext, server_context: ssl.SSLContext) -> None:
    with connected(context, server_context) as ends:
        data = bytearray(5)
        with receiving(ends, data) as outcome:
            ends.server.send(b"hello")
            assert outcome.get(timeout=PATIENCE_S) == 5
    with connected(context, server_context) as ends:
        assert ends.server.tls.session_reused


def test_tickets_alone_are_nothing_that_came(ends: Ends) -> None:
    ends.has_come()
    assert ends.connection.is_quiet
    assert not select.select([ends.sock], [], [], 0)[0]
    with pytest.raises(BlockingIOError):
        ends.connection.recv(100)


# Replies and bodies


def test_part_of_a_record_is_not_received_but_noticed(ends: Ends) -> None:
    ends.server.tls.write(b"hello")
    record = ends.server.take()
    ends.server.sock.sendall(record[:-1])
    ends.has_come()
    with pytest.raises(BlockingIOError):
        ends.connection.recv(100)
    assert not ends.connection.is_quiet
    ends.server.sock.sendall(record[-1:])
    ends.has_come()
    data = bytearray(100)
    assert ends.connection.recv_into(memoryview(data)) == 5
    assert data[:5] == b"hello"


def test_nothing_is_received_into_nothing(ends: Ends) -> None:
    ends.server.send(b"hello")
    ends.has_come()
    assert ends.connection.recv(0) == b""
    assert ends.connection.recv_into(memoryview(bytearray())) == 0
    assert ends.connection.receive_all(memoryview(bytearray())) == 0
    with pytest.raises(OverflowError):
        ends.connection.recv(-1)
    assert ends.read(5) == b"hello"


def test_while_a_thread_receives_nobody_else_uses_the_connection_or_moves_the_memory(ends: Ends) -> None:
    data = bytearray(5)
    with receiving(ends, data) as outcome:
        for use in (lambda: ends.connection.recv(1), lambda: ends.connection.send(b"?"), ends.connection.handshake):
            with pytest.raises(RuntimeError, match="another thread"):
                use()
        with pytest.raises(BufferError):
            data.append(0)
        ends.server.send(b"hello")
        assert outcome.get(timeout=PATIENCE_S) == 5
    assert data == b"hello"


def test_a_signal_in_a_body_is_outlived(ends: Ends) -> None:
    data = bytearray(5)
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with receiving(ends, data) as outcome:
            # A signal to any other thread may meet one that ends, which is the end of the process.
            (receiver,) = [thread for thread in threading.enumerate() if thread.name == "receiver"]
            while not is_asleep(receiver):
                os.sched_yield()
            assert receiver.ident is not None
            signal.pthread_kill(receiver.ident, signal.SIGUSR1)
            ends.server.send(b"hello")
            assert outcome.get(timeout=PATIENCE_S) == 5
    finally:
        signal.signal(signal.SIGUSR1, before)


def is_asleep(thread: threading.Thread) -> bool:
    return Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_a_request_that_the_socket_does_not_take_at_once_arrives_once(ends: Ends) -> None:
    request = random.Random(1).randbytes(8 << 20)
    left, seen = request, bytearray()
    with suppress(BlockingIOError):
        while left:
            left = left[ends.connection.send(left) :]
    assert left
    while len(seen) < len(request):
        with suppress(BlockingIOError):
            # The same bytes, but elsewhere in memory.
            left = left[ends.connection.send(bytes(bytearray(left))) :]
        seen += ends.server.receive()
    assert seen == request


# New keys: Python's ssl cannot ask for them, so the other end is OpenSSL itself.


Updating = tuple[TlsConnection, socket.socket, OpensslServer]


@pytest.fixture
def updating(context: TlsContext, server_file: Path) -> Iterator[Updating]:
    with sockets() as (client, theirs), OpensslServer(theirs, server_file) as server:
        yield accepted(TlsConnection(context, client.fileno(), HOST), client, server), client, server


def test_in_a_body_the_keys_may_change(updating: Updating) -> None:
    connection, client, server = updating
    data, half = bytearray(len(BODY)), len(BODY) // 2

    def serve() -> None:
        server.send(BODY[:half])
        server.update_keys()
        server.send(BODY[half:])

    thread = threading.Thread(target=serve)
    thread.start()
    client.setblocking(True)
    assert connection.receive_all(memoryview(data)) == len(data)
    thread.join()
    assert data == BODY
    # The answer to it goes with the next request (RFC 8446, 4.6.3).
    assert connection.send(b"?") == 1
    assert server.receive(100) == b"?"
    server.send(b"hello")
    assert connection.receive_all(memoryview(data)[:5]) == 5
    assert data[:5] == b"hello"


def test_new_keys_between_replies_are_nothing_that_came(updating: Updating) -> None:
    connection, client, server = updating
    for reply in (b"hello", b"again"):
        server.send(reply)
        server.update_keys()
        while unread_bytes(client) < 2 * RECORD_BYTES_AT_LEAST:
            os.sched_yield()
        received = b""
        while not received:
            with suppress(BlockingIOError):
                received = connection.recv(len(reply))
        # The new keys came with the reply, and lie in OpenSSL's buffer.
        assert received == reply
        assert connection.is_quiet
        assert not select.select([client], [], [], 0)[0]
        server.update_keys()
        assert select.select([client], [], [], PATIENCE_S)[0]
        assert connection.is_quiet
        assert not select.select([client], [], [], 0)[0]


def test_a_request_to_renegotiate_is_declined(context: TlsContext, server_file: Path) -> None:
    with sockets() as (client, theirs), OpensslServer(theirs, server_file, most_version=TLS1_2) as server:
        connection = accepted(TlsConnection(context, client.fileno(), HOST), client, server)
        server.ask_to_renegotiate()
        assert select.select([client], [], [], PATIENCE_S)[0]
        with pytest.raises(BlockingIOError):
            connection.recv(1)
        # The answer to it is an alert. Nobody has begun another handshake.
        assert connection.send(b"?") == 1
        assert server.receive(100) == b""
        assert server.reason() == "no renegotiation"


# What ends a connection


def test_an_end_that_came_with_the_reply_makes_the_connection_unquiet(ends: Ends) -> None:
    with pytest.raises(BlockingIOError):
        ends.connection.recv(1)
    ends.server.tls.write(b"hello")
    ends.server.end()
    assert ends.read(5) == b"hello"
    assert not ends.connection.is_quiet


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("@ii", 1, 0))
    sock.close()


# A record of its own length, of which no key makes anything.
BROKEN_RECORD = b"\x17\x03\x03\x40\x00" + bytes(1 << 14)


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (lambda ends: ends.sock.shutdown(socket.SHUT_RDWR), 5),
        (lambda ends: ends.server.end(), 5),
        (lambda ends: ends.server.sock.shutdown(socket.SHUT_WR), 5),
        (lambda ends: reset(ends.server.sock), ConnectionResetError),
        (lambda ends: ends.server.sock.sendall(BROKEN_RECORD), TlsError),
        (lambda ends: None, BlockingIOError),
    ],
    ids=["shut down here", "close_notify", "EOF", "reset", "broken record", "silence"],
)
def test_a_body_cut_off_says_why(ends: Ends, end: Callable[[Ends], object], outcome: int | type[OSError]) -> None:
    data = bytearray(100)
    with receiving(ends, data, silence_s=0.05 if outcome is BlockingIOError else PATIENCE_S) as outcomes:
        ends.server.send(b"hello")
        while data[4] != b"o"[0]:
            os.sched_yield()
        end(ends)
        found = outcomes.get(timeout=PATIENCE_S)
    assert (found if isinstance(found, int) else type(found)) == outcome
    assert data.rstrip(b"\0") == b"hello"


@pytest.mark.parametrize("receives", [2, 0])
def test_a_reset_is_told_by_its_number_each_time(ends: Ends, receives: int) -> None:
    reset(ends.server.sock)
    ends.has_come()
    for _ in range(receives):
        with pytest.raises(ConnectionResetError):
            ends.connection.recv(1)
        assert not ends.connection.is_quiet
    with pytest.raises(ConnectionResetError):
        ends.connection.send(b"?")


def test_the_socket_stays_the_callers(context: TlsContext, server_context: ssl.SSLContext) -> None:
    with connected(context, server_context) as ends:
        client, server = ends.sock, ends.server.sock
        del ends.connection
        # Nothing was sent either: the number may belong to another socket by now.
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.recv(1)
        assert client.send(b"?") == 1


# OpenSSL keeps errors by thread


def test_what_broke_one_connection_is_no_error_of_the_next(context: TlsContext, server_context: ssl.SSLContext) -> None:
    with connected(context, server_context) as broken, connected(context, server_context) as sound:
        broken.server.sock.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(TlsError):
            broken.read(1)
        assert is_error_queue_empty()
        with pytest.raises(TlsError):
            broken.read(1)
        with suppress(BlockingIOError):
            assert not sound.connection.recv(1)
        assert sound.connection.is_quiet
        sound.say_hello()


def test_what_python_left_in_the_queue_is_no_error_of_ours(ends: Ends) -> None:
    library = ctypes.CDLL(ctypes.util.find_library("crypto"))
    ends.server.send(b"hello")
    ends.has_come()
    library.ERR_new()
    library.ERR_set_error(20, 1, None)
    assert ends.read(5) == b"hello"
    library.ERR_new()
    library.ERR_set_error(20, 1, None)
    with pytest.raises(BlockingIOError):
        ends.connection.recv(1)

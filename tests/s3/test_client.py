"""The S3 client, plain and over TLS: connections are used again or replaced, and hostile replies are refused."""

import gc
import gzip
import re
import socket
import socketserver
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from bench.s3server import (
    INTERNAL_ERROR,
    SLOW_DOWN,
    Answer,
    FaultRule,
    Limit,
    LoopbackServer,
    MemoryObjects,
    Reset,
    ServerConfig,
    Stall,
    TlsFiles,
    create_chain,
)
from bench.s3server.faults import Action
from fastfuse.errors import (
    BadReplyError,
    DeadlineError,
    MissingObjectError,
    ObjectArchivedError,
    ObjectChangedError,
    ReadError,
    ServiceError,
    UnavailableError,
)
from fastfuse.filesystem.figures.verdict import figures_of
from fastfuse.metrics import Counters
from fastfuse.objects import EMPTY_ETAG, ObjectRef
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from fastfuse.s3.connection import TASK_BYTES, Connection, Patience
from fastfuse.s3.routes import Route, _connected
from tests.s3 import hostile
from tests.s3.canned import Target, canned_server, chunks
from tests.s3.certificates import issue
from tests.s3.places import IN_A_REGION, canned_client, client_of, loopback_client

LONG_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n"
DATA = bytes(range(256)) * 8192  # 2 MiB: most of it is received in a thread
REF = ObjectRef("bucket", "key", len(DATA), "", 0)
PATIENCE = Patience(60.0, 60.0)


def paired() -> tuple[socket.socket, socket.socket, Connection]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return ours, theirs, Connection(ours, None)


@contextmanager
def tunnel_proxy(port: int | None) -> Iterator[tuple[int, list[bytes]]]:
    """A proxy that opens tunnels to `port` of this host, whatever is asked for, or refuses; with what it was asked."""
    asked: list[bytes] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            asked.append(self.request.recv(10_000))
            if port is None:
                self.request.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
                return
            self.request.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            with socket.create_connection(("127.0.0.1", port)) as upstream:
                back = threading.Thread(target=pump, args=(upstream, self.request))
                back.start()
                pump(self.request, upstream)
                back.join()

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.01,))
        thread.start()
        yield proxy.server_address[1], asked
        proxy.shutdown()
        thread.join()


Served = Callable[..., AbstractAsyncContextManager[tuple[LoopbackServer, S3Client]]]


@pytest.fixture(params=["plain", "tls"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Served:
    config, connection = ServerConfig(), IN_A_REGION
    if request.param == "tls":
        authority, issued = create_chain(tmp_path)
        config, connection = ServerConfig(tls=issued), replace(IN_A_REGION, ca_bundle=str(authority))

    def serve() -> AbstractAsyncContextManager[tuple[LoopbackServer, S3Client]]:
        return loopback_client({"key": DATA}, config, connection)

    return serve


async def test_authorities_that_this_process_does_not_see_any_more_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, issued = create_chain(tmp_path)
    connection = replace(IN_A_REGION, ca_bundle=str(authority))
    async with loopback_client({"key": DATA}, ServerConfig(tls=issued), connection) as (server, reader):
        assert await reader.get(REF, 0, 10) == DATA[:10]
        create_chain(tmp_path)
        authority.unlink()
        server._tls = server._tls_context()
        for _ in range(2):
            route_of(reader).close_idle()
            with pytest.raises(UnavailableError, match="certificate verification failed"):
                await reader.get(REF, 0, 10)
    assert [record.message for record in caplog.records if "CA bundle" in record.message] == [
        f"the CA bundle {authority} is gone, or in a directory that this process may not enter"
    ]


async def test_reads_go_on_where_authority_and_certificate_are_replaced(tmp_path: Path) -> None:
    """All connections that are under way find the certificate refused, and one of them reads the new authority."""
    authority, issued = create_chain(tmp_path)
    connection = replace(IN_A_REGION, ca_bundle=str(authority))
    async with loopback_client({"key": DATA}, ServerConfig(tls=issued), connection) as (server, reader):
        assert await reader.get(REF, 0, 10) == DATA[:10]
        create_chain(tmp_path)
        server._tls = server._tls_context()  # nor does it know the old one's sessions
        route_of(reader).close_idle()
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(reader.get, REF, 0, 10)
        create_chain(tmp_path)
        right = authority.read_bytes()
        authority.write_text("no certificate")
        server._tls = server._tls_context()
        route_of(reader).close_idle()
        with pytest.raises(UnavailableError, match="certificate verification failed"):
            await reader.get(REF, 0, 10)
        authority.write_bytes(right)
        assert await reader.get(REF, 0, 10) == DATA[:10]


def route_of(reader: S3Client) -> Route:
    route = reader._routes.known("bucket")
    assert route is not None
    return route


@pytest.mark.parametrize("size_bytes", [1000, len(DATA)])
async def test_one_read_after_the_other_takes_one_connection(served: Served, size_bytes: int) -> None:
    async with served() as (server, reader):
        for _ in range(5):
            assert await reader.get(REF, 0, size_bytes) == DATA[:size_bytes]
        assert server.statistics().connections == 1


async def test_refusals_and_what_an_object_is_take_no_other_connection_than_its_bytes(served: Served) -> None:
    async with served() as (server, reader):
        for _ in range(2):
            with pytest.raises(ObjectChangedError, match="gone"):
                await reader.get(replace(REF, key="gone"), 0, 10)
            found = await reader.head("bucket", "key")
            assert await reader.get(found, 0, 10) == DATA[:10]
            with pytest.raises(MissingObjectError):
                await reader.head("bucket", "gone")
        assert server.statistics().connections == 1


TOLD = {"Content-Length": "5", "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT", "ETag": '"e"'}


@pytest.mark.parametrize(
    ("headers", "etag", "storage_class"),
    [
        ({}, '"e"', "STANDARD"),
        ({"x-amz-storage-class": "GLACIER"}, '"e"', "GLACIER"),
        *(({"ETag": etag}, "", "STANDARD") for etag in ('""', 'W/""')),
    ],
)
async def test_what_an_object_is_comes_from_the_headers(headers: dict[str, str], etag: str, storage_class: str) -> None:
    async with canned_client(lambda _: (200, TOLD | headers, b"")) as (reader, server):
        at_ns = 1_767_225_600 * 10**9
        assert await reader.head("bucket", "a b") == ObjectRef("bucket", "a b", 5, etag, at_ns, storage_class)
        assert server.seen[0][0] == "/bucket/a%20b"


async def test_a_reply_without_a_length_is_of_an_empty_object_if_its_etag_is() -> None:
    """Apache, as a proxy, leaves out the length of 0."""
    headers = {name: TOLD[name] for name in ("Last-Modified", "ETag")} | {"Transfer-Encoding": "chunked"}
    async with canned_client(lambda _: (200, headers, b"")) as (reader, _):
        with pytest.raises(ServiceError, match="has no length"):
            await reader.head("bucket", "key")
        headers["ETag"] = f'"{EMPTY_ETAG}"'
        assert (await reader.head("bucket", "key")).size_bytes == 0


async def test_a_connection_given_up_before_its_thread_begins_is_closed_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    start, delayed = trio.lowlevel.start_thread_soon, list[Callable[[], None]]()
    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", lambda *work: delayed.append(partial(start, *work)))
    ours, theirs, connection = paired()
    with theirs:
        theirs.sendall(LONG_HEAD)
        assert await connection.ask(b"GET / HTTP/1.1\r\n\r\n", PATIENCE) is not None
        body = bytearray(300_000)
        with trio.move_on_after(0):
            await connection.read_into(memoryview(body))
        connection.close()
        # Nobody else gets its number before that thread is through with it.
        assert ours.fileno() >= 0
        theirs.setblocking(True)
        assert theirs.recv(100).startswith(b"GET")
        assert theirs.recv(100) == b""
    delayed[0]()
    with trio.fail_after(10):
        while ours.fileno() >= 0:
            await trio.lowlevel.checkpoint()
    assert not any(body)


@pytest.mark.parametrize(
    ("action", "size_bytes"), [(Reset(100_000), len(DATA)), (Stall(100_000), len(DATA)), (Stall(100_000), 200_000)]
)
async def test_an_attempt_that_failed_keeps_no_memory_until_a_collection(
    action: Action, size_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[weakref.ref[object]] = []

    def take(size_bytes: int) -> memoryview:
        if size_bytes <= TASK_BYTES:  # no thread may be about to drop it
            assert all(memory() is None for memory in taken)
        memory = np.empty(size_bytes, np.uint8)
        taken.append(weakref.ref(memory))
        return memory.data

    async with loopback_client({"key": DATA}, connection=replace(IN_A_REGION, deadline_s=6.0)) as (server, reader):
        monkeypatch.setattr(reader._buffers, "take", take)
        server.faults.add(FaultRule(action=action, operation="GetObject", times=1))
        gc.disable()
        try:
            await reader.get(REF, 0, size_bytes)
            with trio.fail_after(10):
                while any(memory() is not None for memory in taken):  # a thread may be about to drop it
                    await trio.lowlevel.checkpoint()
        finally:
            gc.enable()
    assert len(taken) == 2


async def test_a_connection_that_is_refused_leaves_nothing_until_a_collection() -> None:
    def refusals() -> int:
        return sum(isinstance(one, ConnectionRefusedError) for one in gc.get_objects())

    gc.collect()
    before = refusals()
    gc.disable()
    try:
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                await _connected("127.0.0.1", 1, 1.0)
        await trio.lowlevel.checkpoint()
        assert refusals() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("after_bytes", [0, 300_000])
async def test_a_cancelled_read_ends_at_once(served: Served, after_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    body = bytearray(len(DATA))
    async with served() as (server, reader):
        monkeypatch.setattr(reader._buffers, "take", lambda _: memoryview(body))
        rule = server.faults.add(FaultRule(action=Stall(after_bytes), operation="GetObject"))
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reader.get, REF, 0, len(DATA))
                while not (body[after_bytes - 1] if after_bytes else server.requests):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        server.faults.remove(rule)
        assert await reader.get(REF, 0, len(DATA)) == DATA


async def test_a_read_that_is_cancelled_while_it_connects_is_counted_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nursery of trio tries the addresses of a host, and puts what cancels it into a group."""
    connecting = trio.Event()

    async def try_for_ever(*_: object) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            connecting.set()
            await trio.sleep_forever()

    monkeypatch.setattr("trio.open_tcp_stream", try_for_ever)
    counters = Counters()
    session = S3Session(replace(IN_A_REGION, endpoint_url="http://127.0.0.1:1"))
    async with aclosing(S3Client(session, counters=counters)) as reader, trio.open_nursery() as nursery:

        async def read() -> None:
            with pytest.raises(trio.Cancelled) as caught:
                await reader.get(REF, 0, len(DATA))
            raise caught.value

        nursery.start_soon(read)
        await connecting.wait()
        nursery.cancel_scope.cancel()
    assert counters.get("fastfuse_fetch_requests", "cancelled") == 1


@pytest.mark.parametrize(
    ("reply", "most_refused"),
    [
        (INTERNAL_ERROR, 1),
        # One for each connection that was open: a service that throttles gets no burst of handshakes.
        (SLOW_DOWN, 4),
        # Of a gateway: no S3 service throttles.
        (None, 1),
    ],
)
async def test_a_read_goes_to_the_address_that_a_name_has_now_if_the_one_before_answers_with_failures(
    monkeypatch: pytest.MonkeyPatch, reply: Answer | None, most_refused: int
) -> None:
    monkeypatch.setattr("fastfuse.s3.retry_policy.FIRST_PAUSE_S", 0.0)
    connect, is_healthy = trio.open_tcp_stream, True
    refused = 0

    def answer(target: Target) -> tuple[int, dict[str, str], bytes]:
        nonlocal refused
        if is_healthy:
            all_ask.wait()
            return 206, {"Content-Range": f"bytes 0-9/{len(DATA)}"}, DATA[:10]
        refused += 1
        if reply is None:
            return 503, {}, b"<html>no server is available</html>"
        return reply.status, {}, f"<Error><Code>{reply.code}</Code></Error>".encode()

    all_ask = threading.Barrier(4)
    with canned_server(answer) as first, LoopbackServer({"bucket": MemoryObjects({"key": DATA})}) as second:
        config = replace(IN_A_REGION, endpoint_url="http://name.test:1", force_path_style=True)
        ports = [int(first.url.rpartition(":")[2]), int(second.endpoint_url.rpartition(":")[2])]

        async def connect_there(*_: object) -> trio.SocketStream:
            return await connect("127.0.0.1", ports[0])

        monkeypatch.setattr("trio.open_tcp_stream", connect_there)
        async with aclosing(client_of(config)) as client:
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(client.get, REF, 0, 10)
            is_healthy = False
            ports.reverse()
            assert await client.get(REF, 0, 10) == DATA[:10]
        assert 1 <= refused <= most_refused


@asynccontextmanager
async def hostile_client(*, idle: int = 0, **connection: Any) -> AsyncIterator[tuple[hostile.Hostile, S3Client]]:  # noqa: ANN401
    """Open a client, with so many idle connections, of a server that may misbehave from then on."""
    async with (
        hostile.serving() as server,
        aclosing(client_of(replace(IN_A_REGION, endpoint_url=server.url, **connection))) as client,
    ):
        async with trio.open_nursery() as nursery:
            for _ in range(idle):
                nursery.start_soon(client.get, hostile.REF, 0, 10)
        yield server, client


@pytest.mark.parametrize("size_bytes", [1000, hostile.REF.size_bytes - 1])
async def test_dropped_idle_connections_cost_a_read_one_stall(monkeypatch: pytest.MonkeyPatch, size_bytes: int) -> None:
    """Nothing comes over any of them, not even a reset."""
    monkeypatch.setattr("fastfuse.s3.client.stall_timeout_s", lambda _: 2.0)
    async with hostile_client(idle=5) as (server, reader):
        dropped, asked = list(server.peers), 0
        assert len(dropped) == 5

        async def answer(peer: hostile.Peer, request: hostile.Request) -> None:
            nonlocal asked
            if peer in dropped:
                asked += 1
                await trio.sleep_forever()
            await hostile.good(peer, request)

        server.misbehave(answer, accept=None, context="good")
        assert await reader.get(hostile.REF, 0, size_bytes) == hostile.DATA[:size_bytes]
    assert asked == 1


async def test_a_read_has_one_deadline(monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock) -> None:
    """One idle connection has ended before, the other one ends as it is asked."""

    async def hang(*_: object) -> None:
        mock_clock.autojump_threshold = 0
        await trio.sleep_forever()

    async def reset(peer: hostile.Peer, _: hostile.Request) -> None:
        peer.reset()

    async with hostile_client(deadline_s=1, idle=2) as (server, reader):
        await server.peers[0].end()
        server.misbehave(reset, accept=None, context="good")
        monkeypatch.setattr("trio.open_tcp_stream", hang)
        with pytest.raises(DeadlineError):
            await reader.get(hostile.REF, 0, 10)
        assert (round(trio.current_time(), 6), server.hostile_replies) == (1.0, 1)


async def test_idle_connections_that_end_late_share_the_deadline_of_a_read(
    mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A proxy whose service hangs closes each just before it would have stalled."""

    async def reset_late(peer: hostile.Peer, _: hostile.Request) -> None:
        mock_clock.jump(0.3)
        peer.reset()

    async with hostile_client(deadline_s=1, idle=6) as (server, reader):
        server.misbehave(reset_late, accept=None, context="good")
        with pytest.raises(UnavailableError, match="timed out"):
            await reader.get(hostile.REF, 0, 10)
        # The third ends at 0.9 s. The end of the fourth may be noticed before the deadline; then the fifth is asked.
        assert server.hostile_replies in (4, 5)
    assert "trying again" not in caplog.text


async def test_a_read_whose_end_comes_late_tells_why_its_attempts_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may wake it after the time that is left to tell of the last failure."""
    monkeypatch.setattr("fastfuse.s3.retry_policy.LAST_ATTEMPT_SHARE", 0.0)

    async def reset(peer: hostile.Peer, _: hostile.Request) -> None:
        peer.reset()

    async with hostile_client(deadline_s=1) as (server, reader):
        server.misbehave(reset, accept=None, context="good")
        with pytest.raises(UnavailableError, match=r"without an answer|reset"):
            await reader.get(hostile.REF, 0, 10)


async def test_connections_that_a_nat_has_forgotten_cost_a_read_seconds() -> None:
    async with hostile_client() as (server, reader):
        await reader.get(hostile.REF, 0, 10)
        server.peers[0].vanish()
        with trio.fail_after(15):  # a stall takes 20 s
            assert await reader.get(hostile.REF, 0, 20) == hostile.DATA[:20]


@pytest.mark.parametrize("transport", ["plain", "tls"])
@pytest.mark.parametrize("hangs", [True, False])
async def test_reads_go_to_another_address_if_one_accepts_and_answers_nothing(
    *, hangs: bool, transport: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("fastfuse.s3.client.stall_timeout_s", lambda _: 2.0)
    monkeypatch.setattr("fastfuse.s3.routes.CONNECT_TIMEOUT_S", 3.0)
    config, issued = replace(IN_A_REGION, force_path_style=True), None
    if transport == "tls":
        authority = issue(is_authority=True, subject="authority")
        path = issue("name.test", by=authority).write(tmp_path, "server")
        issued = TlsFiles(path, path)
        config = replace(config, ca_bundle=str(authority.write(tmp_path, "authority")))
    look_up, connections = socket.getaddrinfo, 0

    def both(host: bytes | str, *asked: Any) -> list[Any]:  # noqa: ANN401
        if host != b"name.test":
            return look_up(host, *asked)
        return [row for address in ("127.0.0.2", "127.0.0.1") for row in look_up(address, *asked)]

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal connections
        connections += 1
        async with stream:
            if hangs:
                await trio.sleep_forever()

    monkeypatch.setattr(socket, "getaddrinfo", both)
    objects = {"bucket": MemoryObjects({"key": DATA})}
    with LoopbackServer(objects, ServerConfig(tls=issued)) as server:
        url = f"{server.endpoint_url.partition(':')[0]}://name.test:{server.port}"
        async with aclosing(client_of(replace(config, endpoint_url=url))) as client, trio.open_nursery() as nursery:
            await nursery.start(partial(trio.serve_tcp, serve, server.port, host="127.0.0.2"))
            for _ in range(3):
                assert await client.get(REF, 0, 10) == DATA[:10]
                client._routes._routes["bucket"].close_idle()
            nursery.cancel_scope.cancel()
    assert connections == 1


async def test_the_code_of_an_error_document_in_chunks_is_told() -> None:
    """As AWS sends them."""
    document = b"<?xml version='1.0'?><Error><Code>InvalidObjectState</Code></Error>"
    async with canned_client(lambda _: (403, {"Transfer-Encoding": "chunked"}, chunks(document))) as (reader, _):
        with pytest.raises(ObjectArchivedError) as caught:
            await reader.get(REF, 0, 10)
        assert "Restore" in caught.value.hint


@pytest.mark.parametrize(("status", "why"), [(0, "no whole reply"), (503, "503")])
async def test_a_get_made_elsewhere_in_vain_has_a_line(caplog: pytest.LogCaptureFixture, status: int, why: str) -> None:
    counters = Counters()
    S3Client(S3Session(ConnectionConfig()), counters=counters).count_in_vain(status, "bucket", "key")
    assert caplog.messages == [f"'s3://bucket/key': {why}; trying again"]
    figures = figures_of(counters, elapsed_s=1.0)
    assert (figures.gets, figures.refused, figures.cost_usd) == (status > 0, status > 0, 0.0)


@pytest.mark.parametrize("level", ["DEBUG", "INFO"])
async def test_each_attempt_has_a_line_in_the_log_of_debugging(level: str, caplog: pytest.LogCaptureFixture) -> None:
    replies = iter([(403, {"x-amz-request-id": "R1"}, b""), (500, {}, b""), (404, {}, b"")])
    with caplog.at_level(level, "fastfuse.s3.client"):
        async with canned_client(lambda _: next(replies)) as (reader, _):
            for _ in range(2):
                with suppress(ReadError):
                    await reader.get(REF, 0, 10)
        client = S3Client(S3Session(ConnectionConfig()))
        client.count_direct(10, 0.1, 0.1, is_checked=True, key="a")
        client.count_in_vain(0, "bucket", "b")
    lines = [re.sub(r"in .* ms", "in 1 ms", line) for line in caplog.messages if line.startswith("GET")]
    assert lines[:2] + lines[-2:] == (level == "DEBUG") * [
        f"GET {REF.key!r}, bytes 0 to 10: 403 R1 in 1 ms",
        f"GET {REF.key!r}, bytes 0 to 10: 500  in 1 ms",
        "GET 'a', 10 bytes, by a thread: answered in 1 ms",
        "GET 'b', by a thread: no reply",
    ]


async def test_a_region_is_corrected_once() -> None:
    regions = iter(range(1000))

    async with canned_client(lambda _: (301, {"x-amz-bucket-region": f"region-{next(regions)}"}, b"")) as (
        reader,
        there,
    ):
        with pytest.raises(UnavailableError, match="301"):
            await reader.get(REF, 0, 10)
        assert len(there.seen) == 2


async def test_a_body_that_comes_slowly_but_comes_is_no_stall(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 KB take twice the time after which a connection without a byte is given up."""
    monkeypatch.setattr("fastfuse.s3.client.stall_timeout_s", lambda _: 1.0)
    async with served() as (server, reader):
        rule = server.faults.add(FaultRule(action=Limit(100_000), operation="GetObject"))
        assert await reader.get(REF, 0, 200_000) == DATA[:200_000]
        assert len(server.requests) == 1
        server.faults.remove(rule)


async def test_a_read_for_which_the_system_has_no_memory_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        monkeypatch.undo()
        raise MemoryError

    async with loopback_client({"key": DATA}) as (server, reader):
        for requests in (2, 4):  # over a new connection, and over an idle one
            monkeypatch.setattr(np, "empty", no_memory)
            assert await reader.get(REF, 0, 1000) == DATA[:1000]
            assert len(server.requests) == requests


async def test_a_service_that_ignores_ranges_is_read_from_the_beginning_only() -> None:
    async with loopback_client({"key": DATA}, ServerConfig(honour_ranges=False)) as (_, reader):
        assert await reader.get(REF, 0, 1010) == DATA[:1010]
        with pytest.raises(BadReplyError, match="ignores Range"):
            await reader.get(REF, 1000, 1010)


async def test_an_object_that_is_unpacked_on_its_way_is_refused_as_a_whole_and_in_parts() -> None:
    stored = gzip.compress(DATA)
    ref = replace(REF, size_bytes=len(stored), etag='"0123"')
    reply = 200, {"Transfer-Encoding": "chunked", "ETag": ref.etag}, chunks(DATA)
    async with canned_client(lambda _: reply) as (reader, _):
        for start, end in ((0, 100), (100, 200), (0, len(stored))):
            with pytest.raises(BadReplyError, match=r"without a length|sent more") as caught:
                await reader.get(ref, start, end)
            assert "no-transform" in caught.value.hint


async def test_reads_of_all_sizes_and_what_else_is_asked_share_the_connections_that_there_may_be() -> None:
    async with loopback_client({"key": DATA}, connection=replace(IN_A_REGION, max_connections=2)) as (server, reader):
        rule = server.faults.add(FaultRule(action=Stall(0)))
        async with trio.open_nursery() as nursery:
            for end in (10, len(DATA), 20, len(DATA)):
                nursery.start_soon(reader.get, REF, 0, end)
            nursery.start_soon(reader.head, "bucket", "key")
            nursery.start_soon(partial(reader.list, "bucket", prefix=""))
            await trio.to_thread.run_sync(server.wait_until, lambda _: len(server.requests) == 2)
            await trio.testing.wait_all_tasks_blocked()
            assert server.statistics().connections == 2
            server.faults.remove(rule)
        assert server.statistics().connections == 2


async def test_a_request_is_signed_and_asks_for_the_version() -> None:
    reply = 206, {"Content-Range": "bytes 5-9/2097152", "ETag": '"e"'}, b"x" * 5
    with canned_server(lambda _: reply) as server:
        config = ConnectionConfig(endpoint_url=f"{server.url}/base", region="r", request_payer=True)
        async with aclosing(client_of(config)) as reader:
            await reader.get(replace(REF, key="a//../b c+ü", etag='"e"'), 5, 10)
    [(target, headers)] = server.seen
    assert target == "/base/bucket/a//../b%20c%2B%C3%BC"
    assert (headers["range"], headers["if-match"]) == ("bytes=5-9", '"e"')
    assert "x-amz-request-payer" in headers["authorization"]


@pytest.mark.parametrize("password", ["", "hunter2"])
async def test_tls_goes_through_a_proxys_tunnel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, password: str) -> None:
    authority, issued = create_chain(tmp_path)
    with (
        LoopbackServer({"bucket": MemoryObjects({"key": DATA})}, ServerConfig(tls=issued)) as server,
        tunnel_proxy(server.port) as (proxy_port, asked),
    ):
        user = f"user:{password}@" if password else ""
        monkeypatch.setenv("https_proxy", f"http://{user}127.0.0.1:{proxy_port}")
        # The certificate is for this address, and only the proxy knows the way to this port.
        config = ConnectionConfig(endpoint_url="https://127.0.0.1:9", region="r", ca_bundle=str(authority))
        async with aclosing(client_of(config)) as reader:
            assert await reader.get(REF, 0, len(DATA)) == DATA
        assert asked[0].startswith(b"CONNECT 127.0.0.1:9 HTTP/1.1\r\n")
        assert (b"proxy-authorization: Basic " in asked[0]) == bool(password)
        assert all(b"AWS4" not in each for each in asked)


async def test_a_proxy_that_refuses_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    with tunnel_proxy(None) as (proxy_port, _):
        monkeypatch.setenv("https_proxy", f"http://user:hunter2@127.0.0.1:{proxy_port}")
        config = ConnectionConfig(endpoint_url="https://127.0.0.1:9", region="r", verify_ssl=False)
        async with aclosing(client_of(config)) as reader:
            with pytest.raises(ServiceError, match=r"proxy 127.0.0.1 answered 407") as caught:
                await reader.head("bucket", "key")
        assert "hunter2" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv(f"{scheme}_proxy", f"http://user:hunter2@127.0.0.1:{port}")
    named = rf"s3\.test cannot be reached: the proxy 127\.0\.0\.1, port {port}, cannot be reached: Connection refused"
    config = ConnectionConfig(endpoint_url=f"{scheme}://s3.test", region="r", verify_ssl=False)
    async with aclosing(client_of(config)) as reader:
        with pytest.raises(ServiceError, match=named):
            await reader.head("bucket", "key")


async def test_plain_http_asks_the_proxy_for_the_whole_url(monkeypatch: pytest.MonkeyPatch) -> None:
    with canned_server(lambda _: (206, {"Content-Range": "bytes 0-9/2097152"}, DATA[:10])) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//user:pass@"))
        async with aclosing(client_of(replace(IN_A_REGION, endpoint_url="http://s3.test:9000"))) as reader:
            assert await reader.get(REF, 0, 10) == DATA[:10]
    [(target, headers)] = proxy.seen
    assert target == "http://s3.test:9000/bucket/key"
    assert headers["host"] == "s3.test:9000"
    assert headers["proxy-authorization"].startswith("Basic ")
    assert "proxy-authorization" not in headers["authorization"]

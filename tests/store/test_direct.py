"""Reading straight from sockets, plain and with TLS: connections are used again, given up and replaced."""

import errno
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from fastfuse.errors import (
    BadReplyError,
    DeadlineError,
    ObjectArchivedError,
    ObjectChangedError,
    ObjectDeniedError,
    ReadError,
    StoreUnsuitableError,
    UnavailableError,
)
from fastfuse.objects import ObjectRef
from fastfuse.store import receivers
from fastfuse.store.base import ConnectionConfig
from fastfuse.store.connection import Connection, StallWatch, _secured
from fastfuse.store.direct import DirectRangeReader, is_plain
from fastfuse.store.http1 import ReplyHead
from fastfuse.store.receivers import NoThreadError, Receivers
from fastfuse.store.session import S3Session
from fastfuse.store.transport import tls_context
from fastfuse.testing import (
    SLOW_DOWN,
    FaultRule,
    Limit,
    LoopbackServer,
    MemoryObjects,
    Reset,
    ServerConfig,
    Stall,
    Truncate,
    create_certificate,
)
from fastfuse.testing.faults import Action
from tests.servers import create_chain
from tests.store.canned import canned_server
from tests.store.places import direct_reader

LONG_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n"
DATA = bytes(range(256)) * 8192  # 2 MiB: most of it is received in a thread
REF = ObjectRef("bucket", "key", len(DATA), "", 0)


Served = Callable[..., AbstractContextManager[tuple[LoopbackServer, DirectRangeReader]]]


@pytest.fixture(params=["plain", "tls"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Served:
    authority, issued = create_chain(tmp_path) if request.param == "tls" else (None, None)

    @contextmanager
    def serve(deadline_s: float = 60.0) -> Iterator[tuple[LoopbackServer, DirectRangeReader]]:
        with LoopbackServer({"bucket": MemoryObjects({"key": DATA})}, ServerConfig(tls=issued)) as server:
            config = ConnectionConfig(
                endpoint_url=server.endpoint_url,
                region="us-east-1",
                deadline_s=deadline_s,
                ca_bundle=None if authority is None else str(authority),
            )
            yield server, direct_reader(config)

    return serve


@pytest.mark.parametrize("size_bytes", [1000, len(DATA)])
async def test_one_read_after_the_other_takes_one_connection(served: Served, size_bytes: int) -> None:
    with served() as (server, reader):
        for _ in range(5):
            assert await reader.get_range(REF, 0, size_bytes) == DATA[:size_bytes]
        assert server.statistics().connections == 1
        await reader.aclose()


async def test_a_refusal_leaves_the_connection_usable(served: Served) -> None:
    with served() as (server, reader):
        for _ in range(2):
            with pytest.raises(Exception, match="gone"):
                await reader.get_range(replace(REF, key="gone"), 0, 10)
        assert await reader.get_range(REF, 0, 10) == DATA[:10]
        assert server.statistics().connections == 1
        await reader.aclose()


async def test_what_an_object_is_takes_no_other_connection_than_its_bytes(served: Served) -> None:
    with served() as (server, reader):
        found = await reader.head("key")
        assert found is not None
        assert await reader.get_range(found, 0, 10) == DATA[:10]
        assert await reader.head("gone") is None
        assert await reader.head("key") == found
        assert server.statistics().connections == 1
        await reader.aclose()


TOLD = {"Content-Length": "5", "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT", "ETag": '"e"'}


@pytest.mark.parametrize(
    ("headers", "storage_class"), [({}, "STANDARD"), ({"x-amz-storage-class": "GLACIER"}, "GLACIER")]
)
async def test_what_an_object_is_comes_from_the_headers(headers: dict[str, str], storage_class: str) -> None:
    with canned_server(lambda _: (200, TOLD | headers, b"")) as server:
        reader = direct_reader(ConnectionConfig(endpoint_url=server.url, region="r"))
        at_ns = 1_767_225_600 * 10**9
        assert await reader.head("a b") == ObjectRef("bucket", "a b", 5, '"e"', at_ns, storage_class)
        assert server.seen[0][0] == "/bucket/a%20b"
        await reader.aclose()


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (200, TOLD | {"Content-Length": "many"}),
        (200, {name: value for name, value in TOLD.items() if name != "Last-Modified"}),
        (200, TOLD | {"Last-Modified": "yesterday"}),
        (200, TOLD | {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 +99999999999999999999"}),
        (200, TOLD | {"Transfer-Encoding": "chunked"}),
        (206, TOLD),
        (301, TOLD),
        (403, TOLD),
        (404, TOLD),
        (503, TOLD),
    ],
)
async def test_what_does_not_tell_of_an_object_is_left_to_others(status: int, headers: dict[str, str]) -> None:
    with canned_server(lambda _: (status, headers, b"")) as server:
        reader = direct_reader(ConnectionConfig(endpoint_url=server.url, region="r"))
        assert await reader.head("key") is None
        await reader.aclose()


async def test_a_body_that_follows_a_head_is_never_the_next_reply() -> None:
    surplus = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n"
    with canned_server(lambda target: (200, TOLD, surplus if target.endswith("/first") else b"")) as server:
        reader = direct_reader(ConnectionConfig(endpoint_url=server.url, region="r"))
        for key in ("first", "second"):
            found = await reader.head(key)
            assert found is not None
            assert found.size_bytes == 5
            for connection in reader._idle:
                if key == "first":  # the body may come later than the head
                    await trio.lowlevel.wait_readable(connection._sock)
        await reader.aclose()


async def test_an_interim_reply_is_never_the_reply() -> None:
    with canned_server(lambda target: (103 if target.endswith("/first") else 200, TOLD, b"")) as server:
        reader = direct_reader(ConnectionConfig(endpoint_url=server.url, region="r"))
        assert await reader.head("first") is None
        assert not reader._idle
        assert await reader.head("second") is not None
        await reader.aclose()


async def test_a_host_that_has_no_name_is_left_to_others() -> None:
    reader = direct_reader(ConnectionConfig(endpoint_url="http://a..b:9000", region="r"))
    assert await reader.head("key") is None
    await reader.aclose()


async def test_what_gets_no_answer_is_left_to_others(served: Served) -> None:
    with served() as (server, reader):
        server.faults.add(FaultRule(action=Reset(None), operation="HeadObject", times=1))
        assert await reader.head("key") is None
        assert await reader.head("key") is not None
        await reader.aclose()


async def test_connections_that_the_server_closes_without_a_word_are_replaced() -> None:
    head = f"HTTP/1.1 206 Partial\r\nContent-Length: 10\r\nContent-Range: bytes 0-9/{len(DATA)}\r\n\r\n".encode()

    def serve(listener: socket.socket) -> None:
        for _ in range(3):
            with listener.accept()[0] as connection:
                connection.recv(10_000)
                connection.sendall(head + DATA[:10])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        config = ConnectionConfig(endpoint_url=f"http://127.0.0.1:{listener.getsockname()[1]}", region="r")
        reader = direct_reader(config)
        for _ in range(3):
            assert await reader.get_range(REF, 0, 10) == DATA[:10]
        await reader.aclose()
        thread.join()


async def test_a_connection_that_was_given_up_as_its_reply_came_serves_no_other() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    connection = Connection(ours, StallWatch(60.0, 60.0), Receivers())
    with theirs:
        theirs.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        assert await connection.ask(b"GET / HTTP/1.1\r\n\r\n") is not None
        connection.give_up()
        body = bytearray(5)
        assert await connection.read_into(memoryview(body)) == 5
        assert body == b"hello"
        assert not connection.is_reusable
        connection.close()


async def test_of_a_long_body_only_what_comes_with_the_head_is_copied() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    connection = Connection(ours, StallWatch(60.0, 60.0), Receivers())
    sent = b"".join(number.to_bytes(4, "big") for number in range(75_000))
    with theirs:
        sending = threading.Thread(target=theirs.sendall, args=(LONG_HEAD + sent,), daemon=True)
        sending.start()
        assert await connection.ask(b"GET / HTTP/1.1\r\n\r\n", body_bytes=len(sent)) is not None
        assert ours.recv(8, socket.MSG_PEEK) == sent[4096 - len(LONG_HEAD) :][:8]
        body = bytearray(len(sent))
        assert await connection.read_into(memoryview(body)) == len(sent)
        assert body == sent
        sending.join()
        connection.close()


async def test_a_connection_is_told_how_long_a_body_is_expected(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, ask = [], Connection.ask

    async def listen(self: Connection, request: bytes, *, body_bytes: int = 0) -> ReplyHead | None:
        told.append(body_bytes)
        return await ask(self, request, body_bytes=body_bytes)

    monkeypatch.setattr(Connection, "ask", listen)
    with served() as (_, reader):
        assert await reader.get_range(REF, 5, 300_005) == DATA[5:300_005]
        await reader.aclose()
    assert told == [300_000]


async def test_a_connection_that_is_given_up_before_its_thread_begins_is_closed_by_that_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delayed: list[Callable[[], object]] = []

    def begin_later(work: Callable[..., object], arguments: tuple[object, ...]) -> None:
        delayed.append(partial(work, *arguments))

    monkeypatch.setattr(receivers, "start_new_thread", begin_later)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    connection = Connection(ours, StallWatch(60.0, 60.0), Receivers(0.01))
    with theirs:
        theirs.sendall(LONG_HEAD)
        assert await connection.ask(b"GET / HTTP/1.1\r\n\r\n", body_bytes=300_000) is not None
        body = bytearray(300_000)
        with trio.move_on_after(0):
            await connection.read_into(memoryview(body))
        connection.close()
        # Nobody else gets its number before that thread is through with it.
        assert ours.fileno() >= 0
        theirs.setblocking(True)
        assert theirs.recv(100).startswith(b"GET")
        assert theirs.recv(100) == b""
    thread = threading.Thread(target=delayed[0])
    thread.start()
    with trio.fail_after(10):
        while ours.fileno() >= 0:
            await trio.lowlevel.checkpoint()
    assert not any(body)
    await trio.to_thread.run_sync(thread.join)


async def test_a_connection_is_closed_where_there_is_no_room_for_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(receivers, "start_new_thread", no_room)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    connection = Connection(ours, StallWatch(60.0, 60.0), Receivers())
    with theirs:
        theirs.sendall(LONG_HEAD)
        assert await connection.ask(b"GET / HTTP/1.1\r\n\r\n", body_bytes=300_000) is not None
        with pytest.raises(NoThreadError):
            await connection.read_into(memoryview(bytearray(300_000)))
        connection.close()
        assert ours.fileno() == -1


async def test_something_that_comes_as_a_connection_is_given_up_does_not_bring_it_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, theirs = socket.socketpair()
    watch = StallWatch(1.0, 60.0)
    connection = Connection(ours, watch, Receivers())
    with theirs:
        began_s = watch.begin(connection)
        await trio.sleep(2)
        assert connection._is_given_up
        watch.go_on(connection, began_s)
        assert not watch._waiting
        connection.close()


async def test_what_is_left_of_a_long_error_document_is_never_taken_for_the_next_reply() -> None:
    def reply(data: bytes) -> bytes:
        head = f"HTTP/1.1 206 Partial\r\nContent-Length: 10\r\nContent-Range: bytes 0-9/{len(DATA)}\r\n\r\n"
        return head.encode() + data

    def serve(listener: socket.socket) -> None:
        with listener.accept()[0] as connection:
            connection.recv(10_000)
            begun = b"<Error>" + bytes(64 << 10)
            rest = reply(b"wrongwrong")
            head = f"HTTP/1.1 404 Not Found\r\nContent-Length: {len(begun) + len(rest)}\r\n\r\n"
            connection.sendall(head.encode() + begun)
            if connection.recv(10_000):
                connection.sendall(rest)
                return
        with listener.accept()[0] as connection:
            connection.recv(10_000)
            connection.sendall(reply(DATA[:10]))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        config = ConnectionConfig(endpoint_url=f"http://127.0.0.1:{listener.getsockname()[1]}", region="r")
        reader = direct_reader(config)
        with pytest.raises(ObjectChangedError):
            await reader.get_range(REF, 0, 10)
        assert await reader.get_range(REF, 0, 10) == DATA[:10]
        await reader.aclose()
        thread.join()


@pytest.mark.parametrize("after_bytes", [0, 10, 300_000, len(DATA) - 10])
async def test_a_cancelled_read_ends_at_once_wherever_it_is(served: Served, after_bytes: int) -> None:
    with served() as (server, reader):
        rule = server.faults.add(FaultRule(action=Stall(after_bytes), operation="GetObject"))
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reader.get_range, REF, 0, len(DATA))
                while not server.requests:
                    await trio.lowlevel.checkpoint()
                scope.cancel()
        server.faults.remove(rule)
        assert await reader.get_range(REF, 0, len(DATA)) == DATA
        await reader.aclose()


@pytest.mark.parametrize(
    "action", [SLOW_DOWN, Reset(None), Reset(10), Truncate(10), Stall(0), Stall(10), Stall(100_000)], ids=str
)
async def test_what_goes_wrong_on_a_connection_that_was_used_before_is_outlived_too(
    served: Served, action: Action
) -> None:
    with served(deadline_s=1.0) as (server, reader):
        assert await reader.get_range(REF, 0, 10) == DATA[:10]
        server.faults.add(FaultRule(action=action, operation="GetObject", times=1))
        assert await reader.get_range(REF, 0, 200_000) == DATA[:200_000]
        assert len(server.requests) == 3
        await reader.aclose()


async def test_a_stalled_reply_delays_no_other_and_is_given_up_at_its_own_time(served: Served) -> None:
    with served(deadline_s=1.0) as (server, reader):
        async with trio.open_nursery() as nursery:  # two connections
            for _ in range(2):
                nursery.start_soon(reader.get_range, REF, 0, 10)
        server.faults.add(FaultRule(action=Stall(0), operation="GetObject", times=1))
        done = trio.Event()

        async def read_on() -> None:
            while not done.is_set():
                assert await reader.get_range(REF, 10, 20) == DATA[10:20]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_on)
            assert await reader.get_range(REF, 0, 10) == DATA[:10]
            done.set()
        await reader.aclose()


@pytest.mark.parametrize(
    ("status", "headers", "body", "error", "message"),
    [
        (206, {}, b"x" * 10, BadReplyError, "does not say which range"),
        (206, {"Content-Range": "bytes 1-10/2097152"}, b"x" * 10, BadReplyError, "another range"),
        (206, {"Content-Range": "bytes 0-9/2097152"}, b"x" * 9, BadReplyError, "sent 9 bytes"),
        (206, {"Content-Range": "bytes 0-9/2097152", "Content-Length": "x"}, b"", BadReplyError, "is no HTTP/1.1"),
        (200, {}, b"x" * 10, StoreUnsuitableError, "ignores Range"),
        (
            206,
            {"Content-Range": "bytes 0-9/2097152", "Transfer-Encoding": "chunked"},
            b"a\r\nxxxxxxxxxx\r\n0\r\n\r\n",
            StoreUnsuitableError,
            "how long",
        ),
    ],
)
async def test_replies_that_cannot_be_taken(
    status: int, headers: dict[str, str], body: bytes, error: type[Exception], message: str
) -> None:
    with canned_server(lambda _: (status, headers, body)) as server:
        reader = direct_reader(ConnectionConfig(endpoint_url=server.url, region="r"))
        with pytest.raises(error, match=message):
            await reader.get_range(REF, 0, 10)
        await reader.aclose()


@pytest.mark.parametrize(
    ("status", "code", "error", "message"),
    [
        (403, "InvalidObjectState", ObjectArchivedError, "Restore"),
        (400, "ExpiredToken", ObjectDeniedError, "ExpiredToken"),
        (403, "RequestTimeTooSkewed", ObjectDeniedError, "RequestTimeTooSkewed"),
    ],
)
async def test_the_code_of_an_error_document_in_chunks_is_told(
    status: int, code: str, error: type[Exception], message: str
) -> None:
    """As AWS sends them."""
    document = f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode()
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(document), document)
    with canned_server(lambda _: (status, {"Transfer-Encoding": "chunked"}, body)) as server:
        reader = direct_reader(ConnectionConfig(endpoint_url=server.url, region="r"))
        with pytest.raises(error) as caught:
            await reader.get_range(REF, 0, 10)
        assert message in f"{caught.value} {getattr(caught.value, 'hint', '')}"
        await reader.aclose()


async def test_an_error_document_without_an_end_is_read_as_far_as_it_may_be_long() -> None:
    body = b"<Code>InvalidObjectState</Code>" + bytes(1 << 20)
    with canned_server(lambda _: (403, {"Transfer-Encoding": "chunked"}, body)) as server:
        reader = direct_reader(ConnectionConfig(endpoint_url=server.url, region="r"))
        with pytest.raises(ObjectArchivedError):
            await reader.get_range(REF, 0, 10)
        await reader.aclose()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirection_to_another_place_is_left_to_who_follows_it(status: int) -> None:
    with canned_server(lambda _: (status, {"Location": "http://127.0.0.1:9/"}, b"")) as server:
        reader = direct_reader(ConnectionConfig(endpoint_url=server.url, region="r"))
        with pytest.raises(StoreUnsuitableError, match="redirects") as caught:
            await reader.get_range(REF, 0, 10)
        assert not caught.value.whole_server
        await reader.aclose()


@pytest.mark.parametrize(
    ("action", "said"),
    [(Reset(1_000_000), "reset by peer"), (Truncate(1_000_000), "cut off")],
)
async def test_what_ends_a_long_body_is_told(served: Served, action: Reset | Truncate, said: str) -> None:
    with served(deadline_s=3.0) as (server, reader):
        rule = server.faults.add(FaultRule(action=action, operation="GetObject"))
        with pytest.raises(UnavailableError, match=said):
            await reader.get_range(REF, 0, len(DATA))
        server.faults.remove(rule)
        assert await reader.get_range(REF, 0, len(DATA)) == DATA
        await reader.aclose()


async def test_a_long_body_that_stalls_is_asked_for_again(served: Served) -> None:
    with served(deadline_s=6.0) as (server, reader):
        server.faults.add(FaultRule(action=Stall(1_000_000), operation="GetObject", times=1))
        assert await reader.get_range(REF, 0, len(DATA)) == DATA
        assert len(server.requests) == 2
        await reader.aclose()


async def test_a_body_that_comes_slowly_but_comes_is_no_stall(served: Served) -> None:
    """200 KB take twice the time after which a connection without a byte is given up."""
    with served(deadline_s=3.0) as (server, reader):
        rule = server.faults.add(FaultRule(action=Limit(100_000), operation="GetObject"))
        assert await reader.get_range(REF, 0, 200_000) == DATA[:200_000]
        assert len(server.requests) == 1
        server.faults.remove(rule)
        await reader.aclose()


async def test_a_body_that_trickles_for_ever_ends_with_the_deadline(served: Served) -> None:
    with served(deadline_s=1.0) as (server, reader):
        assert await reader.get_range(REF, 0, 10) == DATA[:10]
        server.faults.add(FaultRule(action=Limit(20_000), operation="GetObject"))
        with pytest.raises((DeadlineError, UnavailableError)):
            await reader.get_range(REF, 0, 200_000)
        await reader.aclose()


async def test_a_request_is_signed_and_asks_for_the_version() -> None:
    reply: Callable[[str], tuple[int, dict[str, str], bytes]] = lambda _: (  # noqa: E731
        206,
        {"Content-Range": "bytes 5-9/2097152", "ETag": '"e"'},
        b"x" * 5,
    )
    with canned_server(reply) as server:
        config = ConnectionConfig(endpoint_url=f"{server.url}/base", region="r", request_payer=True)
        reader = direct_reader(config)
        await reader.get_range(replace(REF, key="a//../b c+ü", etag='"e"'), 5, 10)
        await reader.aclose()
    [(target, headers)] = server.seen
    assert target == "/base/bucket/a//../b%20c%2B%C3%BC"
    assert (headers["range"], headers["if-match"]) == ("bytes=5-9", '"e"')
    assert "x-amz-request-payer" in headers["authorization"]


async def test_nobody_there_is_an_io_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # Time for an attempt on a busy machine, too: without one it is the deadline that is told.
    config = ConnectionConfig(endpoint_url="http://127.0.0.1:9", region="r", deadline_s=2)
    reader = direct_reader(config)
    with pytest.raises(UnavailableError, match="Connection refused"):
        await reader.get_range(REF, 0, 10)
    await reader.aclose()


async def test_a_certificate_that_nobody_vouches_for_is_left_to_others(tmp_path: Path) -> None:
    with LoopbackServer({"bucket": MemoryObjects({})}, ServerConfig(tls=create_certificate(tmp_path))) as server:
        reader = direct_reader(ConnectionConfig(endpoint_url=server.endpoint_url, region="r"))
        with pytest.raises(StoreUnsuitableError, match="certificate is not accepted") as caught:
            await reader.get_range(REF, 0, 10)
        assert caught.value.whole_server
        assert server.requests == ()
        await reader.aclose()


async def test_a_bundle_that_holds_no_certificates_is_left_to_others_to_tell(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("none")
    reader = direct_reader(ConnectionConfig(endpoint_url="https://127.0.0.1:9", region="r", ca_bundle=str(bundle)))
    with pytest.raises(StoreUnsuitableError, match="CA bundle cannot be read"):
        await reader.get_range(REF, 0, 10)


async def test_a_host_that_no_certificate_can_name_leaves_no_connection_behind(tmp_path: Path) -> None:
    authority, issued = create_chain(tmp_path)
    context = tls_context(str(authority))
    with LoopbackServer({"bucket": MemoryObjects({})}, ServerConfig(tls=issued)) as server:
        sock = socket.create_connection(("127.0.0.1", server.port))
        with pytest.raises(ValueError, match="server_hostname"):
            await _secured(sock, context, "")
        assert sock.fileno() < 0


@pytest.mark.parametrize("name", ["https_proxy", "all_proxy"])
async def test_behind_a_proxy_others_read(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "inside.example.com")
    reader = direct_reader(ConnectionConfig(endpoint_url="https://s3.example.com", region="r"))
    with pytest.raises(StoreUnsuitableError, match="behind a proxy"):
        await reader.prepare()
    inside = direct_reader(ConnectionConfig(endpoint_url="https://inside.example.com", region="r"))
    await inside.prepare()


@pytest.mark.parametrize(
    ("bucket", "host", "path"),
    [
        ("bucket", "bucket.s3.eu-central-1.amazonaws.com", "/key"),
        ("bucket.with.dots", "s3.eu-central-1.amazonaws.com", "/bucket.with.dots/key"),
    ],
)
async def test_without_an_endpoint_it_is_aws_itself(
    monkeypatch: pytest.MonkeyPatch, bucket: str, host: str, path: str
) -> None:
    asked: list[object] = []

    async def note(*address: object, tls: object, **_: object) -> Connection:
        asked.extend((*address, tls))
        raise OSError(errno.ENETUNREACH, "no network")

    monkeypatch.setattr("fastfuse.store.direct.connect", note)
    reader = direct_reader(ConnectionConfig(region="eu-central-1", deadline_s=0.1), bucket)
    with pytest.raises(ReadError, match="no network"):
        await reader.get_range(replace(REF, bucket=bucket), 0, 10)
    assert asked[:3] == [host, 443, tls_context(True)]
    assert reader._get_request(replace(REF, bucket=bucket), 0, 10).startswith(
        f"GET {path} HTTP/1.1\r\nhost: {host}\r\n".encode()
    )


@pytest.mark.parametrize("bucket", ["arn:aws:s3:us-west-2:123456789012:accesspoint/a", "b--use1-az4--x-s3"])
async def test_other_kinds_of_buckets_are_left_to_botocore(bucket: str) -> None:
    reader = direct_reader(ConnectionConfig(endpoint_url="http://127.0.0.1:9", region="r"), bucket)
    with pytest.raises(StoreUnsuitableError):
        await reader.prepare()


@pytest.mark.parametrize(
    ("endpoint_url", "proxy", "expected"),
    [
        ("http://s3.example.com", "", True),
        ("http://s3.example.com", "http://proxy.example.com", False),
        ("https://s3.example.com", "", False),
        (None, "", False),
    ],
)
def test_plain_is_http_without_a_proxy(
    monkeypatch: pytest.MonkeyPatch, endpoint_url: str | None, proxy: str, expected: bool
) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.setenv("all_proxy", "http://127.0.0.1:9")  # which botocore does not heed, by which it is listed
    assert is_plain(S3Session(ConnectionConfig(endpoint_url=endpoint_url))) == expected

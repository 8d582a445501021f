"""One connection, with the other end in the hands of the test."""

import os
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from fastfuse.s3.connection import _WAKING_BYTES, SILENT_CALLS, TASK_BYTES, Connection, Patience, _receive_plain
from fastfuse.s3.tls import TlsConnection, TlsContext
from tests.s3 import tls_peers
from tests.s3.canned import chunks
from tests.s3.queues import unread_bytes, unsent_bytes

PATIENCE_S = 60.0
PATIENCE = Patience(PATIENCE_S, PATIENCE_S)
# A thread receives it.
BODY = os.urandom(4 * TASK_BYTES)

# The server's end, and the client's.
Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        server, _ = listener.accept()
        with server:
            client.setblocking(False)
            yield server, client


@pytest.mark.parametrize("left_bytes", [1, _WAKING_BYTES - 1])
async def test_the_last_of_a_long_body_is_taken_and_keeps_nothing_else_waiting(ends: Ends, left_bytes: int) -> None:
    """The kernel wakes a thread only where much is there: it would not for less than that."""
    server, client = ends
    connection = Connection(client, None)
    body = bytearray(len(BODY))

    async def receive() -> None:
        assert await connection.ask(b"GET", PATIENCE) is not None
        assert await connection.read_into(memoryview(body)) == len(body)

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(BODY)
            await trio.to_thread.run_sync(partial(server.sendall, head + BODY[:-left_bytes]), abandon_on_cancel=True)
            while unsent_bytes(server) or unread_bytes(client):
                await trio.lowlevel.checkpoint()
            server.sendall(BODY[-left_bytes:])
        assert body == BODY
        # Nor is the next reply kept waiting for, which may be of a few bytes.
        server.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        assert await connection.ask(b"GET", PATIENCE) is not None
    connection.close()


async def test_what_came_is_acknowledged_at_once_where_more_is_waited_for(ends: Ends) -> None:
    """A server that uses Nagle's algorithm sends the rest only then."""
    server, client = ends
    connection = Connection(client, None)

    async def receive() -> None:
        assert await connection.ask(b"GET", PATIENCE) is not None
        assert await connection.read_into(memoryview(bytearray(4))) == 4

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            for piece in (b"HTTP/1.1 200 OK\r\n", b"content-length: 4\r\n\r\nbo"):
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
                server.sendall(piece)
                await trio.testing.wait_all_tasks_blocked()
                # The kernel's delayed acknowledgement would set it, too, and come later.
                assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
            server.sendall(b"dy")
    connection.close()


@pytest.mark.parametrize("head", [b"content-length: 99", b"connection: close"])
@pytest.mark.parametrize(("pieces", "took_s"), [(0, 10), (3, 34), (9, 60)])
async def test_a_body_may_be_silent_for_a_while_and_take_so_long_in_all(
    ends: Ends, autojump_clock: MockClock, head: bytes, pieces: int, took_s: float
) -> None:
    server, client = ends
    connection = Connection(client, None)

    async def drip() -> None:
        server.sendall(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % head)
        for _ in range(pieces):
            await trio.sleep(8)
            server.sendall(b"x")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drip)
        assert await connection.ask(b"GET", Patience(10, 60)) is not None
        with pytest.raises(TimeoutError):
            await connection.read_into(memoryview(bytearray(99)))
        assert trio.current_time() == pytest.approx(took_s, abs=0.1)
        nursery.cancel_scope.cancel()
    assert not connection.is_reusable
    connection.close()


class _Late:
    """A TLS connection to which the rest of a reply comes when it was just not there."""

    def __init__(self, ends: tls_peers.Ends, rest: bytes) -> None:
        self._ends, self._rest = ends, rest

    def __getattr__(self, name: str) -> object:
        return getattr(self._ends.connection, name)

    def recv(self, most_bytes: int) -> bytes:
        try:
            return self._ends.connection.recv(most_bytes)
        except BlockingIOError:
            self._ends.server.sock.sendall(self._rest)
            self._rest = b""
            self._ends.has_come()
            raise


async def test_a_reply_whose_record_is_whole_just_before_the_wait_is_taken(
    context: TlsContext, server_file: Path
) -> None:
    with tls_peers.connected(context, tls_peers.server_context_of(server_file)) as ends, trio.fail_after(PATIENCE_S):
        ends.server.tls.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        record = ends.server.take()
        ends.server.sock.sendall(record[:-1])
        ends.has_come()
        connection = Connection(ends.sock, cast(TlsConnection, _Late(ends, record[-1:])))
        assert await connection.ask(b"GET", PATIENCE) is not None


class _Silent(socket.socket):
    """Receives as many bytes at once as it is told, none of them in time where that is None."""

    def __init__(self, counts: list[int | None]) -> None:
        super().__init__()
        self._counts = iter(counts)

    def recv_into(self, *_: object) -> int:
        count = next(self._counts)
        if count is None:
            raise BlockingIOError
        return count


@pytest.mark.parametrize(
    ("counts", "is_stalled"),
    [
        ([1, *[None] * (SILENT_CALLS - 1), 1], False),
        ([*[None] * (SILENT_CALLS - 1), 1, *[None] * (SILENT_CALLS - 1), 1], False),
        ([1, *[None] * SILENT_CALLS, 1], True),
    ],
)
def test_only_a_long_silence_is_a_stall(counts: list[int | None], *, is_stalled: bool) -> None:
    """However little comes at once: the kernel's time for one call is for all waits in it."""
    with _Silent(counts) as sock, pytest.raises(BlockingIOError) if is_stalled else nullcontext():
        assert _receive_plain(sock, memoryview(bytearray(2))) == 2


# A body, the size of its chunks (None: it comes with its length), and the sizes of the pieces in which it is read.
Reply = tuple[bytes, int | None, list[int]]
REPLIES = st.tuples(st.binary(max_size=50), st.none() | st.integers(1, 60), st.lists(st.integers(1, 60), max_size=4))


@given(st.lists(st.tuples(REPLIES, st.booleans(), st.integers(0, 100)), max_size=5))
@settings(deadline=None)
async def test_a_connection_used_again_begins_with_the_next_reply(replies: list[tuple[Reply, bool, int]]) -> None:
    """However much of a body was read, and by which call."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    connection = Connection(ours, None)
    with theirs, ours:
        for (body, chunk_bytes, read_bytes), is_read_at_once, most_bytes in replies:
            head, sent = b"content-length: %d" % len(body), body
            if chunk_bytes is not None:
                head, sent = b"transfer-encoding: chunked", chunks(body, chunk_bytes)
            theirs.sendall(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n%b" % (head, sent))
            assert await connection.ask(b"GET", PATIENCE) is not None
            if is_read_at_once:
                assert await connection.read_all(most_bytes) == body[:most_bytes]
            else:
                at = 0
                for size_bytes in read_bytes:
                    piece = bytearray(size_bytes)
                    count = await connection.read_into(memoryview(piece))
                    assert piece[:count] == body[at : at + size_bytes]
                    at += count
            if not (connection.is_reusable and connection.is_fresh()):
                break
        connection.close()

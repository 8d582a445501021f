"""HTTP/1.1 connections, plain or over TLS, each for one request at a time.

A task sends the request and awaits its head. It receives short bodies, too; of a long body it leaves all but the
beginning to a thread, which receives, and decrypts (`tls`), in one or two calls without the GIL.
"""

import contextlib
import errno
import os
import select
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import NamedTuple, TypeVar

import trio

from fastfuse.s3.http1 import MAX_HEAD_BYTES, BadReplyHeadError, BodyDecoder, ReplyHead, first_words, parse_head
from fastfuse.s3.threads import NoThreadError, in_thread
from fastfuse.s3.tls import TlsConnection

# The task itself receives a body of at most this size: a hop to a thread and back costs as much as copying it.
TASK_BYTES = 256 << 10
# One call for the head and the beginning of the body, or for all of a small object.
_FIRST_BYTES = 64 << 10
# A thread that waits for all of a long body sleeps until so much has come (SO_RCVLOWAT) instead of waking with each
# packet: 3 ms at 90 MB/s. See docs/MEASUREMENTS.md, "low-water mark".
_WAKING_BYTES = 256 << 10
# MSG_WAITALL adds up its waits for each packet, so one call that times out does not prove a stall. Several calls
# without a byte, each with an equal part of the time, do.
SILENT_CALLS = 4
# A server sends one or two (100, 103) before the reply itself.
_MAX_INTERIM_REPLIES = 8
_HTTP = b"HTTP/1."

T = TypeVar("T")


class Patience(NamedTuple):
    """The longest silence of a reply, and the longest time that it may take in all."""

    stall_s: float
    most_s: float


class Connection:
    """Carries one request at a time, and ends a reply that stalls with `TimeoutError`.

    A head has to come whole within the time that it may be silent. A thread that receives a long body ends it after a
    silence; the caller's deadline ends a body that drips for ever.

    After any exception, a cancellation too, the connection cannot be used again: close it.
    """

    def __init__(
        self, sock: socket.socket, tls: TlsConnection | None, avoid_address: Callable[[], None] = lambda: None
    ) -> None:
        """`avoid_address` is called, perhaps in a thread, if a reply stalls or does not come."""
        self.avoid_address = avoid_address
        self._sock = sock
        self._tls = tls
        self._stream = sock if tls is None else tls
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._patience, self._asked_s = Patience(inf, inf), 0.0
        # The bytes of the reply's body that came with its head, as they came.
        self._begun = memoryview(b"")
        # The bytes of the body that are still to come; below 0 if more came than the head says, None while unknown.
        self._due_bytes: int | None = 0
        # The decoder of the chunks of a body of unknown length, and its pieces that nobody took yet.
        self._decoder: BodyDecoder | None = None
        self._pieces: list[memoryview] = []
        self._is_persistent = True
        self._is_closed = self._is_in_thread = False
        # Whether any byte of the reply has come.
        self._has_begun = False

    @property
    def is_reusable(self) -> bool:
        """True if the last reply was received and taken to its end, and the server takes another request."""
        return not self._is_closed and self._is_persistent and self._due_bytes == 0 and not self._pieces

    @property
    def certificate_days(self) -> int | None:
        """The days until the server's certificate expires; None without TLS."""
        return None if self._tls is None else self._tls.days_left

    def is_fresh(self) -> bool:
        """Return whether an idle connection is still open, and nothing came that nobody asked for."""
        return not self._poll.poll(0) if self._tls is None else self._tls.is_quiet

    async def ask(self, request: bytes, patience: Patience, *, has_body: bool = True) -> ReplyHead | None:
        """Send `request` and return the head of the reply, or None where the connection ended before it began.

        The connection is closed unless a head is returned. `has_body` is false for a HEAD, whose reply describes a body
        that does not follow.

        Raises:
            BadReplyHeadError: what came is not HTTP/1.1.
            OSError: the connection broke in the head, or it stalled.
        """
        self._due_bytes, self._decoder, self._patience = None, None, patience
        self._has_begun = False
        self._asked_s = trio.current_time()
        try:
            head = await self._in_time(partial(self._receive_head, request))
        except BaseException as error:
            self.close()
            if self._has_begun or not isinstance(error, BrokenPipeError | ConnectionResetError):
                raise
            return None
        self._is_persistent = head.is_persistent
        if not has_body:
            self._due_bytes = -len(self._begun)
        elif head.body_bytes is not None:
            self._due_bytes = head.body_bytes - len(self._begun)
        elif head.is_chunked:
            self._decoder = BodyDecoder()
        return head

    async def _in_time(self, step: Callable[[], Awaitable[T]]) -> T:
        """Return what `step` returns, unless that takes longer than the reply may be silent, or may take in all."""
        with trio.move_on_at(min(trio.current_time() + self._patience.stall_s, self._asked_s + self._patience.most_s)):
            return await step()
        raise self._stalled()

    async def _receive_head(self, request: bytes) -> ReplyHead:
        """Send `request`, receive up to the end of the head of a final reply, and keep what comes behind it."""
        await self._send(request)
        received = b""
        interim_replies = 0
        while True:
            chunk = await self._receive()
            if not chunk:
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            self._has_begun = True
            received = received + chunk if received else chunk  # usually the whole head comes at once
            if not received.startswith(_HTTP) and not _HTTP.startswith(received):
                raise BadReplyHeadError(f"it begins with {first_words(received)}")
            while (end := received.find(b"\r\n\r\n")) >= 0:
                head = parse_head(received[:end])
                if head.status >= 200:
                    self._begun = memoryview(received)[end + 4 :]
                    return head
                interim_replies += 1
                if head.status == 101 or interim_replies > _MAX_INTERIM_REPLIES:
                    raise BadReplyHeadError("interim replies in place of a final one")
                received = received[end + 4 :]
            if len(received) > MAX_HEAD_BYTES:
                raise BadReplyHeadError("a head without an end")
            self._acknowledge()

    async def read_into(self, data: memoryview) -> int:
        """Fill `data` with the bytes of the body that come next; fewer come where the body ends or is cut off."""
        if self._due_bytes is None or self._decoder is not None:
            return await self._read_untold_into(data)
        begun = self._begun[: len(data)]
        done = len(begun)
        data[:done] = begun
        self._begun = self._begun[done:]
        # More than was told is of another reply.
        wanted = data[done : done + max(0, self._due_bytes)]
        if len(wanted) > TASK_BYTES:
            done += await self._receive_in_thread(wanted)
        elif wanted:
            done += await self._receive_rest(wanted)
        self._due_bytes -= done - len(begun)
        return done

    async def read_all(self, most_bytes: int) -> bytes:
        """Return the whole body, or its first `most_bytes` if it is longer; fewer bytes come where it is cut off."""
        if self._due_bytes is not None and self._decoder is None:
            # More than was told is of another reply.
            data = bytearray(min(most_bytes, len(self._begun) + self._due_bytes))
            done = await self.read_into(memoryview(data))
            return bytes(data[:done])
        whole = bytearray()
        while len(whole) < most_bytes and await self.receive_more():
            whole += self._pieces.pop(0)
        return bytes(whole[:most_bytes])

    def close(self) -> None:
        """Close the socket. A thread that receives, or is about to, ends at once and closes it itself. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        # Set first, for a thread that is just about to receive.
        with contextlib.suppress(OSError):  # the other side was first
            self._sock.shutdown(socket.SHUT_RDWR)
        if not self._is_in_thread:
            self._sock.close()

    async def _read_untold_into(self, data: memoryview) -> int:
        done = 0
        while done < len(data) and await self.receive_more():
            piece = self._pieces.pop(0)
            part = piece[: len(data) - done]
            data[done : done + len(part)] = part
            done += len(part)
            if len(part) < len(piece):
                self._pieces.insert(0, piece[len(part) :])
        return done

    async def receive_more(self) -> bool:
        """Return whether a body of unknown length has another piece; receive one if need be.

        Raises:
            OSError: the connection stalled or drips, or it ended before the last chunk.
            BadReplyHeadError: the body is not chunked as its head says.
        """
        while not self._pieces:
            if self._decoder is not None and self._decoder.is_done:
                return False
            raw: bytes | memoryview = self._begun
            self._begun = memoryview(b"")
            if not raw:
                raw = await self._in_time(self._receive)
            if not raw:
                if self._decoder is not None:
                    raise ConnectionResetError(errno.ECONNRESET, "the connection was cut off between chunks")
                self._is_persistent = False
                return False
            self._pieces = [memoryview(raw)] if self._decoder is None else self._decoder.decode(raw)
            if self._decoder is not None and self._decoder.is_done:
                self._due_bytes = -self._decoder.excess_bytes
        return True

    async def _send(self, request: bytes) -> None:
        while request:
            try:
                request = request[self._stream.send(request) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._sock)

    async def _receive(self) -> bytes:
        if self._tls is None:
            # The reply has not come yet: a call before the wait would receive nothing. TLS may hold some of it.
            await trio.lowlevel.wait_readable(self._sock)
        while True:
            try:
                return self._stream.recv(_FIRST_BYTES)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._sock)

    async def _receive_rest(self, data: memoryview) -> int:
        done = 0
        while done < len(data):
            try:
                count = self._stream.recv_into(data[done:])
            except BlockingIOError:
                self._acknowledge()
                await self._in_time(partial(trio.lowlevel.wait_readable, self._sock))
                continue
            if not count:
                break
            done += count
        return done

    def _stalled(self) -> TimeoutError:
        self.avoid_address()
        return TimeoutError(errno.ETIMEDOUT, "the connection stalled")

    def _acknowledge(self) -> None:
        """Acknowledge at once what came: a server that uses Nagle's algorithm sends the rest only then.

        Without this, a delayed acknowledgement costs 40 ms on each small GET from Ceph RGW.
        """
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    async def _receive_in_thread(self, data: memoryview) -> int:
        """Receive in a thread, or here where the system has no room for one."""
        # Set before the thread starts: from now on only the thread may close the socket.
        self._is_in_thread = True
        try:
            return await in_thread(partial(self._receive_all, data))
        except NoThreadError:
            self._is_in_thread = False
            return await self._receive_rest(data)

    def _receive_all(self, data: memoryview) -> int:
        """Receive in a thread until `data` is full, or the connection ends."""
        sock = self._sock
        try:
            sock.setblocking(True)
            done = _receive_plain(sock, data) if self._tls is None else self._tls.receive_all(data)
            sock.setblocking(False)
            return done
        except BlockingIOError:  # SO_RCVTIMEO
            raise self._stalled() from None
        finally:
            self._is_in_thread = False
            if self._is_closed:
                sock.close()


def _receive_plain(sock: socket.socket, data: memoryview) -> int:
    """Receive in two calls, unless the connection ends before."""
    done = silent_calls = 0
    # Nothing follows the last bytes, so they alone have to wake the thread.
    for waking_bytes, end in ((_WAKING_BYTES, len(data) - _WAKING_BYTES), (1, len(data))):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, waking_bytes)
        while done < end:
            try:
                count = sock.recv_into(data[done:end], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                silent_calls += 1
                if silent_calls == SILENT_CALLS:
                    raise
                continue
            if not count:
                return done
            silent_calls = 0
            done += count
    return done

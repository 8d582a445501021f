"""HTTP/1.1 connections, plain or over TLS, each for one request at a time, and a watch over those that wait."""

import contextlib
import errno
import os
import select
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from fastfuse.store.http1 import MAX_HEAD_BYTES, BadHeadError, ReplyHead, parse_head
from fastfuse.store.openssl import is_reachable
from fastfuse.store.receivers import NoThreadError, Receivers
from fastfuse.store.tls import TlsSocket

__all__ = ["TASK_BYTES", "Connection", "StallWatch", "connect"]

# So much of a body the task receives itself: a hop to a thread and back costs as much as copying it.
TASK_BYTES = 256 << 10
# One call for the head and the beginning of the body, or for all of a small object. Of a body that a thread receives
# the less the better: what comes with the head is copied, and 64 KiB are sixteen pages more to be found.
_FIRST_BYTES = 64 << 10
_FIRST_BYTES_BEFORE_THREAD = 4 << 10
# Who waits for all of a long body is woken with each packet, unless told to sleep until so much is there (SO_RCVLOWAT):
# 3 ms at 90 MB/s. It takes a fifteenth off the CPU time of a host that reads 2 GB/s (over loopback).
_WAKING_BYTES = 256 << 10
_TIMEVAL = struct.Struct("@ll")  # <sys/time.h>
# A call for all of a long body adds up its waits for each packet, so that it ends in time says nothing of the last one;
# but several without a byte, of an equal part of the time each, do.
_SILENT_CALLS = 4


class StallWatch:
    """Gives connections up that have waited for longer than `stall_s`.

    One task for all of them, and only while one waits: a cancel scope for each GET takes a tenth of its CPU time.
    """

    def __init__(self, stall_s: float, most_s: float) -> None:
        """Whatever comes meanwhile, a reply is not waited for any more when that has lasted for `most_s`."""
        self.stall_s = stall_s
        self._most_s = most_s
        # Since when, on trio's clock, the longest first.
        self._waiting: dict[Connection, float] = {}
        self._is_running = False

    def begin(self, connection: "Connection") -> float:
        """`connection` begins to wait; the time is returned."""
        now_s = self._waiting[connection] = trio.current_time()
        if not self._is_running:
            self._is_running = True
            # Nobody's nursery: connections outlive the tasks that use them. It ends with the run if not before.
            trio.lowlevel.spawn_system_task(self._run)
        return now_s

    def go_on(self, connection: "Connection", began_s: float) -> None:
        """Something came of the reply that `connection` has waited for since `began_s`."""
        now_s = trio.current_time()
        if now_s + self.stall_s < began_s + self._most_s and self._waiting.pop(connection, None) is not None:
            self._waiting[connection] = now_s  # behind those that wait for longer; one just given up stays so

    def end(self, connection: "Connection") -> None:
        """`connection` waits no more; idempotent."""
        self._waiting.pop(connection, None)

    async def _run(self) -> None:
        try:
            while self._waiting:
                connection, since_s = next(iter(self._waiting.items()))
                if since_s + self.stall_s > trio.current_time():
                    await trio.sleep_until(since_s + self.stall_s)
                else:
                    self.end(connection)
                    connection.give_up()
        finally:
            self._is_running = False


async def connect(
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None,
    timeout_s: float,
    watch: StallWatch,
    receivers: Receivers,
) -> "Connection":
    """A new connection. `OSError` (an `ssl.SSLError`, too) where there is none within `timeout_s`."""
    try:
        with trio.fail_after(timeout_s):
            sock = await _connected(host, port, watch.stall_s if tls else watch.stall_s / _SILENT_CALLS)
            return Connection(sock if tls is None else await _secured(sock, tls, host), watch, receivers)
    except trio.TooSlowError:
        raise TimeoutError(errno.ETIMEDOUT, "no connection in time") from None


async def _connected(host: str, port: int, silence_s: float) -> socket.socket:
    try:
        stream = await trio.open_tcp_stream(host, port)
    except OSError as error:
        if error.strerror:
            raise
        raise _first_reason(error) from error
    # Python's own class: a call of trio's is a checkpoint, which costs as much as the system call.
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(int(silence_s), int(silence_s % 1 * 1e6)))
    return sock


async def _secured(sock: socket.socket, tls: ssl.SSLContext, host: str) -> TlsSocket:
    try:
        secured = TlsSocket(sock, tls, host)
        await secured.handshake()
    except BaseException:
        sock.close()
        raise
    return secured


class Connection:
    """Waits for as long as `watch` allows for the head of a reply, and again for its body: then for `TimeoutError`.
    In a long body, which a thread receives, that is a silence; one that drips for ever is for the caller to give up.

    It is of no more use after any exception, a cancellation too: close it.
    """

    def __init__(self, sock: socket.socket | TlsSocket, watch: StallWatch, receivers: Receivers) -> None:
        self._sock = sock
        self._watch = watch
        self._receivers = receivers
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        # Of the reply's body what came with its head, and how much is still to come (less than 0: more than was told).
        self._begun = memoryview(b"")
        self._left_bytes: int | None = 0
        self._is_persistent = True
        self._asked_s = 0.0
        self._is_closed = self._is_in_thread = self._is_given_up = False

    @property
    def is_reusable(self) -> bool:
        """Whether the last reply is through, nobody gave it up, and the server takes another request."""
        return self._is_persistent and self._left_bytes == 0 and not self._is_given_up

    def is_fresh(self) -> bool:
        """Whether an idle connection is still open, and nothing came that nobody asked for."""
        return not self._poll.poll(0) and (not isinstance(self._sock, TlsSocket) or self._sock.is_quiet)

    def give_up(self) -> None:
        """Have the task that waits here raise `TimeoutError`."""
        self._is_given_up = True
        trio.lowlevel.notify_closing(self._sock)

    async def ask(self, request: bytes, *, body_bytes: int = 0, has_body: bool = True) -> ReplyHead | None:
        """The head of the reply; None where the connection ended before it began.

        `body_bytes`: how long the body is expected to be. `has_body`: whether the one that the head tells of follows,
        or the request was a HEAD.

        Raises:
            BadHeadError: what came is no HTTP/1.1.
            OSError: the connection broke in the head, or it stalled.
        """
        self._left_bytes = None  # until it is known
        first_bytes = _FIRST_BYTES if self._is_short(body_bytes) else _FIRST_BYTES_BEFORE_THREAD
        received = b""
        self._asked_s = self._watch.begin(self)
        try:
            await self._send(request)
            end = -1
            while end < 0:
                chunk = await self._receive(first_bytes)
                if not chunk:
                    raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
                received = received + chunk if received else chunk  # mostly it is all of it
                end = received.find(b"\r\n\r\n")
                if end < 0 and len(received) > MAX_HEAD_BYTES:
                    raise BadHeadError("a head without an end")
        except (BrokenPipeError, ConnectionResetError):
            if received:
                raise
            return None
        finally:
            self._watch.end(self)
        head = parse_head(received[:end])
        self._begun = memoryview(received)[end + 4 :]
        self._is_persistent = head.is_persistent
        # An interim reply (RFC 9110, 15.2) ends nothing: the connection is not used again.
        if head.status >= 200 and (head.body_bytes is not None or not has_body):
            told_bytes = head.body_bytes if has_body else None
            self._left_bytes = (told_bytes or 0) - len(self._begun)
        return head

    async def read_into(self, data: memoryview) -> int:
        """Fill `data` with the body, which must be told to have as many bytes or more; fewer come if it is cut off."""
        begun = self._begun[: len(data)]
        done = len(begun)
        data[:done] = begun
        self._begun = memoryview(b"")
        if not self._is_short(len(data) - done):
            done += await self._receive_in_thread(data[done:])
        elif done < len(data):
            self._watch.begin(self)
            try:
                done += await self._receive_rest(data[done:])
            finally:
                self._watch.end(self)
        if self._left_bytes is not None:
            self._left_bytes -= done - len(begun)
        return done

    async def read_untold(self, most_bytes: int) -> bytes:
        """As much of a body as is needed to have all of one that ends with a last chunk, or with the connection.

        The lengths of chunks stay in it. `OSError` where the connection breaks.
        """
        received = bytes(self._begun)
        self._watch.begin(self)
        try:
            while len(received) < most_bytes and not received.endswith(b"0\r\n\r\n"):
                chunk = await self._receive()
                if not chunk:
                    break
                received += chunk
        finally:
            self._watch.end(self)
        return received[:most_bytes]

    def close(self) -> None:
        """Idempotent. A thread that receives, or is about to, ends at once, and closes the socket itself."""
        if self._is_closed:
            return
        self._is_closed = True
        # First of all, for a thread that is just about to receive.
        with contextlib.suppress(OSError):  # the other side was first
            self._sock.shutdown(socket.SHUT_RDWR)
        if not self._is_in_thread:
            self._sock.close()

    async def _send(self, request: bytes) -> None:
        while request:
            try:
                request = request[self._sock.send(request) :]
            except BlockingIOError:
                await self._wait(trio.lowlevel.wait_writable)

    async def _receive(self, most_bytes: int = _FIRST_BYTES) -> bytes:
        while True:
            # An answer takes its time: the other way round would be a call for nothing.
            if not isinstance(self._sock, TlsSocket) or self._sock.is_quiet:
                await self._wait(trio.lowlevel.wait_readable)
            try:
                return self._sock.recv(most_bytes)
            except BlockingIOError:
                pass

    async def _wait(self, wait: Callable[[socket.socket | TlsSocket], Awaitable[None]]) -> None:
        if not self._is_given_up:
            try:
                return await wait(self._sock)
            except trio.ClosedResourceError:
                pass
        raise _stalled()

    async def _receive_rest(self, data: memoryview) -> int:
        done = 0
        while done < len(data):
            try:
                count = self._sock.recv_into(data[done:])
            except BlockingIOError:
                await self._wait(trio.lowlevel.wait_readable)
                self._watch.go_on(self, self._asked_s)
                continue
            if not count:
                break
            done += count
        return done

    def _is_short(self, size_bytes: int) -> bool:
        """Whether the task receives so much itself."""
        return size_bytes <= TASK_BYTES or (isinstance(self._sock, TlsSocket) and not is_reachable())

    async def _receive_in_thread(self, data: memoryview) -> int:
        # Already now: until it ends, a thread may be about to receive, so nobody else closes the socket.
        self._is_in_thread = True
        try:
            return await self._receivers.run(partial(self._receive_all, data))
        except NoThreadError:
            self._is_in_thread = False
            raise

    def _receive_all(self, data: memoryview) -> int:
        """For a thread."""
        sock = self._sock
        try:
            return sock.receive_all(data) if isinstance(sock, TlsSocket) else _receive_plain(sock, data)
        except BlockingIOError:  # SO_RCVTIMEO
            raise _stalled() from None
        finally:
            self._is_in_thread = False
            if self._is_closed:
                sock.close()


def _receive_plain(sock: socket.socket, data: memoryview) -> int:
    """In two calls, if the connection lives so long."""
    done = silent_calls = 0
    sock.setblocking(True)
    # The last bytes have none behind them that would wake anybody.
    for waking_bytes, end in ((_WAKING_BYTES, len(data) - _WAKING_BYTES), (1, len(data))):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, waking_bytes)
        while done < end:
            try:
                count = sock.recv_into(data[done:end], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                silent_calls += 1
                if silent_calls == _SILENT_CALLS:
                    raise
                continue
            if not count:
                break
            silent_calls = 0
            done += count
    sock.setblocking(False)
    return done


def _first_reason(error: OSError) -> OSError:
    """Of trio's error, which says only that all addresses of the host failed; mostly that is one."""
    cause = error.__cause__
    first = cause.exceptions[0] if isinstance(cause, ExceptionGroup) else cause
    number = first.errno if isinstance(first, OSError) else None
    return OSError(number, os.strerror(number)) if number else OSError(str(error))


def _stalled() -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, "the connection stalled")

"""HTTP/1.1 connections, plain or over TLS, each for one request at a time.

A task sends the request and awaits its head. It receives short bodies, too; of a long body it leaves all but the
beginning to a thread, which receives, and decrypts (`tls`), in one or two calls without the GIL.
"""

import contextlib
import errno
import os
import select
import socket
import struct
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from fastfuse.s3.endpoints import Endpoint
from fastfuse.s3.http1 import MAX_HEAD_BYTES, BadReplyHeadError, BodyDecoder, ReplyHead, first_words, parse_head
from fastfuse.s3.proxies import Proxy, ProxyRefusalError
from fastfuse.s3.receivers import NoThreadError, Receivers
from fastfuse.s3.stalls import StallWatch
from fastfuse.s3.tls import TlsConnection, TlsContext

__all__ = ["TASK_BYTES", "Connection", "connect"]

# The task itself receives a body of at most this size: a hop to a thread and back costs as much as copying it.
TASK_BYTES = 256 << 10
# One call for the head and the beginning of the body, or for all of a small object. What comes with the head of a
# long body is copied, so less is taken there.
_FIRST_BYTES = 64 << 10
_FIRST_BYTES_BEFORE_THREAD = 4 << 10
# A thread that waits for all of a long body sleeps until so much has come (SO_RCVLOWAT) instead of waking with each
# packet: 3 ms at 90 MB/s. See docs/MEASUREMENTS.md, "low-water mark".
_WAKING_BYTES = 256 << 10
_TIMEVAL = struct.Struct("@ll")  # <sys/time.h>
# MSG_WAITALL adds up its waits for each packet, so one call that times out does not prove a stall. Several calls
# without a byte, each with an equal part of the time, do.
_SILENT_CALLS = 4
# A server sends one or two (100, 103) before the reply itself.
_MAX_INTERIM_REPLIES = 8
_HTTP = b"HTTP/1."


async def connect(
    endpoint: Endpoint, *, tls: TlsContext | None, timeout_s: float, watch: StallWatch, receivers: Receivers
) -> "Connection":
    """Connect to `endpoint`, through its proxy if it has one; `tls` is for the endpoint or for the proxy.

    Raises:
        OSError: there is no connection within `timeout_s` (`tls.TlsError` and `ProxyRefusalError`, too).
    """
    proxy = endpoint.proxy
    host, port = (endpoint.host, endpoint.port) if proxy is None else (proxy.host, proxy.port)
    sock = None
    try:
        with trio.fail_after(timeout_s):
            sock = await _connected(host, port, watch.stall_s if tls else watch.stall_s / _SILENT_CALLS)
            if tls is None:
                return Connection(sock, None, receivers)
            if proxy is not None and endpoint.scheme == "https":
                await _open_tunnel(Connection(sock, None, receivers), endpoint, proxy, watch)
                host = endpoint.host
            return Connection(sock, await _secured(sock, tls, host), receivers)
    except BaseException as error:
        if sock is not None:
            sock.close()
        if isinstance(error, trio.TooSlowError):
            raise TimeoutError(errno.ETIMEDOUT, "no connection in time") from None
        raise


async def _connected(host: str, port: int, silence_s: float) -> socket.socket:
    try:
        stream = await trio.open_tcp_stream(host, port)
    except UnicodeError as error:
        raise OSError(errno.EINVAL, f"{host!r} is not a host name") from error
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


async def _open_tunnel(connection: "Connection", endpoint: Endpoint, proxy: Proxy, watch: StallWatch) -> None:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    authorization = f"proxy-authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
    target = f"{host}:{endpoint.port}"
    request = f"CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n{authorization}\r\n"
    try:
        head = await connection.ask(request.encode(), watch, has_body=False)
    except BadReplyHeadError as error:
        raise ProxyRefusalError(errno.EPROTO, f"the proxy {proxy.host} sent what is not HTTP/1.1: {error}") from error
    if head is None:
        raise ProxyRefusalError(errno.ECONNRESET, f"the proxy {proxy.host} closed the connection")
    if not 200 <= head.status < 300:
        raise ProxyRefusalError(errno.EACCES, f"the proxy {proxy.host} answered {head.status}")


async def _secured(sock: socket.socket, context: TlsContext, host: str) -> TlsConnection:
    tls = TlsConnection(context, sock.fileno(), host)
    while True:
        match tls.handshake():
            case "read":
                await trio.lowlevel.wait_readable(sock)
            case "write":
                await trio.lowlevel.wait_writable(sock)
            case _:
                return tls


class Connection:
    """Carries one request at a time, and ends a reply that stalls with `TimeoutError`.

    Its watch ends the wait for a head and for a short body. A thread that receives a long body ends it after a
    silence; the caller's deadline ends a body that drips for ever.

    After any exception, a cancellation too, the connection cannot be used again: close it.
    """

    def __init__(self, sock: socket.socket, tls: TlsConnection | None, receivers: Receivers) -> None:
        self._sock = sock
        self._tls = tls
        self._stream = sock if tls is None else tls
        self._receivers = receivers
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._watch: StallWatch | None = None
        self._asked_s = 0.0
        # The bytes of the reply's body that came with its head, as they came.
        self._begun = memoryview(b"")
        # The bytes of the body that are still to come; below 0 if more came than the head says, None while unknown.
        self._left_bytes: int | None = 0
        # The decoder of the chunks of a body of unknown length, and its pieces that nobody took yet.
        self._decoder: BodyDecoder | None = None
        self._pieces: list[memoryview] = []
        self._is_persistent = True
        self._is_closed = self._is_in_thread = self._is_stalled = False
        # Whether any byte of the reply has come.
        self._has_begun = False

    @property
    def is_reusable(self) -> bool:
        """True if the last reply was received and taken to its end, and the server takes another request."""
        return self._is_persistent and self._left_bytes == 0 and not self._pieces and not self._is_stalled

    def is_fresh(self) -> bool:
        """Return whether an idle connection is still open, and nothing came that nobody asked for."""
        if self._tls is not None and not self._tls.is_quiet:
            return False
        if not self._poll.poll(0):
            return True
        if self._tls is None:
            return False
        # A server may send session tickets and new keys at any time.
        try:
            self._tls.recv(1)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def stall(self) -> None:
        """Make the task that waits here raise `TimeoutError`."""
        self._is_stalled = True
        trio.lowlevel.notify_closing(self._sock)

    async def ask(
        self, request: bytes, watch: StallWatch, *, expected_bytes: int = 0, has_body: bool = True
    ) -> ReplyHead | None:
        """Send `request` and return the head of the reply, or None where the connection ended before it began.

        The connection is closed unless a head is returned. `expected_bytes` is the expected length of the body;
        `has_body` is false for a HEAD, whose reply describes a body that does not follow.

        Raises:
            BadReplyHeadError: what came is not HTTP/1.1.
            OSError: the connection broke in the head, or it stalled.
        """
        self._left_bytes, self._decoder, self._watch = None, None, watch
        self._pieces.clear()
        self._has_begun = False
        self._asked_s = watch.begin(self)
        try:
            await self._send(request)
            head = await self._receive_head(
                _FIRST_BYTES if expected_bytes <= TASK_BYTES else _FIRST_BYTES_BEFORE_THREAD
            )
        except BaseException as error:
            self.close()
            if self._has_begun or not isinstance(error, BrokenPipeError | ConnectionResetError):
                raise
            return None
        finally:
            watch.end(self)
        self._is_persistent = head.is_persistent
        if not has_body:
            self._left_bytes = -len(self._begun)
        elif head.body_bytes is not None:
            self._left_bytes = head.body_bytes - len(self._begun)
        elif head.is_chunked:
            self._decoder = BodyDecoder()
        return head

    async def _receive_head(self, first_bytes: int) -> ReplyHead:
        """Receive up to the end of the head of a final reply, and keep what comes behind it."""
        received = b""
        interim_replies = 0
        while True:
            chunk = await self._receive(first_bytes)
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
        if self._left_bytes is None or self._decoder is not None:
            return await self._read_untold_into(data)
        begun = self._begun[: len(data)]
        done = len(begun)
        data[:done] = begun
        self._begun = self._begun[done:]
        # More than was told is of another reply.
        wanted = data[: max(done, min(len(data), done + self._left_bytes))]
        if len(wanted) - done > TASK_BYTES:
            done += await self._receive_in_thread(wanted[done:])
        elif done < len(wanted):
            done += await self._receive_rest(wanted[done:])
        self._left_bytes -= done - len(begun)
        return done

    async def read_all(self, most_bytes: int) -> bytes:
        """Return the whole body, or its first `most_bytes` if it is longer; fewer bytes come where it is cut off."""
        if self._left_bytes is not None and self._decoder is None:
            # More than was told is of another reply.
            data = bytearray(min(most_bytes, len(self._begun) + self._left_bytes))
            done = await self.read_into(memoryview(data))
            return bytes(data[:done])
        whole = bytearray()
        while len(whole) < most_bytes and await self._has_more():
            whole += self._pieces.pop(0)
        return bytes(whole[:most_bytes])

    async def is_at_end(self) -> bool:
        """Return whether a body of unknown length ends here; receive up to its end, or one piece more."""
        return not await self._has_more()

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
        while done < len(data) and await self._has_more():
            piece = self._pieces.pop(0)
            part = piece[: len(data) - done]
            data[done : done + len(part)] = part
            done += len(part)
            if len(part) < len(piece):
                self._pieces.insert(0, piece[len(part) :])
        return done

    async def _has_more(self) -> bool:
        """Return whether a body of unknown length has another piece; receive one if need be.

        Raises:
            OSError: the connection stalled, or ended before the last chunk.
            BadReplyHeadError: the body is not chunked as its head says.
        """
        while not self._pieces:
            if self._decoder is not None and self._decoder.is_done:
                return False
            raw: bytes | memoryview = self._begun
            self._begun = memoryview(b"")
            if not raw:
                raw = await self._receive_watched()
            if not raw:
                if self._decoder is not None:
                    raise ConnectionResetError(errno.ECONNRESET, "the connection was cut off between chunks")
                self._is_persistent = False
                return False
            self._pieces = [memoryview(raw)] if self._decoder is None else self._decoder.decode(raw)
            if self._decoder is not None and self._decoder.is_done:
                self._left_bytes = -self._decoder.excess_bytes
        return True

    async def _send(self, request: bytes) -> None:
        while request:
            try:
                request = request[self._stream.send(request) :]
            except BlockingIOError:
                await self._wait(trio.lowlevel.wait_writable)

    async def _receive(self, most_bytes: int) -> bytes:
        while True:
            # The reply has not come yet: a call before the wait would receive nothing.
            if self._tls is None or self._tls.is_quiet:
                await self._wait(trio.lowlevel.wait_readable)
            try:
                return self._stream.recv(most_bytes)
            except BlockingIOError:
                # The end of the TLS record has not come yet.
                if self._tls is not None and not self._tls.is_quiet:
                    await self._wait(trio.lowlevel.wait_readable)

    async def _wait(self, wait: Callable[[socket.socket], Awaitable[None]]) -> None:
        if not self._is_stalled:
            try:
                return await wait(self._sock)
            except trio.ClosedResourceError:
                pass
        raise _stalled()

    async def _receive_rest(self, data: memoryview) -> int:
        watch = self._watch
        assert watch is not None
        watch.begin(self)
        done = 0
        try:
            while done < len(data):
                try:
                    count = self._stream.recv_into(data[done:])
                except BlockingIOError:
                    self._acknowledge()
                    await self._wait(trio.lowlevel.wait_readable)
                    watch.go_on(self, self._asked_s)
                    continue
                if not count:
                    break
                done += count
        finally:
            watch.end(self)
        return done

    async def _receive_watched(self) -> bytes:
        assert self._watch is not None
        self._watch.begin(self)
        try:
            return await self._receive(_FIRST_BYTES)
        finally:
            self._watch.end(self)

    def _acknowledge(self) -> None:
        """Acknowledge at once what came: a server that uses Nagle's algorithm sends the rest only then.

        Without this, a delayed acknowledgement costs 40 ms on each small GET from Ceph RGW.
        """
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    async def _receive_in_thread(self, data: memoryview) -> int:
        # Set before the thread starts: from now on only the thread may close the socket.
        self._is_in_thread = True
        try:
            return await self._receivers.run(partial(self._receive_all, data))
        except NoThreadError:
            self._is_in_thread = False
            raise

    def _receive_all(self, data: memoryview) -> int:
        """Receive in a thread until `data` is full, or the connection ends."""
        sock = self._sock
        try:
            sock.setblocking(True)
            self._acknowledge()
            done = _receive_plain(sock, data) if self._tls is None else self._tls.receive_all(data)
            sock.setblocking(False)
            return done
        except BlockingIOError:  # SO_RCVTIMEO
            raise _stalled() from None
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
                if silent_calls == _SILENT_CALLS:
                    raise
                continue
            if not count:
                return done
            silent_calls = 0
            done += count
    return done


def _first_reason(error: OSError) -> OSError:
    """Return the first cause of trio's error, which says only that all addresses of the host failed."""
    cause = error.__cause__
    first = cause.exceptions[0] if isinstance(cause, ExceptionGroup) else cause
    number = first.errno if isinstance(first, OSError) else None
    return OSError(number, os.strerror(number)) if number else OSError(str(error))


def _stalled() -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, "the connection stalled")

"""One HTTP/1.1 connection over a plain socket, for one GET at a time."""

import contextlib
import errno
import os
import socket
import struct

import trio

from fastfuse.store.http1 import MAX_HEAD_BYTES, BadHeadError, ReplyHead, parse_head

__all__ = ["Connection", "connect"]

# So much of a body the task receives itself: a hop to a thread and back costs as much as copying it.
_THREAD_BYTES = 256 << 10
# One call for the head and the beginning of the body, or for all of a small object.
_FIRST_BYTES = 64 << 10
_TIMEVAL = struct.Struct("@ll")  # <sys/time.h>


async def connect(
    host: str, port: int, *, timeout_s: float, stall_s: float, threads: trio.CapacityLimiter
) -> "Connection":
    """A new connection. `OSError` where there is none within `timeout_s`."""
    try:
        with trio.fail_after(timeout_s):
            stream = await trio.open_tcp_stream(host, port)
    except trio.TooSlowError:
        raise TimeoutError(errno.ETIMEDOUT, "no connection in time") from None
    except OSError as error:
        if error.strerror:
            raise
        raise _first_reason(error) from error
    # Python's own class: a call of trio's is a checkpoint, which costs as much as the system call.
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(int(stall_s), int(stall_s % 1 * 1e6)))
    return Connection(sock, stall_s, threads)


class Connection:
    """Waits for at most `stall_s` for the first byte of a reply, and for more of it: then it raises `TimeoutError`.

    It is of no more use after any exception, a cancellation too: close it.
    """

    def __init__(self, sock: socket.socket, stall_s: float, threads: trio.CapacityLimiter) -> None:
        self._sock = sock
        self._stall_s = stall_s
        self._threads = threads
        # Of the reply's body what came with its head, and how much is still to come.
        self._begun = memoryview(b"")
        self._left_bytes: int | None = 0
        self._is_persistent = True
        self._is_closed = self._is_in_thread = False

    @property
    def is_reusable(self) -> bool:
        """Whether the last reply is through, and the server takes another request."""
        return self._is_persistent and self._left_bytes == 0

    def is_fresh(self) -> bool:
        """Whether an idle connection is still open, and nothing came that nobody asked for."""
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    async def ask(self, request: bytes) -> ReplyHead | None:
        """The head of the reply; None where the connection ended before it began.

        Raises:
            BadHeadError: what came is no HTTP/1.1.
            OSError: the connection broke in the head, or it stalled.
        """
        self._left_bytes = None  # until it is known
        received = bytearray()
        try:
            with trio.fail_after(self._stall_s):
                await self._send(request)
                end = -1
                while end < 0:
                    chunk = await self._receive()
                    if not chunk:
                        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
                    received += chunk
                    end = received.find(b"\r\n\r\n")
                    if end < 0 and len(received) > MAX_HEAD_BYTES:
                        raise BadHeadError("a head without an end")
        except (BrokenPipeError, ConnectionResetError):
            if received:
                raise
            return None
        except trio.TooSlowError:
            raise _stalled() from None
        head = parse_head(bytes(received[:end]))
        self._begun = memoryview(received)[end + 4 :]
        self._is_persistent = head.is_persistent
        if head.body_bytes is not None:
            self._left_bytes = head.body_bytes - len(self._begun)
        return head

    async def read_into(self, data: memoryview) -> int:
        """Fill `data` with the body, which must be told to have as many bytes; fewer come where it is cut off."""
        begun = self._begun[: len(data)]
        done = len(begun)
        data[:done] = begun
        self._begun = memoryview(b"")
        if len(data) - done > _THREAD_BYTES:
            done += await self._receive_in_thread(data[done:])
        elif done < len(data):
            with trio.move_on_after(self._stall_s) as scope:
                done += await self._receive_rest(data[done:])
            if scope.cancelled_caught:
                raise _stalled()
        if done == len(data) and self._left_bytes is not None:
            self._left_bytes = min(0, self._left_bytes)  # more than was told is no end to build upon
        return done

    def close(self) -> None:
        """Idempotent. A thread that still receives ends at once, and closes the socket itself."""
        if self._is_closed:
            return
        self._is_closed = True
        # First of all, for a thread that is just about to receive.
        with contextlib.suppress(OSError):  # the other side was first
            self._sock.shutdown(socket.SHUT_RDWR)
        if not self._is_in_thread:
            self._sock.close()

    async def _send(self, request: bytes) -> None:
        sent = 0
        while True:
            with contextlib.suppress(BlockingIOError):
                sent += self._sock.send(request[sent:])
            if sent == len(request):
                return
            await trio.lowlevel.wait_writable(self._sock)

    async def _receive(self) -> bytes:
        while True:
            # An answer takes its time: the other way round would be a call for nothing.
            await trio.lowlevel.wait_readable(self._sock)
            try:
                return self._sock.recv(_FIRST_BYTES)
            except BlockingIOError:
                pass

    async def _receive_rest(self, data: memoryview) -> int:
        done = 0
        while done < len(data):
            try:
                count = self._sock.recv_into(data[done:])
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._sock)
                continue
            if not count:
                break
            done += count
        return done

    async def _receive_in_thread(self, data: memoryview) -> int:
        return await trio.to_thread.run_sync(self._receive_all, data, abandon_on_cancel=True, limiter=self._threads)

    def _receive_all(self, data: memoryview) -> int:
        """In one call, if the connection lives so long."""
        sock, done = self._sock, 0
        self._is_in_thread = True
        try:
            sock.setblocking(True)
            while done < len(data):
                count = sock.recv_into(data[done:], 0, socket.MSG_WAITALL)
                if not count:
                    break
                done += count
            sock.setblocking(False)
        except BlockingIOError:  # SO_RCVTIMEO
            raise _stalled() from None
        finally:
            self._is_in_thread = False
            if self._is_closed:
                sock.close()
        return done


def _first_reason(error: OSError) -> OSError:
    """Of trio's error, which says only that all addresses of the host failed; mostly that is one."""
    cause = error.__cause__
    first = cause.exceptions[0] if isinstance(cause, ExceptionGroup) else cause
    number = first.errno if isinstance(first, OSError) else None
    return OSError(number, os.strerror(number)) if number else OSError(str(error))


def _stalled() -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, "the connection stalled")

"""TLS on a socket, as `connection` uses one: a task decrypts what comes, or a thread all of a long body (`openssl`).

OpenSSL is given what one call of the system brought, several records, where on a socket of its own it makes two calls
for each. One GET of 39 KB at 32 at once costs 61 µs of CPU so, 69 with `ssl.SSLSocket`, and 470 through obstore, whose
threads wake one another.
"""

import ssl
from contextlib import suppress
from socket import socket

import trio

from fastfuse.store.openssl import Records

__all__ = ["TlsSocket"]

# Four records of the largest size, and one with what TLS adds to it (RFC 8446, 5.2).
_TAKEN_BYTES = 64 << 10
_RECORD_BYTES = (16 << 10) + 256 + 5


class TlsSocket:
    """Of a socket's methods those that a `Connection` needs. To be used after `handshake`."""

    def __init__(self, sock: socket, context: ssl.SSLContext, host: str) -> None:
        """`sock` is connected to `host` and does not block."""
        self._sock = sock
        self._coming, self._going = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._coming, self._going, server_hostname=host)
        # Records on their way.
        self._unsent = b""
        self._records: Records | None = None
        # Whether the other side has said, or shown, that nothing comes any more.
        self._is_over = False

    async def handshake(self) -> None:
        """Agree on keys, and see the server's certificate. `ssl.SSLError` (an `OSError`) where that fails."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                is_done = False
            else:
                is_done = True
            self._unsent = self._going.read()
            while self._unsent:
                try:
                    self._flush()
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(self._sock)
            if is_done:
                return
            await trio.lowlevel.wait_readable(self._sock)
            with suppress(BlockingIOError):
                self._take_in()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has come but what was received, not the end either: the rest would be the next reply."""
        return not (self._is_over or self._coming.pending or self._tls.pending())

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, data: bytes) -> int:
        """All of `data`. After `BlockingIOError` it is to be called again with the same."""
        if not self._unsent:
            self._tls.write(data)
            self._unsent = self._going.read()
        self._flush()
        return len(data)

    def recv(self, size_bytes: int) -> bytes:
        """What has come, up to so much; empty at the end. `BlockingIOError` where that is less than a record.

        What is left, as `is_quiet` tells, is to be received before more is waited for.
        """
        if self.is_quiet:
            self._take_in(max(size_bytes, _RECORD_BYTES))
        piece = self._read(size_bytes)
        if piece is None:
            raise BlockingIOError
        pieces = []
        while piece:
            pieces.append(piece)
            size_bytes -= len(piece)
            piece = self._read(size_bytes) if size_bytes else None
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def recv_into(self, data: memoryview) -> int:
        """As `recv`, of one record at most, and from the socket only where nothing is left of what has come."""
        count = self._read_into(data)
        if count is None:
            self._take_in()
            count = self._read_into(data)
        if count is None:
            raise BlockingIOError
        return count

    def receive_all(self, data: memoryview) -> int:
        """Fill `data`; fewer bytes come where the body is cut off. For a thread, and only if `openssl.is_reachable`.

        Raises:
            OSError: the connection broke; `BlockingIOError` where nothing came within the socket's timeout.
        """
        done = 0
        # What was taken with the head. Of the last record a part may be left, which OpenSSL keeps then.
        while done < len(data) and self._coming.pending:
            count = self._read_into(data[done:])
            if count is None:
                break
            if not count:
                return done
            done += count
        if done < len(data):
            if self._records is None:
                self._records = Records(self._tls, self._sock.fileno())
            self._sock.setblocking(True)
            done += self._records.receive_into(data[done:])
            self._sock.setblocking(False)
        return done

    def shutdown(self, how: int) -> None:
        """Of the connection. TLS is told nothing: a body that was cut off is known by its length."""
        self._sock.shutdown(how)

    def close(self) -> None:
        self._sock.close()

    def _flush(self) -> None:
        while self._unsent:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]

    def _take_in(self, most_bytes: int = _TAKEN_BYTES) -> None:
        taken = self._sock.recv(most_bytes)
        if taken:
            self._coming.write(taken)
        else:
            self._coming.write_eof()

    def _read(self, size_bytes: int) -> bytes | None:
        """Of one record at most; empty at the end, None where there is no whole one."""
        piece = b""
        try:
            piece = self._tls.read(size_bytes)
        except ssl.SSLWantReadError:
            return None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            pass
        self._is_over = not piece
        return piece

    def _read_into(self, data: memoryview) -> int | None:
        count = 0
        try:
            count = self._tls.read(len(data), data)  # type: ignore[assignment]  # with a buffer it is a number
        except ssl.SSLWantReadError:
            return None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            pass
        self._is_over = not count
        return count

"""Reads HTTP/1.1 requests from a socket and writes replies to it. Knows nothing of S3.

It supports what S3 clients send: no chunked replies, and no request bodies (the connection is closed instead) but, on
demand, those of PUTs.
"""

import contextlib
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.client import responses
from urllib.parse import unquote, unquote_to_bytes

from bench.s3server.buckets import Content, FileSpan, MemoryContent

# S3 refuses heads above 8 KiB of headers; signed requests with long session tokens come to about 4 KiB.
_HEAD_BYTES_MAX = 32 * 1024
_RECEIVE_BYTES = 16 * 1024
# A longer body closes the connection.
_BODY_BYTES_MAX = 16 * 1024 * 1024
# A paced body is sent in slices of this time: short beside a part, long enough that 64 connections cost little CPU.
_PACE_S = 0.01
# TLS records hold 16 KiB; this many at once keep the interpreter's share of the cost small.
_TLS_CHUNK_BYTES = 256 * 1024
# Closing with this linger option sends a reset instead of a FIN (socket(7)).
_LINGER_RESET = struct.pack("ii", 1, 0)

_NOTHING = MemoryContent(b"")


class BadRequestError(Exception):
    """The bytes on the connection are not a request that this server can answer."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `path` is percent-encoded as it was sent, without the query; header names are in lower case."""

    method: str
    path: bytes
    query: Mapping[str, bytes]
    headers: Mapping[str, str]
    keep_alive: bool
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A status, headers (without length and connection) and the range ``[start, end)`` of a content."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    content: Content = _NOTHING
    start: int = 0
    end: int = 0
    # The difference of the Content-Length that is sent to the right one.
    extra_length_bytes: int = 0
    # The reply to a HEAD has the length and no body.
    is_head: bool = False

    @property
    def body_bytes(self) -> int:
        return 0 if self.is_head else self.end - self.start


def _parse_query(query: bytes) -> dict[str, bytes]:
    pairs = (pair.partition(b"=") for pair in query.split(b"&") if pair)
    return {unquote(name.decode("latin-1")): unquote_to_bytes(value.replace(b"+", b" ")) for name, _, value in pairs}


def _parse_head(head: bytes) -> Request:
    first, *lines = head.split(b"\r\n")
    parts = first.split(b" ")
    if len(parts) != 3 or not parts[1].startswith(b"/") or parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise BadRequestError("not an HTTP/1.1 request line")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise BadRequestError("a header has no colon")
        headers[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
    path, _, query = parts[1].partition(b"?")
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    keep_alive = parts[2] == b"HTTP/1.1" and headers.get("connection", "").lower() != "close" and not has_body
    return Request(parts[0].decode("latin-1"), path, _parse_query(query), headers, keep_alive)


class RequestReader:
    """Reads the requests of one connection, one after the other."""

    def __init__(self, sock: socket.socket, *, takes_bodies: bool = False) -> None:
        """Read the body of a PUT, too, if the reader `takes_bodies`."""
        self._sock = sock
        self._takes_bodies = takes_bodies
        self._buffer = bytearray()

    def read(self) -> Request | None:
        """Return the next request; None when the client has closed. `BadRequestError` for anything else."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > _HEAD_BYTES_MAX:
                raise BadRequestError("the head of the request is too long")
            received = self._sock.recv(_RECEIVE_BYTES)
            if not received:
                return None
            self._buffer += received
        head = bytes(self._buffer[:end])
        del self._buffer[: end + 4]
        request = _parse_head(head)
        length = request.headers.get("content-length", "0")
        if not self._takes_bodies or request.method != "PUT" or int(length) > _BODY_BYTES_MAX:
            return request
        return self._with_body(request, int(length))

    def _with_body(self, request: Request, length_bytes: int) -> Request:
        if request.headers.get("expect", "").lower() == "100-continue":
            self._sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        while len(self._buffer) < length_bytes:
            received = self._sock.recv(_RECEIVE_BYTES)
            if not received:
                raise BadRequestError("the body of the request ends early")
            self._buffer += received
        body = bytes(self._buffer[:length_bytes])
        del self._buffer[:length_bytes]
        return replace(request, body=body, keep_alive=request.headers.get("connection", "").lower() != "close")


def close_by_reset(sock: socket.socket) -> None:
    """Make the socket send a reset when it is closed."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)


def _reply_head(reply: Reply, keep_alive: bool) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} {responses.get(reply.status, '')}"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    lines.append(f"Content-Length: {max(0, reply.end - reply.start + reply.extra_length_bytes)}")
    lines.append("Connection: keep-alive\r\n\r\n" if keep_alive else "Connection: close\r\n\r\n")
    return "\r\n".join(lines).encode("latin-1", errors="replace")


class _Pacer:
    """Keeps a body at a rate, which may change: a slice is sent when the time for all its bytes has passed."""

    def __init__(self, rate_bytes_per_s: Callable[[], float], closing: threading.Event) -> None:
        self._rate_bytes_per_s = rate_bytes_per_s
        self._closing = closing
        self._due_s = time.monotonic()

    def wait_slice(self, wanted_bytes: int) -> int:
        """Wait, and return how many of the wanted bytes may be sent now."""
        bytes_per_s = self._rate_bytes_per_s()
        if not bytes_per_s:
            return wanted_bytes
        slice_bytes = min(wanted_bytes, int(bytes_per_s * _PACE_S) + 1)
        self._due_s += slice_bytes / bytes_per_s
        self._closing.wait(max(0.0, self._due_s - time.monotonic()))
        return slice_bytes


class ResponseWriter:
    """Writes one reply; `sent_bytes` is how much of its body the kernel has taken."""

    def __init__(
        self, sock: socket.socket, reply: Reply, *, rate_bytes_per_s: Callable[[], float], closing: threading.Event
    ) -> None:
        """Ask for the rate before each piece of the body; 0 is no limit."""
        self._sock = sock
        self._reply = reply
        self._rate_bytes_per_s = rate_bytes_per_s
        self._closing = closing
        self.sent_bytes = 0

    def send_head(self, *, keep_alive: bool) -> None:
        head = _reply_head(self._reply, keep_alive)
        if isinstance(self._sock, ssl.SSLSocket) or self._rate_bytes_per_s() or not self._reply.body_bytes:
            self._sock.sendall(head)
        else:
            # The head leaves with the first bytes of the body, in one segment (tcp(7)).
            self._sock.sendall(head, socket.MSG_MORE)

    def send_body(self, start: int, end: int) -> None:
        """Send the bytes ``[start, end)`` of the body; `OSError` when the client has gone."""
        pacer = _Pacer(self._rate_bytes_per_s, self._closing)
        origin = self._reply.start
        with contextlib.closing(self._reply.content.spans(origin + start, origin + end)) as spans:
            for span in spans:
                if isinstance(span, FileSpan):
                    self._send_file(span, pacer)
                else:
                    self._send_memory(span, pacer)

    def _send_memory(self, data: memoryview, pacer: _Pacer) -> None:
        while data:
            allowed = pacer.wait_slice(len(data))
            while allowed:
                sent = self._sock.send(data[:allowed])
                data, allowed = data[sent:], allowed - sent
                self.sent_bytes += sent

    def _send_file(self, span: FileSpan, pacer: _Pacer) -> None:
        offset, left = span.offset_bytes, span.length_bytes
        send = self._copy_chunk if isinstance(self._sock, ssl.SSLSocket) else self._sendfile
        while left:
            allowed = pacer.wait_slice(left)
            while allowed:
                sent = send(span.fd, offset, allowed)
                offset, left, allowed = offset + sent, left - sent, allowed - sent
                self.sent_bytes += sent

    def _sendfile(self, fd: int, offset: int, length: int) -> int:
        sent = os.sendfile(self._sock.fileno(), fd, offset, length)
        if not sent:
            raise ConnectionAbortedError("the file is shorter than it was when the reply began")
        return sent

    def _copy_chunk(self, fd: int, offset: int, length: int) -> int:
        data = os.pread(fd, min(length, _TLS_CHUNK_BYTES), offset)
        if not data:
            raise ConnectionAbortedError("the file is shorter than it was when the reply began")
        self._sock.sendall(data)
        return len(data)

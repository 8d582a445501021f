"""An S3 server that speaks in raw bytes, over TLS too, and as badly as a test wants.

A script says what the server sends, does and leaves out when it gets a request, or when a connection is opened
(`hostile_rows` is a table of them). A `Hostile` follows one between `misbehave` and the moment when `is_hostile` is
reset, and answers as S3 does before and after, so a test can see how a client fares all the while. Everything runs in
the caller's trio run; nothing outlives the block of `serving`.
"""

import ctypes
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from pathlib import Path

import trio

from fastfuse.objects import ObjectRef
from tests.s3.certificates import Identity, issue
from tests.s3.tls_peers import server_context_of

BUCKET = "bucket"
# More than a client's task receives itself: the last 44 KB of a whole object come through a thread.
DATA = bytes((7 * at + (at >> 8)) & 255 for at in range(300_000))
_MODIFIED_S = 1_700_000_000
REF = ObjectRef(BUCKET, "key", len(DATA), '"0123456789abcdef0123456789abcdef"', _MODIFIED_S * 10**9)
_DRIP_S = 0.2
_SO_ATTACH_FILTER = 26  # <asm/socket.h>
_DROP = struct.pack("=HBBI", 6, 0, 0, 0)  # BPF_RET | BPF_K, of no byte
_LINGER_FOR_RESET = struct.pack("ii", 1, 0)


def page_of(*sizes_bytes_by_key: tuple[str, int]) -> bytes:
    entries = "".join(
        f"<Contents><Key>{key}</Key><LastModified>2023-11-14T22:13:20.000Z</LastModified>"
        f"<ETag>&quot;{REF.etag.strip(chr(34))}&quot;</ETag><Size>{size_bytes}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
        for key, size_bytes in sizes_bytes_by_key
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{BUCKET}</Name><Prefix></Prefix><KeyCount>{len(sizes_bytes_by_key)}</KeyCount><MaxKeys>1000</MaxKeys>"
        f"<EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
    ).encode()


PAGE = page_of((REF.key, REF.size_bytes), ("other", 5))


class _HungUpError(Exception):
    """The client has closed its side."""


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    # By names in lower case.
    headers: Mapping[str, str]

    @property
    def verb(self) -> str:
        if self.method == "HEAD":
            return "head"
        return "list" if "list-type=2" in self.target else "get"

    @property
    def key(self) -> str:
        return self.target.partition("?")[0].removeprefix(f"/{BUCKET}").removeprefix("/")

    @property
    def span(self) -> tuple[int, int]:
        """The first byte that is asked for, and the one behind the last."""
        if "range" not in self.headers:
            return 0, len(DATA)
        first, _, last = self.headers["range"].removeprefix("bytes=").partition("-")
        return int(first), int(last) + 1


@dataclass(frozen=True)
class Reply:
    """One reply, of which each part may be wrong."""

    status_line: bytes
    # Lines without their ends.
    headers: tuple[bytes, ...]
    body: bytes
    # False in reply to a HEAD: the body stays away, whatever the headers say.
    has_body: bool = True

    def with_status(self, status: str) -> "Reply":
        return replace(self, status_line=f"HTTP/1.1 {status}".encode())

    def with_header(self, name: str, value: str | bytes) -> "Reply":
        """Replace the header `name`, or add it."""
        encoded = value.encode() if isinstance(value, str) else value
        return self.without(name).also(name.encode() + b": " + encoded)

    def without(self, name: str) -> "Reply":
        start = f"{name}:".lower().encode()
        return replace(self, headers=tuple(line for line in self.headers if not line.lower().startswith(start)))

    def also(self, line: bytes) -> "Reply":
        """Add a header line, well formed or not, whether there is one of that name or not."""
        return replace(self, headers=(*self.headers, line))

    def with_body(self, body: bytes) -> "Reply":
        return replace(self.with_header("Content-Length", str(len(body))), body=body)

    def in_chunks(self, body: bytes) -> "Reply":
        """Replace the body by `body`, which is chunked already."""
        return replace(self.without("Content-Length").with_header("Transfer-Encoding", "chunked"), body=body)

    @property
    def head(self) -> bytes:
        return b"\r\n".join([self.status_line, *self.headers, b"", b""])

    def encode(self) -> bytes:
        return self.head + (self.body if self.has_body else b"")


def good_reply(request: Request) -> Reply:
    version = (f"ETag: {REF.etag}".encode(), f"Last-Modified: {formatdate(_MODIFIED_S, usegmt=True)}".encode())
    if request.verb == "head":
        return Reply(b"HTTP/1.1 200 OK", version, b"", has_body=False).with_body(DATA)
    if request.verb == "list":
        return Reply(b"HTTP/1.1 200 OK", (b"Content-Type: application/xml",), b"").with_body(PAGE)
    start, end = request.span
    shown = f"bytes {start}-{end - 1}/{len(DATA)}"
    reply = Reply(b"HTTP/1.1 206 Partial Content", version, b"").with_header("Content-Range", shown)
    return reply.with_body(DATA[start:end])


@dataclass(frozen=True)
class Certificates:
    """The authority that the client trusts, and how servers present themselves."""

    authority: Path
    contexts: Mapping[str, ssl.SSLContext]


class Peer:
    def __init__(self, hostile: "Hostile", transport: trio.SocketStream, context: ssl.SSLContext | None) -> None:
        self.hostile = hostile
        # Below TLS, if there is any.
        self.transport = transport
        # https_compatible: a client that ends without a close_notify has ended all the same.
        self.tls = (
            None if context is None else trio.SSLStream(transport, context, server_side=True, https_compatible=True)
        )
        self.scope = trio.CancelScope()
        self._rest = b""
        # Set while it waits for a request, all of its own sent.
        self.idle = trio.Event()

    async def request(self) -> Request:
        """Receive the next request. Raises `_HungUpError` where none comes any more."""
        stream = self.tls or self.transport
        self.idle.set()
        while b"\r\n\r\n" not in self._rest:
            received = await stream.receive_some(64 << 10)
            if not received:
                raise _HungUpError
            self._rest += received
        self.idle = trio.Event()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return Request(method, target, headers)

    async def send(self, data: bytes) -> None:
        await (self.tls or self.transport).send_all(data)

    async def flood(self, data: bytes) -> None:
        while True:
            await self.send(data)

    async def drip(self, data: bytes) -> None:
        """Send `data` byte by byte, again and again until the client hangs up."""
        while True:
            for at in range(len(data)):
                await self.send(data[at : at + 1])
                await trio.sleep(_DRIP_S)

    def reset(self) -> None:
        self.transport.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_FOR_RESET)
        self.transport.socket.close()

    def vanish(self) -> None:
        """Lose every packet that comes from now on, as a NAT does that has forgotten the connection."""
        code = ctypes.create_string_buffer(_DROP)
        program = struct.pack("@HP", 1, ctypes.addressof(code))
        self.transport.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)

    async def end(self) -> None:
        """End what this side sends with a FIN, and without a close_notify where there is TLS."""
        await self.transport.send_eof()

    async def leave(self) -> None:
        """End what this side sends, take no request any more, and raise `_HungUpError` when the client has ended."""
        await self.transport.send_eof()
        async for _ in self.transport:
            pass
        raise _HungUpError

    async def notify_end(self) -> None:
        """End what this side sends with a close_notify, or with a FIN where there is no TLS."""
        if self.tls is None:
            await self.transport.send_eof()
            return
        # It waits for the client's own, which need not come.
        with trio.move_on_after(_DRIP_S):
            await self.tls.unwrap()


Answer = Callable[[Peer, Request], Awaitable[None]]
Act = Callable[[Peer], Awaitable[None]]


async def good(peer: Peer, request: Request) -> None:
    await peer.send(good_reply(request).encode())


@dataclass
class Other:
    """A host that no client has any business with."""

    port: int
    connections: int = 0
    received: bytearray = field(default_factory=bytearray)

    @property
    def authority(self) -> str:
        return f"127.0.0.2:{self.port}"

    async def serve(self, transport: trio.SocketStream) -> None:
        self.connections += 1
        async with transport:
            async for received in transport:
                self.received += received


@dataclass
class Hostile:
    """A server that behaves well until it is told otherwise."""

    port: int
    other: Other
    certificates: Certificates | None
    # Which of the certificates' contexts it presents while it is hostile.
    context: str = "good"
    answer: Answer = good
    # What it does with a new connection before TLS. When that returns, TLS begins, and requests are taken.
    accept: Act | None = None
    is_hostile: bool = False
    # How often `answer` was called since `misbehave`.
    hostile_replies: int = 0
    # The connections that are open.
    peers: list[Peer] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{'http' if self.certificates is None else 'https'}://127.0.0.1:{self.port}"

    def misbehave(self, answer: Answer, *, accept: Act | None, context: str) -> None:
        self.answer, self.accept, self.context = answer, accept, context
        self.is_hostile, self.hostile_replies = True, 0

    def hang_up(self) -> None:
        """End all connections, and whatever is done with them."""
        for peer in self.peers:
            peer.transport.socket.close()
            peer.scope.cancel()
        self.peers.clear()

    async def serve(self, transport: trio.SocketStream) -> None:
        context = None
        if self.certificates is not None:
            context = self.certificates.contexts[self.context if self.is_hostile else "good"]
        peer = Peer(self, transport, context)
        self.peers.append(peer)
        try:
            with peer.scope:
                await self._serve(peer)
        except (_HungUpError, trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError):
            pass  # the client has had enough, or the script has
        finally:
            if peer in self.peers:
                self.peers.remove(peer)
            transport.socket.close()

    async def _serve(self, peer: Peer) -> None:
        if self.accept is not None and self.is_hostile:
            await self.accept(peer)
        while True:
            request = await peer.request()
            if self.is_hostile:
                self.hostile_replies += 1
                await self.answer(peer, request)
            else:
                await good(peer, request)


@asynccontextmanager
async def serving(certificates: Certificates | None = None) -> AsyncIterator[Hostile]:
    """Serve until the end of the block, over TLS if there are `certificates`."""
    ours = await trio.open_tcp_listeners(0, host="127.0.0.1")
    others = await trio.open_tcp_listeners(0, host="127.0.0.2")
    other = Other(others[0].socket.getsockname()[1])
    hostile = Hostile(ours[0].socket.getsockname()[1], other, certificates)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, hostile.serve, ours)
        nursery.start_soon(trio.serve_listeners, other.serve, others)
        yield hostile
        nursery.cancel_scope.cancel()


def create_certificates(directory: Path) -> Certificates:
    """Create an authority and what it issued, in `directory`: valid, expired, for another host, and for nobody."""
    authority = issue(is_authority=True, subject="authority")

    def context(identity: Identity) -> ssl.SSLContext:
        return server_context_of(identity.write(directory, "server"))

    valid = issue("127.0.0.1", by=authority)
    usual = ("good", "tls 1.2", "http/2", "many tickets", "wants a certificate", "needs a certificate")
    contexts = {name: context(valid) for name in usual} | {
        "another name": context(issue("s3.example.com", "127.0.0.2", by=authority)),
        "expired": context(issue("127.0.0.1", by=authority, from_days=-2, to_days=-1)),
        "self-signed": context(issue("127.0.0.1")),
    }
    contexts["tls 1.2"].maximum_version = ssl.TLSVersion.TLSv1_2
    contexts["http/2"].set_alpn_protocols(["h2"])
    contexts["many tickets"].num_tickets = 50
    path = authority.write(directory, "authority")
    for name, mode in (("wants a certificate", ssl.CERT_OPTIONAL), ("needs a certificate", ssl.CERT_REQUIRED)):
        contexts[name].load_verify_locations(path)
        contexts[name].verify_mode = mode
    return Certificates(path, contexts)

"""Knows how requests reach each bucket: its address and signers; opens and keeps the connections to it.

Botocore's endpoint rules (`endpoints`) tell a bucket's address, of the region that `regions` has found. The service may
correct the region of a bucket once; the rules derive the host from the region, so nothing that a server sends leads to
another host.
"""

import codecs
import errno
import logging
import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from urllib.parse import quote

import trio

from fastfuse.errors import BadReplyError, raise_alone
from fastfuse.objects import ObjectRef
from fastfuse.s3.addresses import Addresses
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import CONNECT_TIMEOUT_S
from fastfuse.s3.checks import condition_line
from fastfuse.s3.checksums import load_models
from fastfuse.s3.connection import SILENT_CALLS, Connection, Patience
from fastfuse.s3.credentials import Credentials
from fastfuse.s3.endpoints import Endpoint, load_rules, resolve_endpoint
from fastfuse.s3.failures import Failure, Kind, NoReplyError, failure_of_network, read_error
from fastfuse.s3.http1 import BadReplyHeadError, ReplyHead
from fastfuse.s3.proxies import Proxy, ProxyRefusalError
from fastfuse.s3.retries import RetryableError
from fastfuse.s3.signing import Signer
from fastfuse.s3.threads import NoThreadError
from fastfuse.s3.tls import CertificateError, TlsConnection, TlsContext

_log = logging.getLogger(__name__)

# A firewall or NAT remembers a connection for minutes, longer if the kernel asks for the other side (`direct_get.h`).
_ASK_AFTER_S = 60
# A request that nobody acknowledges for so long is lost: the connection is forgotten. A full queue before a slow link
# delays acknowledgements less.
_LOST_MS = 5000

_TIMEVAL = struct.Struct("@ll")  # <sys/time.h>


def quoted_key(key: str) -> str:
    """Return a key, or a part of one, as it stands in the path of a request, and is signed."""
    return quote(key, safe="/~")


@dataclass(frozen=True, slots=True)
class Route:
    """The way of requests to one bucket."""

    bucket: str
    endpoint: Endpoint
    # The text before the path in the request line: empty, or for a plain HTTP proxy the scheme and host.
    origin: str
    # The rest of the request line, and the header lines that are the same for all requests and mostly not signed.
    head: str
    objects: Signer
    lists: Signer
    # The connection used last is at the end; the others may time out.
    idle: list[Connection]
    # The Unix time to sign with.
    now_s: Callable[[], float] = time.time

    def request(
        self, method: str, credentials: Credentials | None, *, key: str = "", query: str = "", lines: str = ""
    ) -> bytes:
        """Return a request for the object `key`, or for the bucket where there is none, signed with `credentials`."""
        path = f"{self.endpoint.base_path}/{quoted_key(key)}" if key else self.endpoint.base_path or "/"
        signer = self.objects if key else self.lists
        signed = signer.lines(path, credentials, self.now_s(), query=query, method=method)
        target = f"{self.origin}{path}?{query}" if query else f"{self.origin}{path}"
        return f"{method} {target}{self.head}{signed}{lines}\r\n".encode()

    def get_request(self, credentials: Credentials | None, ref: ObjectRef, start: int, end: int) -> bytes:
        """Return a GET for a range of the listed version of an object."""
        # The service gives the checksum of the object only to a GET without Range.
        lines = "" if end - start == ref.size_bytes else f"range: bytes={start}-{end - 1}\r\n"
        return self.request("GET", credentials, key=ref.key, lines=lines + condition_line(ref))

    def texts(self, credentials: Credentials | None, prefix: str) -> tuple[bytes, ...]:
        """Return the parts of GETs of objects below `prefix` that are the same for a while, for `direct_get.h`."""
        signed, canonical_rest, before_hash, signing_key = self.objects.texts(credentials, self.now_s())
        path = f"{self.endpoint.base_path}/{quoted_key(prefix)}"
        texts = f"GET {path}", self.head + signed, f"GET\n{path}", canonical_rest, before_hash
        return (*(text.encode() for text in texts), signing_key)

    def close_idle(self) -> None:
        """Close every idle connection: the next request resolves the name of the host again."""
        while self.idle:
            self.idle.pop().close()

    def leave_failed(self, connection: Connection, failure: Failure, *, is_of_s3: bool) -> None:
        """Close the `connection` that brought a passing `failure`: another address of the service may be in order.

        The idle ones may lead to the same address, and are closed, too, unless the S3 service itself throttles: a
        handshake for each of its refusals is enough.
        """
        if failure.kind not in (Kind.BUSY, Kind.THROTTLED):
            return
        connection.close()
        if failure.kind is Kind.BUSY or not is_of_s3:
            self.close_idle()


@dataclass(frozen=True, slots=True)
class Direct:
    """The way of GETs that `direct_get.h` makes."""

    endpoint: Endpoint
    tls: TlsContext | None
    # Hold the signing key: never shown.
    texts: tuple[bytes, ...] = field(repr=False)


class NotConnectedError(OSError):
    """There was no connection to ask over, for this `reason`."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(str(reason))
        self.reason = reason


def read_failure(error: BadReplyError | BadReplyHeadError | OSError, ref: ObjectRef) -> RetryableError:
    """Return what an attempt to read `ref` fails with whose reply broke, or is not what was asked for."""
    failure = failure_of_connection(error, is_read=True)
    final = error if isinstance(error, BadReplyError) else read_error(failure, ref)
    if isinstance(error, BadReplyHeadError):
        final = BadReplyError(f"The service's reply for {ref.key!r} is not HTTP/1.1: {error}.")
    return RetryableError(final, failure, is_read=True)


def failure_of_connection(error: BadReplyError | BadReplyHeadError | OSError, *, is_read: bool = False) -> Failure:
    """Classify what `Routes.ask` and the connection that it returns raise, and what its reply is refused for."""
    if isinstance(error, BadReplyHeadError):
        return Failure(kind=Kind.NOT_S3, detail=f"its reply is not HTTP/1.1: {error}")
    if isinstance(error, BadReplyError):
        return Failure(kind=Kind.NOT_S3, detail=f"a wrong reply, namely: {str(error).rstrip('.')}")
    if isinstance(error, NotConnectedError):
        return failure_of_network(error.reason, is_connected=False, is_read=is_read)
    return failure_of_network(error, is_connected=True)


def read_files(session: S3Session) -> None:
    """Read every file and load every module that requests need, for processes that may not do so later.

    Raises:
        ConfigurationError: a file of the configuration, an authority or a key cannot be read.
    """
    _ = session.s3_settings, session.object_headers
    if not (session.endpoint_url or "").startswith("http:"):
        _ = session.tls
    load_rules(session)
    load_models()
    # `socket` loads the first for the name of a host, and manifests begin with the second.
    for codec in ("idna", "utf-8-sig"):
        codecs.lookup(codec)


class Routes:
    """The routes to the buckets that one client of `session` reaches, and their idle connections."""

    def __init__(self, session: S3Session, patience: Patience) -> None:
        self._session = session
        self._patience = patience
        self._routes: dict[str, Route] = {}
        # By scheme, host, port and proxy: buckets of one host share its connections.
        self._idle: dict[tuple[object, ...], list[Connection]] = {}
        self._corrected: set[str] = set()
        self.addresses = Addresses()
        # True once an S3 service has answered over any of them.
        self.has_met_s3 = False
        self.is_closed = False

    def known(self, bucket: str) -> Route | None:
        """Return the route to `bucket` if it has been found."""
        return self._routes.get(bucket)

    def add(self, bucket: str, region: str) -> Route:
        """Reach `bucket` in `region` from now on. Raises as `make`."""
        route = self._routes[bucket] = self.make(bucket, region)
        return route

    def correct(self, route: Route, region: str) -> bool:
        """Reach the bucket of `route` in the `region` that the service named in reply to a request over `route`.

        Return whether there is another route now.
        """
        bucket, used = route.bucket, route.endpoint.region
        if self._routes.get(bucket) is not route:
            return True  # another request has corrected it
        if not region or region == used or bucket in self._corrected:
            return False
        self._corrected.add(bucket)
        self.add(bucket, region)
        _log.warning("The bucket %r is in the region %s, not in %s: using it there.", bucket, region, used)
        return True

    async def connect(self, route: Route) -> Connection:
        """Open a connection, through the endpoint's proxy if it has one.

        Raises:
            OSError: there is none in time (`tls.TlsError` and `ProxyRefusalError`, too).
        """
        endpoint, proxy = route.endpoint, route.endpoint.proxy
        host, port = (endpoint.host, endpoint.port) if proxy is None else (proxy.host, proxy.port)
        tls = self._session.tls if endpoint.scheme == "https" else None
        trusted = self._session.trusted_version
        silence_s = self._patience.stall_s if tls else self._patience.stall_s / SILENT_CALLS
        sock, address = None, ""
        self.addresses.use()
        try:
            with trio.fail_after(CONNECT_TIMEOUT_S):
                sock = await (_connected if proxy is None else _connected_to_proxy)(host, port, silence_s)
                with suppress(OSError):  # it has been reset
                    address = sock.getpeername()[0]
                avoid = partial(self.addresses.avoid, address)
                if tls is None:
                    return Connection(sock, None, avoid)
                if proxy is not None:
                    await _open_tunnel(Connection(sock, None), endpoint, proxy, self._patience)
                    host = endpoint.host
                return Connection(sock, await _secured(sock, tls, host), avoid)
        except BaseException as error:
            if sock is not None:
                sock.close()
            if address and not isinstance(error, trio.Cancelled):
                self.addresses.avoid(address)
            if isinstance(error, trio.TooSlowError):
                raise TimeoutError(errno.ETIMEDOUT, "no connection in time") from None
            if isinstance(error, CertificateError) and self._session.trust_again() != trusted:
                return await self.connect(route)
            raise

    async def ask(
        self, route: Route, request: bytes, patience: Patience, *, has_body: bool = True, may_connect: bool = True
    ) -> tuple[Connection, ReplyHead]:
        """Send `request` and return the connection, which the caller owns now, and the head of the reply.

        The server may close an idle connection at this very moment; then another one carries the request, in what is
        left of the time. A stall closes the others, too: a firewall that drops one idle connection silently has dropped
        them all.

        Raises:
            NotConnectedError: there is no connection.
            trio.WouldBlock: there is no idle one, and `may_connect` is false.
            BadReplyHeadError, OSError: as `Connection.ask`.
        """
        ends_s = trio.current_time() + patience.most_s
        while route.idle:
            connection = route.idle.pop()
            if not connection.is_fresh():
                connection.close()
                continue
            try:
                head = await connection.ask(request, patience, has_body=has_body)
            except TimeoutError:
                route.close_idle()
                raise
            if head is not None:
                return connection, head
            # A proxy whose service hangs may have taken long to close it, and does the same with the others.
            patience = patience._replace(most_s=ends_s - trio.current_time())
        if not may_connect:
            raise trio.WouldBlock
        try:
            connection = await self.connect(route)
        except OSError as error:
            raise NotConnectedError(error) from error
        head = await connection.ask(request, patience, has_body=has_body)
        if head is None:
            connection.avoid_address()
            raise NoReplyError("the connection was closed without an answer")
        return connection, head

    def put_back(self, route: Route, connection: Connection) -> None:
        """Keep `connection` for another request if its reply has come to its end; close it otherwise."""
        if connection.is_reusable and not self.is_closed:
            route.idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close all idle connections, and keep none that is put back later."""
        self.is_closed = True
        for idle in self._idle.values():
            while idle:
                idle.pop().close()

    def judged(self, failure: Failure) -> Failure:
        """Return a command's `failure` as that of a wrong endpoint if no S3 service has answered there yet."""
        return replace(failure, kind=Kind.NOT_S3) if failure.is_foreign and not self.has_met_s3 else failure

    def make(self, bucket: str, region: str) -> Route:
        """Return the route to `bucket` in `region`, and remember only its connections.

        Raises:
            ConfigurationError: there is none with these settings.
        """
        session = self._session
        endpoint = resolve_endpoint(session, bucket, region)
        if endpoint.scheme == "https":
            _ = session.tls  # a file that cannot be read is a wrong setting, not a failed connection
        proxy, origin = endpoint.proxy, ""
        head = f" HTTP/1.1\r\nhost: {endpoint.host_header}\r\nuser-agent: fastfuse\r\naccept-encoding: identity\r\n"
        if proxy is not None and endpoint.scheme == "http":
            origin = f"http://{endpoint.host_header}"
            head += f"proxy-authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
        return Route(
            bucket=bucket,
            endpoint=endpoint,
            origin=origin,
            head=head,
            objects=Signer(endpoint, session.object_headers),
            lists=Signer(endpoint, session.extra_headers),
            idle=self._idle.setdefault((endpoint.scheme, endpoint.host, endpoint.port, proxy), []),
            now_s=session.clock.now_s,
        )


async def _connected(host: str, port: int, silence_s: float) -> socket.socket:
    try:
        stream = await trio.open_tcp_stream(host, port)
    except BaseExceptionGroup as error:
        # A cancellation comes as a group: callers tell `trio.Cancelled` from other errors.
        raise_alone(error.exceptions[0])
    except RuntimeError as error:  # of the thread in which trio resolves a name
        raise NoThreadError from error
    except OSError as error:
        if error.strerror:
            raise
        raise _first_reason(error) from error
    # Python's own class: a call of trio's is a checkpoint, which costs as much as the system call.
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _ASK_AFTER_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _LOST_MS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(int(silence_s), int(silence_s % 1 * 1e6)))
    return sock


async def _connected_to_proxy(host: str, port: int, silence_s: float) -> socket.socket:
    try:
        return await _connected(host, port, silence_s)
    except NoThreadError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise ProxyRefusalError(error.errno, f"the proxy {host}, port {port}, cannot be reached: {reason}") from error


async def _open_tunnel(connection: Connection, endpoint: Endpoint, proxy: Proxy, patience: Patience) -> None:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    authorization = f"proxy-authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
    target = f"{host}:{endpoint.port}"
    request = f"CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n{authorization}\r\n"
    try:
        head = await connection.ask(request.encode(), patience, has_body=False)
        told = f"answered {head.status}" if head is not None else "closed the connection"
    except BadReplyHeadError as error:
        raise ProxyRefusalError(errno.EPROTO, f"the proxy {proxy.host} sent what is not HTTP/1.1: {error}") from error
    if head is None or not 200 <= head.status < 300:
        raise ProxyRefusalError(errno.EACCES, f"the proxy {proxy.host} {told}")


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


def _first_reason(error: OSError) -> OSError:
    """Return the first cause of trio's error, which says only that all addresses of the host failed."""
    cause = error.__cause__
    causes = cause.exceptions if isinstance(cause, ExceptionGroup) else [cause]
    for one in filter(None, causes):
        one.__traceback__ = None  # its frames hold a list that holds it: 1.5 KB for each attempt in an outage
    first = causes[0]
    number = first.errno if isinstance(first, OSError) else None
    return OSError(number, os.strerror(number)) if number else OSError(str(error))

"""The server: a thread per connection, blocking sockets, `sendfile` for bodies.

It uses threads because the work is in system calls that release the GIL. One process fills a core, and several share
one listening socket (`bench.server`). The server binds to 127.0.0.1 only.

Lifetimes: server ⊃ acceptor thread ⊃ connections. `close` shuts every socket down, which ends every blocking call,
and joins every thread.
"""

import contextlib
import errno
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Self

from bench.s3server.buckets import ObjectSet
from bench.s3server.faults import Delay, Fault, FaultRule, FaultSet, Limit, Reset, Stall, Truncate
from bench.s3server.recording import RequestLog, RequestRecord, Statistics
from bench.s3server.server_config import ServerConfig
from bench.s3server.service import Call, Service
from bench.s3server.wire import BadRequestError, Reply, RequestReader, ResponseWriter, close_by_reset

_HOST = "127.0.0.1"
# A lister opens hundreds of connections at once; the kernel caps this at net.core.somaxconn.
_BACKLOG = 1024
# `close` has ended every blocking call by then, so a thread that outlives this is a defect.
_JOIN_S = 10.0


def bind_loopback(port: int = 0) -> socket.socket:
    """Return a listening socket on the loopback interface; port 0 takes a free one."""
    return socket.create_server((_HOST, port), backlog=_BACKLOG)


class _ClosedByFaultError(Exception):
    """A fault ends the connection here, with a reset if `with_reset`."""

    def __init__(self, *, with_reset: bool) -> None:
        super().__init__()
        self.with_reset = with_reset


def _body_ending(faults: list[Fault]) -> Fault | None:
    return next((fault for fault in faults if isinstance(fault.action, Reset | Truncate | Stall)), None)


def _planned_bytes(reply: Reply, ending: Fault | None) -> int:
    """Return how many bytes of the body a client that takes all will be sent."""
    match ending.action if ending else None:
        case Reset(after_bytes) | Truncate(after_bytes):
            return min(reply.body_bytes, after_bytes or 0)
        case _:
            return reply.body_bytes


def _record(connection: int, call: Call, reply: Reply, planned_bytes: int, *, is_refused: bool) -> RequestRecord:
    headers = call.request.headers
    return RequestRecord(
        connection=connection,
        method=call.request.method,
        operation=call.operation,
        bucket=call.bucket,
        key=call.key_text,
        query={name: value.decode(errors="surrogateescape") for name, value in call.request.query.items()},
        range=(reply.start, reply.end) if "Content-Range" in reply.headers else None,
        if_match=headers.get("if-match", ""),
        status=0 if is_refused else reply.status,
        sent_bytes=planned_bytes,
    )


class LoopbackServer:
    """An S3 server for `buckets`, running between ``with`` and its end.

    `buckets`, `faults`, `requests` and `statistics` may be used while it runs. With `listener` it serves a socket that
    other servers may share.
    """

    def __init__(
        self,
        buckets: Mapping[str, ObjectSet],
        config: ServerConfig | None = None,
        faults: Iterable[FaultRule] = (),
        *,
        listener: socket.socket | None = None,
    ) -> None:
        self.buckets = buckets
        self.faults = FaultSet(faults)
        self._config = config or ServerConfig()
        self._service = Service(buckets, self._config)
        self._log = RequestLog(self._config.log_limit)
        self._tls = self._tls_context()
        self._closing = threading.Event()
        # GUARDED BY `_lock`, as is the closing of the sockets in it. The acceptor drops those that have ended.
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._lock = threading.Lock()
        self._listener = listener or bind_loopback(self._config.port)
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name="fastfuse-s3-accept", daemon=True)

    def _tls_context(self) -> ssl.SSLContext | None:
        if self._config.tls is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._config.tls.certificate, self._config.tls.key)
        return context

    @property
    def endpoint_url(self) -> str:
        """The URL for clients, in path style."""
        return f"{'https' if self._tls else 'http'}://{_HOST}:{self.port}"

    @property
    def requests(self) -> tuple[RequestRecord, ...]:
        """The recorded requests, oldest first."""
        return self._log.records()

    def count(self, operation: str, key: str | None = None) -> int:
        """Return how many of the recorded requests are of `operation`, and for `key` if one is given."""
        return sum(one.operation == operation and key in (None, one.key) for one in self.requests)

    def clear_requests(self) -> None:
        """Forget the recorded requests; the statistics go on."""
        self._log.clear()

    def statistics(self) -> Statistics:
        return self._log.statistics()

    def wait_until(self, is_met: Callable[[Statistics], bool], timeout_s: float = 60.0) -> Statistics:
        """Block until the statistics meet a condition; `TimeoutError` after `timeout_s`."""
        return self._log.wait_until(is_met, timeout_s)

    def __enter__(self) -> Self:
        self._acceptor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving and cut every connection; replies under way are lost. Idempotent."""
        self._closing.set()
        self.faults.clear()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        if self._acceptor.ident is not None:
            self._acceptor.join()
        self._listener.close()
        # The acceptor has ended: no connection is added any more.
        with self._lock:
            threads = list(self._connections)
            for sock in self._connections.values():
                with contextlib.suppress(OSError):
                    # SSLSocket's own shutdown would take the TLS state away under a thread that uses it.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for thread in threads:
            thread.join(_JOIN_S)
            if thread.is_alive():
                raise RuntimeError(f"a connection of the loopback server did not end within {_JOIN_S} s of its close")

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError as error:
                # This process, or another one that serves the socket, has shut it down (accept(2)).
                if error.errno == errno.EINVAL:
                    return
                raise
            # The client may be gone already.
            with contextlib.suppress(OSError):
                self._start_connection(self._secured(sock))

    def _secured(self, sock: socket.socket) -> socket.socket:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            return sock
        # The connection's thread makes the handshake, so a client that never begins one blocks nobody.
        return self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def _start_connection(self, sock: socket.socket) -> None:
        thread = threading.Thread(target=self._converse, args=(sock,), name="fastfuse-s3-connection", daemon=True)
        thread.start()
        with self._lock:
            self._connections = {live: its for live, its in self._connections.items() if live.is_alive()}
            self._connections[thread] = sock

    def _converse(self, sock: socket.socket) -> None:
        number = self._log.open_connection()
        try:
            if isinstance(sock, ssl.SSLSocket):
                sock.do_handshake()
            self._serve(sock, number)
        except _ClosedByFaultError as closed:
            if closed.with_reset:
                close_by_reset(sock)
        except (OSError, BadRequestError):
            pass  # a client that goes away or sends nonsense only has its connection closed
        finally:
            with self._lock:
                sock.close()
            self._log.close_connection()

    def _serve(self, sock: socket.socket, connection: int) -> None:
        reader = RequestReader(sock, takes_bodies=self._config.writes != "refused")
        while (request := reader.read()) is not None:
            call = self._service.understand(request)
            faults = self.faults.take(call.operation, call.bucket, call.key_text)
            reply = self._service.answer(call, [fault.action for fault in faults])
            self._reply(sock, connection, call, reply, faults)
            if not request.keep_alive:
                return

    def _reply(self, sock: socket.socket, connection: int, call: Call, reply: Reply, faults: list[Fault]) -> None:
        ending = _body_ending(faults)
        is_refused = ending is not None and isinstance(ending.action, Reset) and ending.action.after_bytes is None
        planned = _planned_bytes(reply, ending)
        rate = partial(self._rate_bytes_per_s, faults)
        writer = ResponseWriter(sock, reply, rate_bytes_per_s=rate, closing=self._closing)
        number = self._log.begin(_record(connection, call, reply, planned, is_refused=is_refused))
        try:
            self._closing.wait(self._delay_s(call, faults))
            if is_refused:
                raise _ClosedByFaultError(with_reset=True)
            writer.send_head(keep_alive=call.request.keep_alive)
            if ending is None:
                writer.send_body(0, planned)
            else:
                self._send_with_ending(writer, reply.body_bytes, ending)
        finally:
            self._log.finish(number, missing_bytes=planned - writer.sent_bytes)

    def _send_with_ending(self, writer: ResponseWriter, body_bytes: int, ending: Fault) -> None:
        match ending.action:
            case Stall(after_bytes):
                middle = min(after_bytes, body_bytes)
                writer.send_body(0, middle)
                ending.removed.wait()
                writer.send_body(middle, body_bytes)
            case Reset(int(after_bytes)) | Truncate(after_bytes):
                writer.send_body(0, min(after_bytes, body_bytes))
                raise _ClosedByFaultError(with_reset=isinstance(ending.action, Reset))

    def _delay_s(self, call: Call, faults: list[Fault]) -> float:
        pace = self._config.pace
        own_s = pace.list_delay_s if call.operation == "ListObjectsV2" else pace.first_byte_delay_s
        return own_s + sum(fault.action.seconds for fault in faults if isinstance(fault.action, Delay))

    def _rate_bytes_per_s(self, faults: list[Fault]) -> float:
        in_force = [fault.action for fault in faults if not fault.removed.is_set()]
        rates = [action.bytes_per_s for action in in_force if isinstance(action, Limit)]
        return min(rates) if rates else self._config.pace.rate_bytes_per_s

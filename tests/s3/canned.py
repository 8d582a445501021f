"""A server that remembers what it is sent, headers and all, and answers with what the test made up."""

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler


class Target(str):
    """The target of a request, with its method and its headers by lower-case names."""

    method: str
    headers: dict[str, str]


Reply = Callable[[Target], tuple[int, dict[str, str], bytes]]


@dataclass
class Canned:
    """`seen` holds ``(request target, headers with lower-case names)`` of each request."""

    url: str
    seen: list[tuple[Target, dict[str, str]]] = field(default_factory=list)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64


def chunks(body: bytes, size_bytes: int = 0, end: bytes = b"0\r\n\r\n") -> bytes:
    """Return `body` in chunks of `size_bytes`, or in one."""
    size_bytes = size_bytes or max(1, len(body))
    pieces = [body[at : at + size_bytes] for at in range(0, len(body), size_bytes)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + end


@contextmanager
def canned_server(reply: Reply) -> Iterator[Canned]:
    """`reply` makes status, headers and body of a request target, for a HEAD too: there a body is one too many."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            target = Target(self.path)
            target.method, target.headers = self.command, {name.lower(): value for name, value in self.headers.items()}
            canned.seen.append((target, target.headers))
            status, headers, body = reply(target)
            self.send_response(status)
            length = {} if "Transfer-Encoding" in headers else {"Content-Length": str(len(body))}
            for name, value in (length | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with _Server(("127.0.0.1", 0), Handler) as server:
        canned = Canned(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield canned
        finally:
            server.shutdown()
            thread.join()

"""Serves a directory as an S3 bucket to the mount of ``fastfuse demo``.

``python -m fastfuse.demo_server DIRECTORY FD`` takes connections from the listening socket FD, which several processes
may share, until its standard input ends. A key is a path below DIRECTORY, and every name of a bucket means DIRECTORY.
The server answers what that mount asks for: pages of ListObjectsV2, and GETs of files, none of which is empty or ever
changes, and of ranges in them. It does not check signatures. The server for tests and benches, which can also
misbehave, is `bench/s3server`.
"""

import os
import re
import socket
import sys
import threading
from bisect import bisect_left, bisect_right
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import gmtime, strftime
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
_LAST_CHARACTER = "\U0010ffff"


class _Server(ThreadingHTTPServer):
    """Serves the files that `directory` holds now, with a thread for each connection."""

    def __init__(self, directory: Path, listener: socket.socket) -> None:
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.directory = directory
        start = len(os.path.join(directory, ""))
        self.keys = sorted(
            os.path.join(folder, name)[start:] for folder, _, names in os.walk(directory) for name in names
        )

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - of sockets
        """Log the error, unless the client has gone away."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection. Methods other than GET are refused."""

    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_request(self, *_: object) -> None:
        """Log nothing: the terminal is the demo's."""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        _bucket, _, key = unquote(path)[1:].partition("/")
        if key:
            self._send_object(key)
        else:
            self._send_page(dict(parse_qsl(query)))

    def _send_object(self, key: str) -> None:
        position = bisect_left(self.server.keys, key)
        # Only keys of the listing are opened, so `..` in a request leads nowhere.
        if self.server.keys[position : position + 1] != [key]:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
        with (self.server.directory / key).open("rb") as file:
            found = os.fstat(file.fileno())
            start, end = (int(wanted[1]), min(int(wanted[2]) + 1, found.st_size)) if wanted else (0, found.st_size)
            self.send_response(HTTPStatus.PARTIAL_CONTENT if wanted else HTTPStatus.OK)
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{found.st_size}")
            self.send_header("Content-Length", str(end - start))
            self.send_header("ETag", _etag(found))
            self.end_headers()
            self.connection.sendfile(file, start, end - start)

    def _send_page(self, query: dict[str, str]) -> None:
        keys, prefix, delimiter = self.server.keys, query.get("prefix", ""), query.get("delimiter", "")
        # A token is the last key that the page before stands for.
        after = query.get("continuation-token") or query.get("start-after", "")
        position = max(bisect_left(keys, prefix), bisect_right(keys, after))
        stop = bisect_left(keys, prefix + _LAST_CHARACTER)
        rows: list[str] = []
        while position < stop and len(rows) < int(query.get("max-keys", "1000")):
            key = keys[position]
            length = key.find(delimiter, len(prefix)) + 1 if delimiter else 0
            if length:
                rows.append(f"<CommonPrefixes><Prefix>{quote(key[:length])}</Prefix></CommonPrefixes>")
                position = bisect_left(keys, key[:length] + _LAST_CHARACTER)
            else:
                rows.append(self._contents(key))
                position += 1
        if position < stop:
            rows.append(f"<NextContinuationToken>{quote(keys[position - 1])}</NextContinuationToken>")
        body = (
            "<ListBucketResult><EncodingType>url</EncodingType>"
            f"<IsTruncated>{str(position < stop).lower()}</IsTruncated>{''.join(rows)}</ListBucketResult>"
        ).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _contents(self, key: str) -> str:
        found = (self.server.directory / key).stat()
        modified = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(found.st_mtime))
        return (
            f"<Contents><Key>{quote(key)}</Key><LastModified>{modified}</LastModified><ETag>{_etag(found)}</ETag>"
            f"<Size>{found.st_size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )


def _etag(found: os.stat_result) -> str:
    return f'"{found.st_mtime_ns:x}"'


def main() -> None:
    """Serve until standard input ends."""
    directory, fd = sys.argv[1:]
    server = _Server(Path(directory), socket.socket(fileno=int(fd)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()

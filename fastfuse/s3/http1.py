"""Parses HTTP/1.1 replies (RFC 9112): the head, and bodies that come in chunks.

Whatever a server sends is hostile input. Every length is bounded, and a reply that two readers could understand
differently is refused: a repeated length, a length beside chunks, a folded line. This module does no I/O.
"""

import re
from dataclasses import dataclass

# S3 sends about 500 bytes; user metadata may add 2 KB. Other servers' limits are 8 to 64 KB and 100 lines.
MAX_HEAD_BYTES = 64 << 10
_MAX_HEADERS = 256
# A chunk's size takes 16 digits at most. Extensions and trailers have no use here.
_MAX_CHUNK_LINE_BYTES = 1 << 10
_MAX_TRAILER_BYTES = 16 << 10
# The framing of the chunks may be longer than the body by this much: a server whose chunks have one byte each would
# cost a second of CPU time for each megabyte.
_MAX_EXTRA_FRAMING_BYTES = 16 << 10

_STATUS_LINE = re.compile(r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: .{0,256})?", re.ASCII)
_CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_LENGTH = re.compile(r"[0-9]{1,19}", re.ASCII)
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?")
# The client decides by these headers. If one came twice with two values, it would decide by chance.
_SINGLE = {
    *("content-encoding", "content-length", "content-range", "etag", "last-modified", "location", "transfer-encoding"),
    *("x-amz-bucket-region", "x-amz-mp-parts-count", "x-amz-storage-class", "x-amz-checksum-type"),
    *("x-amz-checksum-crc32", "x-amz-checksum-crc32c", "x-amz-checksum-crc64nvme", "x-amz-checksum-sha1"),
    "x-amz-checksum-sha256",
}

# An error shows so much of what came in place of a reply. Longer words may be secrets that the sender repeats.
_SHOWN_LETTERS = 60
_LONGEST_SHOWN_WORD = 19
_TAGS = re.compile(r"<[^<>]{0,256}>")
_TLS_ALERT = b"\x15\x03"


class BadReplyHeadError(ValueError):
    """The bytes are not an HTTP/1.1 reply."""


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """The head of a reply. `headers` has the names in lower case."""

    status: int
    headers: dict[str, str]
    is_persistent: bool
    # The length of the body, or None where only the last chunk or the connection's end shows it.
    body_bytes: int | None
    is_chunked: bool = False


def first_words(data: bytes) -> str:
    """Return the beginning of hostile `data` as an error may show it: short, quoted, without tags and controls."""
    if data.startswith(_TLS_ALERT):
        return "a TLS alert"
    text = _TAGS.sub(" ", data[:1024].decode("ascii", "replace"))
    words = "".join(letter if letter.isprintable() and letter.isascii() else " " for letter in text).split()
    shown = " ".join("..." if len(word) > _LONGEST_SHOWN_WORD else word for word in words)
    return repr(shown if len(shown) <= _SHOWN_LETTERS else f"{shown[:_SHOWN_LETTERS]}...") if shown else "no words"


def parse_head(head: bytes) -> ReplyHead:
    """Return the head in `head`, which comes without the empty line that ends it.

    Raises:
        BadReplyHeadError: it is not the head of an HTTP/1.1 reply, or an ambiguous one.
    """
    first, *lines = head.decode("utf-8", "replace").split("\r\n")
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        raise BadReplyHeadError(f"it begins with {first_words(head)}")
    if len(lines) > _MAX_HEADERS:
        raise BadReplyHeadError(f"more than {_MAX_HEADERS} headers")
    if _CONTROL_CHARACTER.search("".join(lines)):
        raise BadReplyHeadError("a header with a control character")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        # Request smuggling begins with white space before the colon or at the beginning (a folded line).
        if not colon or not name or " " in name or "\t" in name:
            raise BadReplyHeadError("a line that is not a header")
        # Of other letters some are small ones of ASCII, too: the sign of Kelvin is a k.
        name = name.lower() if name.isascii() else name
        if name in headers and name in _SINGLE:
            raise BadReplyHeadError(f"{name} twice")
        headers[name] = value.strip(" \t")
    status = int(match[2])
    connection = headers.get("connection", "").lower()
    is_persistent = "close" not in connection and (match[1] == "1" or "keep-alive" in connection)
    body_bytes, is_chunked = _framing(status, headers)
    return ReplyHead(status, headers, is_persistent, body_bytes, is_chunked)


def _framing(status: int, headers: dict[str, str]) -> tuple[int | None, bool]:
    """Return the length of the body, or None, and whether the body comes in chunks (RFC 9112, 6.3)."""
    encoding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if length is not None and not _LENGTH.fullmatch(length):
        raise BadReplyHeadError("a Content-Length that is not a number")
    if encoding is not None:
        if length is not None:
            raise BadReplyHeadError("a Content-Length beside a Transfer-Encoding")
        if encoding.lower() != "chunked":
            raise BadReplyHeadError("a Transfer-Encoding other than chunked")
    if status < 200 or status in (204, 304):
        return 0, False
    return (None, True) if encoding is not None else (None if length is None else int(length), False)


class BodyDecoder:
    """Takes a chunked body apart as its bytes come (RFC 9112, 7.1).

    Invariant: `_rest` is the beginning of a line that has not ended yet, so it is bounded.
    """

    def __init__(self) -> None:
        self._rest = b""
        # The bytes of the chunk that are still to come; its line end follows.
        self._due_bytes = 0
        self._is_in_chunk = self._is_in_trailer = False
        self._trailer_bytes = 0
        # The length of the framing so far, less that of the body.
        self._extra_framing_bytes = 0
        # True once the last chunk and the empty line behind it have come. Later bytes do not belong to this body.
        self.is_done = False
        self.excess_bytes = 0

    def decode(self, data: bytes | memoryview) -> list[memoryview]:
        """Return the pieces of the body in `data`, the bytes that come next.

        Raises:
            BadReplyHeadError: they are not a chunked body.
        """
        pieces: list[memoryview] = []
        view = memoryview(self._rest + data if self._rest else data)
        self._rest = b""
        at = 0
        while at < len(view) and not self.is_done:
            if self._due_bytes:
                piece = view[at : at + self._due_bytes]
                pieces.append(piece)
                at += len(piece)
                self._due_bytes -= len(piece)
                self._extra_framing_bytes -= len(piece)
                continue
            line, at_next = _line(view, at)
            if line is None:
                self._rest = bytes(view[at:])
                if len(self._rest) > _MAX_CHUNK_LINE_BYTES + 1:  # the longest line, and half of its line end
                    raise BadReplyHeadError("a chunk's line without an end")
                return pieces
            self._take_line(line)
            self._extra_framing_bytes += at_next - at
            if self._extra_framing_bytes > _MAX_EXTRA_FRAMING_BYTES:
                raise BadReplyHeadError("chunks with more framing than body")
            at = at_next
        self.excess_bytes = len(view) - at
        return pieces

    def _take_line(self, line: bytes) -> None:
        if self._is_in_chunk:
            if line:
                raise BadReplyHeadError("a chunk that is longer than its size")
            self._is_in_chunk = False
        elif self._is_in_trailer:
            self._trailer_bytes += len(line) + 2
            if self._trailer_bytes > _MAX_TRAILER_BYTES:
                raise BadReplyHeadError("trailers without an end")
            self.is_done = not line
        else:
            match = _CHUNK_SIZE.fullmatch(line)
            if match is None:
                raise BadReplyHeadError("a chunk without a size")
            self._due_bytes = int(match[1], 16)
            self._is_in_chunk = self._due_bytes > 0
            self._is_in_trailer = not self._is_in_chunk


def _line(view: memoryview, at: int) -> tuple[bytes | None, int]:
    """Return the line that begins at `at`, without its end, and where the next one begins; None if it has no end."""
    window = bytes(view[at : at + _MAX_CHUNK_LINE_BYTES + 2])
    end = window.find(b"\r\n")
    return (None, at) if end < 0 else (window[:end], at + end + 2)

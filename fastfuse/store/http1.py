"""The head of an HTTP/1.1 reply, from bytes (RFC 9112). What a server sends is hostile input: all of it is bounded."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["MAX_HEAD_BYTES", "BadHeadError", "ReplyHead", "parse_head"]

# S3 sends about 500 bytes; user metadata may add 2 KB. Other servers' limits are 8 to 64 KB.
MAX_HEAD_BYTES = 64 << 10

_STATUS_LINE = re.compile(r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n]*)?", re.ASCII)
_LENGTH = re.compile(r"[0-9]{1,19}", re.ASCII)


class BadHeadError(ValueError):
    """The bytes are no head of an HTTP/1.1 reply."""


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """`headers` by their names in lower case; the last one where a name is there twice."""

    status: int
    headers: dict[str, str]
    is_persistent: bool
    # The length of the body, or None where it is not told beforehand.
    body_bytes: int | None


def parse_head(head: bytes) -> ReplyHead:
    """The head in `head`, without the empty line that ends it. Raises `BadHeadError`."""
    first, *lines = head.decode("utf-8", "replace").split("\r\n")
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        raise BadHeadError("no status line of HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        # White space before the colon, or at the beginning (a folded line), is where request smuggling begins.
        if not colon or not name or " " in name or "\t" in name:
            raise BadHeadError("a line that is no header")
        name, value = name.lower(), value.strip(" \t")
        if name == "content-length" and headers.get(name, value) != value:
            raise BadHeadError("two different lengths")
        headers[name] = value
    connection = headers.get("connection", "").lower()
    is_persistent = "close" not in connection and (match[1] == "1" or "keep-alive" in connection)
    return ReplyHead(int(match[2]), headers, is_persistent, _body_bytes(headers))


def _body_bytes(headers: Mapping[str, str]) -> int | None:
    told = None if "transfer-encoding" in headers else headers.get("content-length")
    if told is None:
        return None
    if not _LENGTH.fullmatch(told):
        raise BadHeadError("a Content-Length that is no number")
    return int(told)

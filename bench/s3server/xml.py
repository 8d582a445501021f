"""Writes XML and percent-encoding as S3 does."""

import re
import time
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import quote_plus

DECLARATION = b'<?xml version="1.0" encoding="UTF-8"?>\n'

_ENTITIES = {b"&": b"&amp;", b"<": b"&lt;", b">": b"&gt;", b'"': b"&quot;"}
_SPECIAL = re.compile(rb'[&<>"\x00-\x1f]')
# Bytes that neither encoding changes. Most keys consist of them, and quoting costs more than the rest.
_PLAIN = re.compile(rb"[A-Za-z0-9_.\-/]*")


def _escape_one(match: re.Match[bytes]) -> bytes:
    byte = match.group()
    return _ENTITIES.get(byte) or b"&#x%X;" % byte[0]


def escape(value: bytes) -> bytes:
    """Return `value` as character data. As in S3, control characters become references that XML 1.0 forbids."""
    return _SPECIAL.sub(_escape_one, value)


def text(value: bytes, url_encoded: bool) -> bytes:
    """Return a key or a part of one, for ``encoding-type=url`` (a space is ``+``, as on AWS) or as bare XML."""
    if _PLAIN.fullmatch(value):
        return value
    return quote_plus(value, safe="/*").encode() if url_encoded else escape(value)


def element(name: str, value: bytes) -> bytes:
    """Return one element; `value` is already escaped."""
    tag = name.encode()
    return b"<%b>%b</%b>" % (tag, value, tag)


@lru_cache(maxsize=1024)
def _timestamp(modified_s: int) -> bytes:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(modified_s)).encode()


def contents_element(
    key: bytes, size_bytes: int, etag: str, modified_s: int, storage_class: str, url_encoded: bool
) -> bytes:
    """Return one object of a listing; an empty `etag` leaves the element out, as some servers do."""
    etag_element = element("ETag", escape(etag.encode())) if etag else b""
    return (
        b"<Contents><Key>%b</Key><LastModified>%b</LastModified>%b<Size>%d</Size>"
        b"<StorageClass>%b</StorageClass></Contents>"
    ) % (text(key, url_encoded), _timestamp(modified_s), etag_element, size_bytes, storage_class.encode())


def error_document(code: str, message: str, fields: Mapping[str, str]) -> bytes:
    """Return S3's error document; `fields` are the elements that depend on the code."""
    values = {"Code": code, "Message": message, **fields}
    inner = (element(name, escape(value.encode(errors="surrogateescape"))) for name, value in values.items())
    return DECLARATION + element("Error", b"".join(inner))

"""Reply heads and bodies in chunks: what is one is understood, what is none is refused, whatever it is."""

import re
import shutil

import pytest

from fastfuse.objects import ObjectRef
from fastfuse.s3.http1 import BadReplyHeadError, BodyDecoder, parse_head
from tests.fuzz.direct_heads import direct_headers

GOOD = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 10'


def test_a_head_is_status_and_headers_by_lower_case_names() -> None:
    head = parse_head(b'HTTP/1.1 206 Partial Content\r\nContent-Length: 10\r\nETag:"a:b"\t\r\nX-Empty:')
    assert (head.status, head.body_bytes, head.is_persistent, head.is_chunked) == (206, 10, True, False)
    assert head.headers == {"content-length": "10", "etag": '"a:b"', "x-empty": ""}


@pytest.mark.parametrize(
    ("head", "is_persistent"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close", False),
        (b"HTTP/1.1 200 OK\r\nConnection: Keep-Alive, Close", False),
        (b"HTTP/1.0 200 OK", False),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive", True),
        (b"HTTP/1.1 200", True),
    ],
)
def test_a_connection_is_kept_as_its_version_and_header_say(head: bytes, is_persistent: bool) -> None:
    assert parse_head(head).is_persistent == is_persistent


CODED, OF_FIVE = b"Transfer-Encoding: Chunked", b"Content-Length: 5"


@pytest.mark.parametrize(
    ("status", "header", "body_bytes", "is_chunked"),
    [
        *((status, header, 0, False) for status in (100, 103, 204, 304) for header in (OF_FIVE, CODED)),
        *((200, OF_FIVE, 5, False), (200, CODED, None, True), (200, b"Vary: a", None, False)),
    ],
)
def test_a_body_is_as_long_as_status_and_headers_say(
    status: int, header: bytes, body_bytes: int | None, is_chunked: bool
) -> None:
    head = parse_head(b"HTTP/1.1 %d X\r\n%b" % (status, header))
    assert (head.body_bytes, head.is_chunked) == (body_bytes, is_chunked)


STATUSES = (
    *(b"", b"20 OK", b"2000 OK", b"099 OK", b"2x6 OK", b"-206 OK", "\u0662\u0660\u0660".encode(), b"200 " + b"x" * 257),
)
STATUS_LINES = (
    *(b"", b"HTTP/1.1", b" HTTP/1.1 200 OK", b"\r\nHTTP/1.1 200 OK", b"http/1.1 200 OK", b"HTTP/ 200 OK"),
    *(b"HTTP/2.0 200 OK", b"HTTP/1.2 200 OK", b"ICY 200 OK", *(b"HTTP/1.1 " + status for status in STATUSES)),
)
LENGTHS = (b"", b"5, 5", b"1_0", "\u0663".encode(), b"-1", b"+5", b"0x10", b"many", b"9" * 1000)
CHECKSUMS = (b"CRC32", b"CRC32C", b"CRC64NVME", b"SHA1", b"SHA256", b"Type")
DECISIVE = (
    *(b"ETag", b"Last-Modified", b"Content-Encoding", b"Location", *(b"X-Amz-Checksum-" + name for name in CHECKSUMS)),
    *(b"X-Amz-Bucket-Region", b"X-Amz-Mp-Parts-Count", b"X-Amz-Storage-Class"),
)
TWICE = (b"Content-Range: bytes 0-1/2", b"Content-Length: 10", *(name + b": a" for name in DECISIVE))
HEADERS = (
    *(b"X: a\r\n b", b"X", b": a", b"X : a", b"X\t: a", b"X: a\0b", b"X: \x1b[2J", b"X: a\nY: b", b"X: a\rY: b"),
    *(b"Content-Length: 1", b"Transfer-Encoding: chunked", b"X: y\r\n" * 256 + b"X: y"),
    *(line + b"\r\n" + line for line in TWICE),
)
ENCODINGS = (b"gzip, chunked", b"identity", b"chunked\r\nTransfer-Encoding: chunked")


@pytest.mark.parametrize(
    "head",
    [
        *(GOOD.replace(b"HTTP/1.1 200 OK", line) for line in STATUS_LINES),
        *(GOOD.replace(b"Length: 10", b"Length: " + length) for length in LENGTHS),
        *(GOOD + b"\r\n" + lines for lines in HEADERS),
        *(GOOD.replace(b"Content-Length: 10", b"Transfer-Encoding: " + encoding) for encoding in ENCODINGS),
    ],
)
def test_what_is_no_head_or_may_be_understood_in_two_ways_is_refused_by_client_and_threads(head: bytes) -> None:
    ref = ObjectRef("bucket", "key", 10, '"e"')
    with pytest.raises(BadReplyHeadError):
        parse_head(head)
    goods = (GOOD, GOOD + b"\r\nVary: a\r\nVary: b")
    assert [parse_head(good).body_bytes for good in goods] == [10, 10]
    if not shutil.which("gcc"):
        pytest.skip("threads' parser is not compiled: there is no gcc")
    assert direct_headers(head, ref) is None
    assert all(direct_headers(good, ref) for good in goods)


# --- bodies in chunks

CHUNK_LINE_BYTES = 1 << 10
TRAILER_BYTES = 16 << 10
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r\n")
_TRAILERS = re.compile(rb"(?:(?!\r\n).)*\r\n", re.DOTALL)

# What it made of all pieces: the body, whether it has ended, and the bytes behind it; None for no chunked body.
Outcome = tuple[bytes, bool, int] | None


def whole_body(raw: bytes) -> tuple[bytes, int] | None:
    """Return the body that `raw` begins with and how many bytes follow it; None unless it is all there."""
    body, at = b"", 0
    while (head := _CHUNK.match(raw, at)) is not None:
        size_bytes, at = int(head[1], 16), head.end()
        if size_bytes:
            chunk, at = raw[at : at + size_bytes], at + size_bytes
            if len(chunk) < size_bytes or raw[at : at + 2] != b"\r\n":
                return None
            body, at = body + chunk, at + 2
            continue
        while (line := _TRAILERS.match(raw, at)) is not None:
            at = line.end()
            if line[0] == b"\r\n":
                return body, len(raw) - at
        return None
    return None


def decoded(raw: bytes, piece_bytes: int) -> Outcome:
    decoder, body, excess_bytes = BodyDecoder(), b"", 0
    for at in range(0, len(raw), piece_bytes):
        piece = raw[at : at + piece_bytes]
        if decoder.is_done:
            excess_bytes += len(piece)
            continue
        try:
            body += b"".join(decoder.decode(piece))
        except BadReplyHeadError:
            return None
        excess_bytes += decoder.excess_bytes
    return body, decoder.is_done, excess_bytes


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000, 100_000])
@pytest.mark.parametrize(
    ("raw", "outcome"),
    [
        (b"1;" + b"x" * (CHUNK_LINE_BYTES - 2) + b"\r\na\r\n0\r\n\r\n", (b"a", True, 0)),
        (b"1;" + b"x" * (CHUNK_LINE_BYTES - 1) + b"\r\na\r\n0\r\n\r\n", None),
        (b"0\r\n" + b"name: value 34\r\n" * (TRAILER_BYTES // 16 - 1) + b"\r\n", (b"", True, 0)),
        (b"0\r\n" + b"name: value 34\r\n" * (TRAILER_BYTES // 16 + 1) + b"\r\n", None),
        # A long body leaves the trailers no more room.
        (
            b"5000\r\n" + b"a" * 0x5000 + b"\r\n0\r\n" + b"name: value 34\r\n" * (TRAILER_BYTES // 16 + 1) + b"\r\n",
            None,
        ),
        # A server whose chunks have one byte each would make much work, and objects, of few bytes.
        (b"1\r\na\r\n" * 5_000, None),
    ],
    ids=[
        "longest line",
        "too long a line",
        "most trailers",
        "too many trailers",
        "trailers of a long body",
        "tiny chunks",
    ],
)
def test_the_framing_of_chunks_has_a_longest_length(raw: bytes, outcome: Outcome, piece_bytes: int) -> None:
    assert decoded(raw, piece_bytes) == outcome

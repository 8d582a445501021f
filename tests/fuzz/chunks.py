"""Bodies in chunks, in whatever pieces they come: the first byte says in which."""

import re

from fastfuse.s3.http1 import BadReplyHeadError, BodyDecoder

TOKENS = (
    *(
        b"\r\n",
        b"0\r\n\r\n",
        b"0\r\n",
        b"1\r\n",
        b"a\r\n",
        b"ff\r\n",
        b"ffffffffffffffff\r\n",
        b"10000000000000000\r\n",
    ),
    *(
        b"\r",
        b"\n",
        b";",
        b";a=b",
        b' ;a="b"',
        b"\t",
        b" ",
        b"-1",
        b"+1",
        b"0x1",
        b"1_0",
        b"a: b\r\n",
        b"5\r\nhello\r\n",
    ),
)

_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r\n")

# What came of it: the body, whether it ended, and how many bytes follow it; None for no body in chunks.
_Outcome = tuple[bytes, bool, int] | None


def try_one(data: bytes) -> None:
    piece_bytes, raw = (data[0] or 256, data[1:]) if data else (1, b"")
    at_once = _decoded(raw, max(len(raw), 1))
    assert _decoded(raw, piece_bytes) == at_once
    whole = _whole(raw)
    if at_once is None:
        # The decoder refuses what takes too long to say, which a reader without limits accepts.
        assert whole is None or len(raw) > 1 << 10
    elif whole is None:
        assert not at_once[1]
        assert len(at_once[0]) <= len(raw)
    else:
        assert at_once == (whole[0], True, whole[1])


def _decoded(raw: bytes, piece_bytes: int) -> _Outcome:
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


def _whole(raw: bytes) -> tuple[bytes, int] | None:
    """Return the body that `raw` begins with and how many bytes follow it, as a reader without limits does."""
    body, at = b"", 0
    while (head := _CHUNK.match(raw, at)) is not None:
        size_bytes, at = int(head[1], 16), head.end()
        if not size_bytes:
            end = at if raw.startswith(b"\r\n", at) else raw.find(b"\r\n\r\n", at) + 2
            return (body, len(raw) - end - 2) if end >= at else None
        chunk, at = raw[at : at + size_bytes], at + size_bytes
        if len(chunk) < size_bytes or raw[at : at + 2] != b"\r\n":
            return None
        body, at = body + chunk, at + 2
    return None

"""Bodies in chunks, in whatever pieces they come: the first byte says in which."""

from tests.s3.test_http1 import decoded, whole_body

TOKENS = (
    *(b"\r\n", b"0\r\n\r\n", b"0\r\n", b"1\r\n", b"a\r\n", b"ff\r\n", b"ffffffffffffffff\r\n"),
    *(b"10000000000000000\r\n", b"\r", b"\n", b";", b";a=b", b' ;a="b"', b"\t", b" ", b"-1", b"+1", b"0x1", b"1_0"),
    *(b"a: b\r\n", b"5\r\nhello\r\n"),
)


def try_one(data: bytes) -> None:
    piece_bytes, raw = (data[0] or 256, data[1:]) if data else (1, b"")
    at_once = decoded(raw, max(len(raw), 1))
    assert decoded(raw, piece_bytes) == at_once
    whole = whole_body(raw)
    if at_once is None:
        # The decoder refuses what takes too long to say, which a reader without limits accepts.
        assert whole is None or len(raw) > 1 << 10
    elif whole is None:
        assert not at_once[1]
        assert len(at_once[0]) <= len(raw)
    else:
        assert at_once == (whole[0], True, whole[1])

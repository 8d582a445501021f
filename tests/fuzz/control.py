"""What a mount answers through its control socket. What is sent to the socket cannot do harm: nobody reads it."""

import json

from fastfuse.errors import FastfuseError
from fastfuse.filesystem.control import answer_of

TOKENS = (
    *(b'"fastfuse"', b'"fastfuse": 1', b'"error"', b'"kinds"', b'"message"', b'"hint"'),
    *(b'"FastfuseError"', b'"ServiceError"', b'"errno_for"', b'"__doc__"', b'"PoisonedReadError"', b"[]", b"{}", b'""'),
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"null", b"true", b"NaN", b"Infinity", b"-1", b"1e999", b"9" * 400),
    *(b"\\ud800", b"\xff", b"\xfe\xff", b"\x00", b"[" * 64),
)


def try_one(data: bytes) -> None:
    try:
        found = answer_of(data, "status")
    except FastfuseError as error:
        f"{error} {error.hint}".encode(errors="surrogatepass")
        return
    assert isinstance(json.loads(data), dict)
    assert found["fastfuse"] == 1

"""What comes through a control socket: each input is tried as a request to the mount or a helper, and as an answer."""

import json
import os
from types import SimpleNamespace
from typing import Any, cast

from fastfuse.errors import FastfuseError, MountError
from fastfuse.filesystem.mounting import fuse_helper
from fastfuse.filesystem.serving.worker import _MOST_MESSAGE_BYTES
from fastfuse.filesystem.talking.control import PROTOCOL, REQUESTS, _request_of, answer_of
from fastfuse.filesystem.talking.watching import WatchedReads

TOKENS = (
    *(b'"fastfuse"', b'"fastfuse": 1', b'"error"', b'"kinds"', b'"message"', b'"hint"'),
    *(b'"FastfuseError"', b'"ServiceError"', b'"errno_for"', b'"__doc__"', b'"IntegrityError"', b"[]", b"{}", b'""'),
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"null", b"true", b"NaN", b"Infinity", b"-1", b"1e999", b"9" * 400),
    *(b"\\ud800", b"\xff", b"\xfe\xff", b"\x00", b"[" * 64, b"]" * 64, b'{"a":' * 64, b"}\n", b"\n", b"\xc3\xa4" * 64),
    *(b'{"fastfuse": 1, "request": "trace"', b'"index"', b'"top"', b'"log-level"', b'"stack"', b'"tasks"', b'"record"'),
    *(b', "sample": 2', b', "every_s": 0.5', b', "level": "debug"', b', "more": ', b"0.1", b"3600", b"1e308"),
    *(b'{"fastfuse": 1, "request": "mount", "source": "s3://bucket"}', b'"unmount"', b'"abort"', b"\\u0000"),
)

# A watcher is only made of it.
_WATCHED = WatchedReads(cast("Any", None), cast("Any", SimpleNamespace(under_way={})), cast("Any", None))


def try_one(data: bytes) -> None:
    _try_request(data)
    _try_request_to_helper(data)
    try:
        found = answer_of(data, "status")
    except FastfuseError as error:
        f"{error} {error.hint}".encode(errors="surrogatepass")
        return
    assert isinstance(json.loads(data), dict)
    assert found["fastfuse"] == 1


def _try_request(data: bytes) -> None:
    """Go on with a request as the supervisor and the worker do."""
    asked = _request_of(data)
    if not asked:
        return
    assert asked["fastfuse"] == PROTOCOL
    assert asked["request"] in REQUESTS
    passed_on = json.dumps(asked).encode()
    assert len(passed_on) < _MOST_MESSAGE_BYTES
    _WATCHED._watcher(json.loads(passed_on))


def _try_request_to_helper(data: bytes) -> None:
    """Go on with a request as the helper does, which is root."""
    try:
        asked = fuse_helper._request_of(data)
    except MountError:
        return
    assert b"\0" not in os.fsencode(asked["source"])
    assert asked["request"].isidentifier()

"""Clauses D1 and D5 where threads without the interpreter meet a hostile server, with a local tier and without one.

`tests/s3/test_direct_get.py` plays the whole table for one GET. Here a mount has a thread make the GET, answers the
kernel with what comes, and may keep it. What a thread refuses, the client asks for again, and meets the same row.
"""

import errno
import os
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from tests.filesystem.waiting import wait_until
from tests.mounting import mounted
from tests.s3 import hostile, hostile_rows
from tests.s3.hostile import BUCKET, Peer, Reply, Request, page_of, serving
from tests.s3.hostile_rows import BY_NAME, ERRNOS, Ending
from tests.semantics.places import errno_of

_NAMES = (
    *("a byte behind the body", "a sign-in page", "an object in gzip", "another ETag", "another reply behind the body"),
    *("body longer by one", "body shorter by one", "chunks: of 1,000 bytes", "chunks: sum is short", "empty ETag"),
    *("connection: close, and left open", "ended before the last byte", "interim replies", "keep-alive, and reset"),
    *("length of 64 bits and more", "no Content-Length", "no body", "once ended in the body", "once reset in the body"),
    *("redirect 307", "refusal 404 Not Found NoSuchKey", "silent in the body", "the settings of HTTP/2"),
    *("the whole object for a range", "two lengths", "weak ETag"),
)
_ROWS = [BY_NAME[name] for name in _NAMES]
# Names in no order, so that nothing is fetched ahead.
_KEYS = [f"{number:08x}" for number in random.Random(0).sample(range(1 << 32), 900)]
_BAD = dict(zip(_KEYS, _ROWS, strict=False))
# Begins a mount whose threads take the next read at once after a failure, and whose requests tell that a thread asks.
_EAGER = """
import runpy, sys
from fastfuse.filesystem.serving import direct_files

arm = direct_files.direct_reads.arm

def tell(*, texts, **more):
    before, behind, *others = texts
    arm(texts=(before, behind.replace(b"\\r\\n", b"\\r\\nx-thread: 1\\r\\n", 1), *others), **more)

direct_files.direct_reads.arm = tell
direct_files._REST_S = direct_files._MOST_REST_S = 0.0
direct_files._LOOK_EVERY_S = 0.05
direct_files._MOST_PART_FAILURES = sys.maxsize
sys.argv = sys.argv[3:]
runpy.run_module("fastfuse", run_name="__main__", alter_sys=True)
"""


@pytest.mark.fuse
@pytest.mark.parametrize(("kind", "tier"), [("small", False), ("small", True), ("large", True)])
async def test_a_thread_takes_nothing_wrong(
    kind: str, tier: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D1 D5"""
    # A thread gets all of a small object, and the parts of a large one.
    data = hostile.DATA[:200_000] if kind == "small" else 8 * hostile.DATA
    for module in (hostile, hostile_rows):
        monkeypatch.setattr(module, "DATA", data)
        monkeypatch.setattr(module, "good_reply", _reply)
    # The keys that a thread has asked for, and the number of the requests for each.
    by_threads, counts = set[str](), defaultdict[str, int](int)

    async def answer(peer: Peer, request: Request) -> None:
        if request.verb == "list":
            await peer.send(_reply(request).with_body(page_of(*((key, len(data)) for key in sorted(_KEYS)))).encode())
            return
        if "x-thread" in request.headers:
            by_threads.add(request.key)
        counts[request.key] += 1
        peer.hostile.hostile_replies = counts[request.key]  # a row that is bad once is so for each key
        row = _BAD.get(request.key) if peer.hostile.accept is None else None
        await (hostile.good if row is None else row.answer)(peer, request)

    options = ("--cache", str(tmp_path / "cache"), "--cache-min-free", "0") if tier else ()
    async with serving() as server:
        server.misbehave(answer, accept=None, context="good")
        await trio.to_thread.run_sync(_read_all, server.url, data, by_threads, options)


def _reply(request: Request) -> Reply:
    """Return what S3 replies, also to a GET without Range."""
    reply = _RANGED(request)
    is_whole = request.verb == "get" and "range" not in request.headers
    return reply.with_status("200 OK").without("Content-Range") if is_whole else reply


_RANGED = hostile.good_reply


def _read_all(endpoint_url: str, data: bytes, by_threads: set[str], options: Sequence[str]) -> None:
    """Have a thread meet each row; read then from the tier, if there is one, what the mount has kept.

    A row that may end by a deadline has a short one. A busy machine may then fail any read; the others have a long one.
    """
    good = iter(_KEYS[len(_BAD) :])
    for deadline_s in ("60", "3"):
        is_short = deadline_s == "3"
        bad = {key: row for key, row in _BAD.items() if (Ending.EIO in row.get) == is_short}
        words = ("--part-size", "1MiB", "--read-deadline-s", deadline_s, *options)
        with mounted(f"s3://{BUCKET}", endpoint_url, *words, run_by=(sys.executable, "-c", _EAGER)) as mount:
            worker = mount.worker()

            def is_armed(place: Path = mount.path, allowed: set[int] = {0, errno.EIO} if is_short else {0}) -> bool:
                key = next(good)
                assert errno_of(_read, place / key, data) in allowed
                return key in by_threads

            for key, row in bad.items():
                allowed = {ERRNOS[ending] for ending in row.get}
                wait_until(is_armed)
                assert errno_of(_read, mount.path / key, data) in allowed, row.name
                if 0 in allowed:
                    assert errno_of(_read, mount.path / key, data) in allowed, row.name
            assert mount.worker() == worker
            assert "Traceback" not in mount.log
    missed = [row.name for key, row in _BAD.items() if key not in by_threads]
    # The client gets the first part of a large file, and may fail before a thread gets another one.
    assert len(missed) < len(_BAD) // 2 if len(data) > 1 << 20 else missed == [], missed


def _read(path: Path, data: bytes) -> None:
    """Read a file whole, past what the kernel keeps."""
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert b"".join(iter(lambda: file.read(1 << 20), b"")) == data

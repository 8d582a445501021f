"""Parts that threads get, or leave to the client."""

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from itertools import repeat
from math import inf
from time import perf_counter
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import create_autospec

import pytest
import trio
import trio.testing

from fastfuse.filesystem.kernel.fuse import direct_reads as kernel_reads
from fastfuse.filesystem.kernel.in_hand import ReadsInHand
from fastfuse.filesystem.serving import direct_files as module
from fastfuse.filesystem.serving.direct_files import DirectFiles
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client

REF = ObjectRef("bucket", "p/a b", 1 << 20, '"etag"')
SMALL = ObjectRef("bucket", "p/small", 8, '"e"')


class Threads:
    """What stands in for `direct_reads` does: whatever is begun has ended as `outcome` says."""

    def __init__(self) -> None:
        answers = {"may_get_part": True, "held_ahead": (0, 0), "served": (), "returned": (), "refused": errno.EAGAIN}
        self.module = create_autospec(kernel_reads)
        self.module.configure_mock(**{f"{name}.return_value": answer for name, answer in answers.items()})
        for name in ("start", "is_armed", "arm", "disarm", "get_part", "parts"):
            getattr(self.module, name).side_effect = getattr(self, name)
        self.begun: list[bytes] = []
        self.armed = dict[str, Any]()
        self.outcome = True, 206
        self.numbers: Iterator[int] = repeat(7)
        self._ended: list[tuple[int, bool, int, float, bool]] = []
        self.fd = -1

    def start(self, _device: int, returned_fd: int, _threads: int) -> None:
        self.fd = returned_fd

    def is_armed(self) -> bool:
        return bool(self.armed)

    def arm(self, **way: object) -> None:
        self.armed = way

    def disarm(self) -> None:
        self.armed = {}

    def get_part(self, path: bytes, _etag: bytes, _size: int, _start: int, data: memoryview) -> int:
        self.begun.append(path)
        data[:] = b"x" * len(data)
        number = next(self.numbers)
        self._ended.append((number, *self.outcome, 0.01, True))
        os.eventfd_write(self.fd, 1)
        return number

    def parts(self) -> list[tuple[int, bool, int, float, bool]]:
        ended, self._ended = self._ended, []
        return ended


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    threads = Threads()
    monkeypatch.setattr(module, "direct_reads", threads.module)
    monkeypatch.setattr(module, "TASK_BYTES", 8)
    return threads


class Place:
    def __init__(self, files: DirectFiles, left: list[tuple[int, str, str]], checked: list[dict[str, object]]) -> None:
        self.files, self.left, self.checked = files, left, checked

    async def get(self, ref: ObjectRef = REF) -> bytes | None:
        """Return a part; None if the client has to get it."""
        got, is_there = list[Buffer | None](), trio.Event()

        def done(data: Buffer | None) -> None:
            got.append(data)
            is_there.set()

        if not self.files.begin(ref, 8, 24, done):
            return None
        await is_there.wait()
        return None if got[0] is None else bytes(got[0])


@pytest.fixture
def place(threads: Threads) -> Place:
    left, checked = list[tuple[int, str, str]](), list[dict[str, object]]()
    client: Any = SimpleNamespace(
        max_connections=8, count_in_vain=lambda *it: left.append(it), count_direct=lambda *_, **it: checked.append(it)
    )
    reads: Any = SimpleNamespace(in_hand=ReadsInHand())
    engine: Any = SimpleNamespace(fetches=SimpleNamespace(), fetch_small_by=id)
    gets: Any = SimpleNamespace(begin=lambda *_: 0, end=lambda _: None)
    files = DirectFiles(
        reads, engine, client, gets, -1, lambda size: memoryview(bytearray(size)), most_threads=8, tier=None
    )
    files._source = "bucket", "p/"
    return Place(files, left, checked)


async def test_a_part_is_got_below_the_prefix_and_nothing_else_is(
    threads: Threads, place: Place, nursery: trio.Nursery
) -> None:
    nursery.start_soon(place.files._hear, nursery)
    assert await place.get() == b"x" * 16
    assert threads.begun == [b"a%20b"]
    others = ("other", "p/a", '"e"'), ("bucket", "q/a", '"e"'), ("bucket", "p/a", "e"), ("bucket", "p/a", '"e\r\n"')
    for bucket, key, etag in others:
        assert await place.get(ObjectRef(bucket, key, 1 << 20, etag)) is None
    assert len(threads.begun) == 1


@pytest.mark.parametrize(
    ("since_s", "counted_s"),
    [(0.1, -inf), (16.0, 16.0), (3600.0, 30.0)],
    ids=["at once", "dripping", "stopped"],
)
async def test_what_a_get_that_drips_took_counts_towards_the_deadline_of_its_read(
    threads: Threads, place: Place, nursery: trio.Nursery, *, since_s: float, counted_s: float
) -> None:
    """Semantics D5: the client has what is left."""
    answered, is_asked = list[float](), trio.Event()

    async def answer(_request: object, *, came_s: float = inf) -> None:
        await trio.lowlevel.checkpoint()
        answered.append(came_s)
        is_asked.set()

    files: Any = place.files
    files._reads.answer, files._engine.began = answer, lambda _: None
    files._client.session = SimpleNamespace(config=ConnectionConfig(deadline_s=60))
    threads.module.returned.return_value = [(1, 2, 0, 8, 3, -5, 0, since_s)]
    before_s = perf_counter()
    nursery.start_soon(place.files._hear, nursery)
    os.eventfd_write(threads.fd, 1)
    await is_asked.wait()
    assert before_s - counted_s <= answered[0] <= perf_counter() - counted_s


async def test_threads_are_armed_again_after_trouble_while_the_resolver_fails(
    threads: Threads, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up, is_down = socket.getaddrinfo, False

    def resolve(host: bytes | str, *asked: Any) -> list[Any]:  # noqa: ANN401
        if host == b"name.test" and is_down:
            raise socket.gaierror(socket.EAI_AGAIN, "the resolver does not answer")
        return look_up("127.0.0.1" if host == b"name.test" else host, *asked)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    config = ConnectionConfig(
        endpoint_url="http://name.test:80", region="us-east-1", sign_request=False, force_path_style=True
    )
    async with aclosing(S3Client(S3Session(config))) as client:
        client._routes.add("bucket", "us-east-1")
        metadata = SimpleNamespace(bucket="bucket", key_prefix="p/")
        files, reads = place.files, cast(Any, place.files._reads)
        files._client, reads.table = client, SimpleNamespace(metadata=metadata)
        await files.arm()
        first = threads.armed
        is_down, client._retries.is_in_trouble = True, True
        await files.arm()
        assert not threads.armed
        client._retries.is_in_trouble = False
        await files.arm()
        assert threads.armed["addresses"] == first["addresses"]
        assert threads.armed["part_limit_s"] == config.deadline_s


async def test_the_log_says_that_the_system_has_no_room_for_threads(
    place: Place, caplog: pytest.LogCaptureFixture, nursery: trio.Nursery
) -> None:
    nursery.start_soon(place.files._look)
    await trio.testing.wait_all_tasks_blocked()
    reason = "Resource temporarily unavailable; see ulimit -u and the cgroup's pids.max"
    assert caplog.messages == [f"small files are read more slowly: {reason}"]


async def test_after_failures_in_a_row_the_client_gets_parts_for_a_while_that_grows(
    threads: Threads, place: Place, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    now_s = 100.0
    monkeypatch.setattr(module, "monotonic", lambda: now_s)
    nursery.start_soon(place.files._hear, nursery)
    threads.outcome = False, 200
    for _ in range(2):
        assert await place.get() is None
    threads.outcome = True, 206
    assert await place.get() is not None  # not in a row
    threads.outcome = False, 200
    for rest_s in (5, 10):
        for _ in range(5):
            assert await place.get() is None
        begun = len(threads.begun)
        now_s += rest_s - 1
        await place.get()
        assert len(threads.begun) == begun
        now_s += 1
    assert place.left == [(200, "bucket", REF.key)] * 8
    threads.outcome = True, 206
    assert await place.get() is not None


async def test_failures_together_make_one_rest(threads: Threads, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, ended = 100.0, list[Buffer | None]()
    monkeypatch.setattr(module, "monotonic", lambda: now_s)
    threads.outcome, threads.numbers = (False, 0), iter(range(100))
    for _ in range(48):
        assert place.files.begin(REF, 8, 24, ended.append)
    place.files._end_parts()
    assert ended == [None] * 48
    assert not place.files.begin(REF, 8, 24, ended.append)
    now_s += 5
    assert place.files.begin(REF, 8, 24, ended.append)


async def test_all_of_a_small_object_is_got_and_counts_its_checksum_and_what_is_said_of_it_alone_makes_no_rest(
    threads: Threads, place: Place
) -> None:
    ended = list[Buffer | None]()

    def ends() -> bool:
        is_begun = place.files.begin(SMALL, 0, 8, ended.append)
        place.files._end_parts()
        return is_begun

    assert not place.files.begin(replace(SMALL, size_bytes=9), 0, 9, ended.append)
    assert ends()
    for ref, start, end in ((SMALL, 0, 7), (REF, 8, 24)):
        assert place.files.begin(ref, start, end, ended.append)
        place.files._end_parts()
    assert place.checked == [
        {"is_checked": True, "key": "p/small"},
        {"is_checked": None, "key": "p/small"},
        {"is_checked": None, "key": "p/a b"},
    ]
    threads.outcome = False, 412
    for _ in range(5):
        assert ends()
    assert [None if data is None else bytes(data) for data in ended] == [b"x" * 8, b"x" * 7, b"x" * 16, *[None] * 5]
    threads.outcome = False, 0
    for _ in range(3):
        assert ends()
    assert not ends()


@pytest.mark.parametrize("fails", [REF, SMALL])
async def test_ranges_rest_whatever_becomes_of_whole_objects_and_these_whatever_becomes_of_ranges(
    threads: Threads, place: Place, fails: ObjectRef
) -> None:
    ended = list[Buffer | None]()

    def ends(ref: ObjectRef, outcome: tuple[bool, int]) -> bool:
        threads.outcome = outcome
        is_begun = place.files.begin(ref, 0, min(16, ref.size_bytes), ended.append)
        place.files._end_parts()
        return is_begun

    other = SMALL if fails is REF else REF
    for _ in range(3):
        assert ends(fails, (False, 0))
        assert ends(other, (True, 200))
    assert not ends(fails, (True, 200))
    assert ends(other, (True, 200))


async def test_a_part_that_was_begun_but_could_not_be_noted_ends_alone(
    threads: Threads, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = list[Buffer | None]()

    def no_memory(*_: object) -> int:
        raise MemoryError

    threads.numbers = iter((1, 2))
    with monkeypatch.context() as patched:
        patched.setattr(place.files._gets, "begin", no_memory)
        with pytest.raises(MemoryError):
            place.files.begin(REF, 8, 24, ended.append)
    assert place.files.begin(REF, 8, 24, ended.append)
    place.files._end_parts()
    assert len(ended) == 1


def grown_bytes(calls: str) -> int:
    """Return how much larger `calls` of `direct_reads` make a process."""
    script = f"""
from pathlib import Path
from fastfuse.filesystem.kernel.fuse import direct_reads

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

before_bytes = resident_bytes()
{calls}
print(resident_bytes() - before_bytes)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_what_is_remembered_of_the_tier_takes_no_memory_after_it_was_forgotten_however_often() -> None:
    assert grown_bytes("for _ in range(3): direct_reads.forget_kept()") < 8 << 20


def test_marks_of_ever_more_inodes_take_memory_only_for_those_that_are_marked() -> None:
    calls = """
direct_reads.keep_in(0, -1, -1, 0, 1.0)
direct_reads.cover(3)
direct_reads.claim(1)
for times in range(1, 65):
    direct_reads.cover(times << 20)
# Of a file that is marked no thread reads what the tier keeps.
assert [direct_reads.may_read_kept(inode, 1) for inode in (1, 2)] == [False, True]
"""
    # A move of all would write 64 MiB.
    assert grown_bytes(calls) < 8 << 20


def test_threads_that_none_of_its_parts_will_leave_keep_nothing_from_being_fetched_ahead() -> None:
    """None is free, as where all read from a disk that hangs."""
    kernel_reads.start(-1, -1, 0)
    kernel_reads.arm(
        addresses=[bytes(16)], host=b"host", port=1, is_address=False, tls=0, texts=(b"",) * 6, for_s=60.0,
        patience_s=1.0, part_patience_s=1.0, part_limit_s=1.0, identity_begin=b"",
    )  # fmt: skip
    assert kernel_reads.is_armed()
    assert not kernel_reads.may_get_part()
    kernel_reads.disarm()

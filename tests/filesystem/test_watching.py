"""Watchers of a worker's reads: what they are shown, and that none delays a read."""

import json
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from time import perf_counter
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from fastfuse.errors import FastfuseError, MountError
from fastfuse.filesystem.kernel.fuse import pyfuse3
from fastfuse.filesystem.kernel.in_hand import Read
from fastfuse.filesystem.processes.children import heard
from fastfuse.filesystem.talking.watching import Access, RecordedReader, Trace, WatchedReads, process_name
from fastfuse.objects import ObjectRef
from tests.filesystem.waiting import wait_until

FAILS_AT = 1 << 40
INODE, PID = 7, 4711


def access(offset: int = 0) -> Access:
    return Access(100.5, 0, 7, offset, 4096, "hit", 0.0015, 0)


class FakeEngine:
    def find(self, inode: int, ref: object, offset: int, size_bytes: int) -> str:
        return "hit" if offset else "ahead"

    def pattern(self, inode: int) -> tuple[str, int]:
        return "sequential", 8 << 20

    def memory(self) -> dict[str, int]:
        return {"in flight": 1, "unread": 2, "read": 3}


def serving(path: str = "shards/a.tar") -> SimpleNamespace:
    table = SimpleNamespace(ref=lambda inode: ("ref", inode), path=lambda _inode: path)
    return SimpleNamespace(watched=None, table=table, under_way={})


async def read(inode: int, offset: int, size_bytes: int) -> bytes:
    await trio.lowlevel.checkpoint()
    if offset == FAILS_AT:
        raise pyfuse3.FUSEError(5)
    return b"x" * size_bytes


@asynccontextmanager
async def watched(
    operations: SimpleNamespace, **asked: object
) -> AsyncIterator[tuple[WatchedReads, trio.SocketStream]]:
    """One watcher, once it is served; it hangs up at the end, and nobody watches then."""
    ours, theirs = socket.socketpair()
    reads = WatchedReads(cast(Any, FakeEngine()), cast(Any, operations), RecordedReader(cast(Any, None)))
    client = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reads.serve, theirs, {"request": "trace", **asked})
        async with client:
            yield reads, client
    assert operations.watched is None


async def lines_of(client: trio.SocketStream, count: int) -> list[dict[str, Any]]:
    received = b""
    while received.count(b"\n") < count:
        received += await client.receive_some()
    return [json.loads(line) for line in received.splitlines()]


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "60"]) as process:
        wait_until(lambda: process_name(process.pid) == "sleep")
        yield process
        process.kill()


@pytest.mark.parametrize("asked", ["trace", "top"])
async def test_a_process_that_has_ended_since_it_read_has_its_name(
    asked: str, sleeper: "subprocess.Popen[bytes]", autojump_clock: MockClock
) -> None:
    async with watched(serving(), request=asked) as (reads, client):
        await lines_of(client, 1)
        await reads.read(Read(INODE, 0, 3), sleeper.pid, read)
        sleeper.kill()
        sleeper.wait()
        (line,) = await lines_of(client, 1)
    assert line.get("streams", [line])[0]["process"] == "sleep"


async def test_one_that_does_not_read_loses_lines_and_delays_nobody() -> None:
    count = 20_000
    operations = serving("a" * 1000)
    async with watched(operations) as (reads, client):
        await lines_of(client, 1)
        for offset in range(count):
            await reads.read(Read(INODE, offset or 1, 0), PID, read)
        shown: list[dict[str, Any]] = []
        rest = b""
        with trio.fail_after(60):
            while sum(line.get("lost", 1) for line in shown) < count:
                *lines, rest = (rest + await client.receive_some()).split(b"\n")
                shown += map(json.loads, lines)
        assert sum(line.get("lost", 1) for line in shown) == count
        assert 0 < max(line.get("lost", 0) for line in shown) < count


async def test_lost_reads_are_counted_with_those_that_the_sample_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastfuse.filesystem.talking.watching._MOST_PENDING", 1)
    trace = Trace(WatchedReads(cast(Any, None), cast(Any, serving()), cast(Any, None)), sample=2)
    for offset in range(6):
        trace.note(access(offset))
    _, lost = (json.loads(line) for line in (await trace.next_lines()).splitlines())
    assert lost == {"lost": 4}


@pytest.mark.parametrize(
    ("asked", "most_watchers"),
    [
        *(({"sample": sample}, 8) for sample in (0, -1, "1", None, True, 1.5)),
        *(({"request": "top", "every_s": every_s}, 8) for every_s in (0, 0.01, 1e9, "1", None, True, float("nan"))),
        ({}, 0),
    ],
)
async def test_a_watcher_that_asks_for_nonsense_or_is_one_too_many_is_refused(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, object], most_watchers: int
) -> None:
    monkeypatch.setattr("fastfuse.filesystem.talking.watching._MOST_WATCHERS", most_watchers)
    async with watched(serving(), **asked) as (_, client):
        with pytest.raises(MountError, match="the reads are not shown"):
            heard(await client.receive_some())


async def test_one_that_is_gone_before_it_is_refused_ends_nothing() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    reads = WatchedReads(cast(Any, FakeEngine()), cast(Any, serving()), RecordedReader(cast(Any, None)))
    await reads.serve(theirs, {"request": "trace", "sample": 0})


async def test_files_that_are_read_are_summed_up_for_each_interval(autojump_clock: MockClock) -> None:
    operations = serving()
    async with watched(operations, request="top", every_s=5) as (reads, client):
        await lines_of(client, 1)
        await reads.read(Read(INODE, 0, 100), PID, read)
        await reads.read(Read(INODE, 100, 50), PID, read)
        with pytest.raises(pyfuse3.FUSEError):
            await reads.read(Read(INODE + 1, FAILS_AT, 50), PID, read)
        operations.under_way[1] = INODE + 2, PID, perf_counter()
        (line,) = await lines_of(client, 1)
        del operations.under_way[1]
        await reads.read(Read(INODE + 2, 0, 10), PID, read)
        assert line["stream_count"] == 3
        streams = {stream["position"]: stream for stream in line["streams"]}
        whole, failed, waiting = streams[150], streams[FAILS_AT + 50], streams[0]
        assert (whole["reads"], whole["bytes"], whole["waiting_s"]) == (2, 150, 0)
        assert (whole["pid"], whole["path"], whole["pattern"], whole["window"]) == (
            *(4711, "shards/a.tar"), *("sequential", 8 << 20)
        )  # fmt: skip
        assert (failed["reads"], failed["bytes"]) == (1, 0)
        assert (waiting["reads"], waiting["pid"]) == (0, 4711)
        assert waiting["waiting_s"] > 0
        assert line["memory"] == {"in flight": 1, "unread": 2, "read": 3}
        assert (line["gets"], line["gets_running"]) == ([], 0)
        # The next interval begins with nothing but what was asked before its begin.
        (line,) = await lines_of(client, 1)
        assert [stream["reads"] for stream in line["streams"]] == [1]


async def test_the_slowest_gets_are_remembered_for_a_while(autojump_clock: MockClock) -> None:
    class Slow:
        async def get(self, ref: ObjectRef, start: int, end: int) -> bytes:
            await trio.sleep(end)
            if start:
                raise FastfuseError("failed")
            return b""

    gets = RecordedReader(cast(Any, Slow()))
    ref = ObjectRef("bucket", "key", 100, '"etag"')
    async with trio.open_nursery() as nursery:
        for end in (3, 1, 2, *[0.5] * 20):
            nursery.start_soon(gets.get, ref, 0, cast(int, end))
        nursery.start_soon(gets.get, ref, 0, 50)
        await trio.sleep(4)
        assert [(round(took_s), runs) for took_s, *_, runs in gets.slowest()][:4] == [
            *((4, True), (3, False)), *((2, False), (1, False))
        ]  # fmt: skip
        assert len(gets.slowest()) == 8
        assert gets.running == 1
    assert gets.running == 0
    with pytest.raises(FastfuseError):
        await gets.get(ref, 1, 7)
    assert [round(took_s) for took_s, *_ in gets.slowest()][:2] == [50, 7]
    await trio.sleep(30)
    assert [round(took_s) for took_s, *_ in gets.slowest()] == [50, 7]
    await trio.sleep(60)
    assert gets.slowest() == []
    await trio.sleep(3600)
    gets.note(5.0, 100, INODE, str)  # the first for an hour
    assert gets.slowest() == [(5.0, str(INODE), 0, 100, False)]


async def test_a_file_that_a_refresh_has_taken_away_has_no_path_any_more() -> None:
    operations = serving()

    def gone(_inode: int) -> str:
        raise FastfuseError("stale")

    operations.table.path = operations.table.ref = gone
    async with watched(operations) as (reads, client):
        await lines_of(client, 1)
        await reads.read(Read(INODE, 1, 3), PID, read)
        (line,) = await lines_of(client, 1)
        assert (line["path"], line["found"]) == (f"(inode {INODE})", "waited")

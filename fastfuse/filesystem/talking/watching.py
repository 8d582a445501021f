"""Shows a worker's reads and GETs to those who watch them: `fastfuse trace` and `fastfuse top`.

A watcher is a connection of the control socket that the supervisor has passed on. The read path pays for it only while
there is one (`Reads.watched`). Nothing here waits for a watcher in a read: each read is noted in a queue of
bounded length, which a task of its own writes out. What does not fit in the queue is counted, and the watcher is told.
"""

import errno
import heapq
import json
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from time import perf_counter, time
from typing import Any, NamedTuple, Protocol

import trio

from fastfuse.errors import FastfuseError, MountError
from fastfuse.filesystem.kernel.fuse import pyfuse3
from fastfuse.filesystem.kernel.in_hand import Read
from fastfuse.filesystem.processes.children import error_message
from fastfuse.filesystem.talking.control import TOP
from fastfuse.filesystem.talking.hint_taker import cancel_when_gone
from fastfuse.index.inodes.table import InodeTable
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.readahead import ReadEngine
from fastfuse.s3.base import RangeReader

_log = logging.getLogger(__name__)

_MOST_WATCHERS = 16
# Reads that may wait to be written out, for each watcher: 2 MB.
_MOST_PENDING = 16_384
# Lines are made so many at a time, which takes a millisecond, and so long after the first.
_BATCH_LINES = 128
_GATHER_S = 0.02
# A table raises these for an inode that a refresh has taken away, or for a damaged row.
_NO_FILE = (FastfuseError, LookupError, ValueError)
# A view counts so many files in an interval, and shows those with the longest waits.
_MOST_STREAMS = 4096
_SHOWN = 64
# `RecordedReader` keeps so many of the slowest GETs of this time, and of the time before it.
_KEPT_GETS = 8
_PERIOD_S = 30.0

# The processes that read last, whose names are remembered when they have ended.
_MOST_NAMES = 1024

# The reads that have not ended, by a number: inode, process, and begin on the clock of `perf_counter`.
UnderWay = dict[int, tuple[int, int, float]]


class Access(NamedTuple):
    """A read that has ended: `at` is its begin in seconds since 1970, `found` as `ReadEngine.find` says."""

    at: float
    pid: int
    inode: int
    offset: int
    size_bytes: int
    found: str
    took_s: float
    error: int


class RecordedReader:
    """A `RangeReader` that passes everything on to another one."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader
        self._numbers = count()
        # The begin, key and range of each GET, by its number.
        self._running: dict[int, tuple[float, str, int, int]] = {}
        # Seconds, key and range of the slowest of this period and of the one before, as heaps.
        self._slowest: list[tuple[float, str, int, int]] = []
        self._slowest_before: list[tuple[float, str, int, int]] = []
        self._period_ends_s = 0.0

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        """Read a range as `RangeReader.get` does."""
        number = self.begin(ref, start, end)
        try:
            return await self._reader.get(ref, start, end)
        finally:
            self.end(number)

    def begin(self, ref: ObjectRef, start: int, end: int) -> int:
        """Note the begin of a GET; return a number for `end`."""
        number = next(self._numbers)
        self._running[number] = trio.current_time(), ref.key, start, end
        return number

    def end(self, number: int) -> None:
        """Note the end of a GET."""
        began_s, key, start, end = self._running.pop(number)
        now_s = trio.current_time()
        self._end_period(now_s)
        self._note(now_s - began_s, key, start, end)

    def note(self, took_s: float, size_bytes: int, inode: int, key: Callable[[int], str]) -> None:
        """Note a GET of all of a small object that was made elsewhere; `key` returns the key of an inode."""
        self._end_period(trio.current_time())
        if len(self._slowest) < _KEPT_GETS or took_s > self._slowest[0][0]:
            self._note(took_s, key(inode), 0, size_bytes)

    def _note(self, took_s: float, key: str, start: int, end: int) -> None:
        heapq.heappush(self._slowest, (took_s, key, start, end))
        if len(self._slowest) > _KEPT_GETS:
            heapq.heappop(self._slowest)

    @property
    def running(self) -> int:
        """The number of GETs that run, those that wait to be tried again included."""
        return len(self._running)

    def slowest(self) -> list[tuple[float, str, int, int, bool]]:
        """Return the slowest GETs of the last half minute or more, slowest first.

        Each has its seconds, its key, its range, and whether it still runs.
        """
        now_s = trio.current_time()
        self._end_period(now_s)
        running = [(now_s - began_s, key, start, end, True) for began_s, key, start, end in self._running.values()]
        ended = [(*get, False) for get in (*self._slowest, *self._slowest_before)]
        return heapq.nlargest(_KEPT_GETS, running + ended)

    async def aclose(self) -> None:
        await self._reader.aclose()

    def _end_period(self, now_s: float) -> None:
        if now_s >= self._period_ends_s:
            is_next = now_s < self._period_ends_s + _PERIOD_S
            self._slowest_before, self._slowest = (self._slowest if is_next else []), []
            self._period_ends_s = now_s + _PERIOD_S


class Serving(Protocol):
    """The part of `filesystem.serving.reads` that is used here."""

    watched: "WatchedReads | None"

    under_way: UnderWay

    @property
    def table(self) -> InodeTable: ...


class WatchedReads:
    """The watchers of one worker."""

    def __init__(self, engine: ReadEngine, reads: Serving, gets: RecordedReader) -> None:
        self.engine = engine
        self.reads = reads
        self.gets = gets
        self._watchers: list[Trace | StreamView] = []
        # The names that processes had as they read.
        self._name_before = lru_cache(_MOST_NAMES)(process_name)

    async def read(self, asked: Read, pid: int, read: Callable[[int, int, int], Awaitable[Buffer]]) -> Buffer:
        """Return what `read` does, and tell the watchers of it."""
        (inode, offset, size_bytes), at, began_s = asked, time(), perf_counter()
        found, failed = self._find(inode, offset, size_bytes), 0
        try:
            return await read(inode, offset, size_bytes)
        except pyfuse3.FUSEError as error:
            failed = error.errno
            raise
        finally:
            self.note(Access(at, pid, inode, offset, size_bytes, found, perf_counter() - began_s, failed))

    def note(self, access: Access) -> None:
        """Tell the watchers of a read that ends now, or was answered elsewhere."""
        # A read that ends now is not answered yet, so its process waits.
        self._name_before(access.pid)
        for watcher in self._watchers:
            watcher.note(access)

    async def serve(self, connection: socket.socket, asked: Mapping[str, Any]) -> None:
        """Show the reads to a client, as it `asked`, until it hangs up. Nothing that it does ends the worker."""
        with trio.socket.from_stdlib_socket(connection) as client, suppress(OSError):
            watcher = self._watcher(asked)
            if watcher is None or len(self._watchers) >= _MOST_WATCHERS:
                hint = f"see docs/OPERATIONS.md for what may be asked; at most {_MOST_WATCHERS} may watch"
                await client.send(error_message(MountError("the reads are not shown", hint=hint)))
                return
            self._watchers.append(watcher)
            self.reads.watched = self
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancel_when_gone, client, nursery.cancel_scope)
                    await _send(client, b'{"fastfuse": 1}\n')
                    while True:
                        await _send(client, await watcher.next_lines())
            except* OSError:
                pass  # it has hung up
            except* Exception:  # noqa: BLE001 - a watcher must not end the worker
                _log.exception("a watcher is shown no more for an unforeseen reason; the mount goes on")
            finally:
                self._watchers.remove(watcher)
                if not self._watchers:
                    self.reads.watched = None

    def _watcher(self, asked: Mapping[str, Any]) -> "Trace | StreamView | None":
        """Return what a client asked for, or None if that is nonsense."""
        sample, every_s = asked.get("sample", 1), asked.get("every_s", 1.0)
        if type(sample) is not int or sample < 1 or type(every_s) not in {int, float} or not 0.1 <= every_s <= 3600:
            return None
        if asked["request"] == TOP:
            return StreamView(self, every_s)
        return Trace(self, sample)

    def name(self, pid: int) -> str:
        """Return the name that a process has now, or else had."""
        return process_name(pid) or self._name_before(pid)

    def _find(self, inode: int, offset: int, size_bytes: int) -> str:
        try:
            return self.engine.find(inode, self.reads.table.ref(inode), offset, size_bytes)
        except _NO_FILE:
            return "waited"

    def path(self, inode: int) -> str:
        """Return the path of an inode, or what stands for it if a refresh has taken it away."""
        try:
            return self.reads.table.path(inode)
        except _NO_FILE:
            return f"(inode {inode})"


class Trace:
    """The reads that wait to be shown to one watcher, and how many were lost."""

    def __init__(self, watched: WatchedReads, sample: int) -> None:
        """Show one of `sample` reads."""
        self._watched = watched
        self._sample = sample
        self._pending: deque[Access] = deque()
        self._seen = self._lost = 0
        self._some = trio.Event()

    def note(self, access: Access) -> None:
        """Keep the read, or count it as lost if as many wait as may."""
        self._seen += 1
        if self._seen % self._sample:
            return
        if len(self._pending) >= _MOST_PENDING:
            self._lost += 1
            return
        self._pending.append(access)
        self._some.set()

    async def next_lines(self) -> bytes:
        """Return lines of JSON, once there are some: of reads, and ``{"lost": N}`` where some are missing."""
        if not self._pending:
            self._some = trio.Event()
            await self._some.wait()
            await trio.sleep(_GATHER_S)
        lost, self._lost = self._lost, 0
        lines = list(self._lines())
        if lost:
            lines.append(json.dumps({"lost": lost * self._sample}))
        return "".join(f"{line}\n" for line in lines).encode()

    def _lines(self) -> Iterator[str]:
        names: dict[int, str] = {}
        for _ in range(min(_BATCH_LINES, len(self._pending))):
            access = self._pending.popleft()
            if access.pid not in names:
                names[access.pid] = self._watched.name(access.pid)
            shown = {
                "at": access.at,
                "pid": access.pid,
                "process": names[access.pid],
                "path": self._watched.path(access.inode),
                "offset": access.offset,
                "size": access.size_bytes,
                "us": round(access.took_s * 1e6),
                "found": access.found,
            }
            if access.error:
                shown["errno"] = errno.errorcode.get(access.error, str(access.error))
            yield json.dumps(shown)


@dataclass(slots=True)
class _Stream:
    """The reads of one file in one interval."""

    pid: int = 0
    position: int = 0
    reads: int = 0
    read_bytes: int = 0
    blocked_s: float = 0.0


class StreamView:
    """A watcher of reads that is told once in each interval which files were read, and how."""

    def __init__(self, watched: WatchedReads, every_s: float) -> None:
        self._watched = watched
        self._every_s = every_s
        self._streams: dict[int, _Stream] = {}

    def note(self, access: Access) -> None:
        """Add a read to those of its file."""
        stream = self._streams.get(access.inode)
        if stream is None:
            if len(self._streams) >= _MOST_STREAMS:
                return
            stream = self._streams[access.inode] = _Stream()
        stream.pid = access.pid
        stream.position = access.offset + access.size_bytes
        stream.reads += 1
        stream.read_bytes += 0 if access.error else access.size_bytes
        # A read that began in an earlier interval has waited for all of this one at most.
        stream.blocked_s += min(access.took_s, self._every_s)

    async def next_lines(self) -> bytes:
        """Return a line of JSON at the end of the interval."""
        await trio.sleep(self._every_s)
        now_s, waiting = perf_counter(), dict[int, float]()
        for inode, pid, began_s in self._watched.reads.under_way.values():
            stream = self._streams.setdefault(inode, _Stream())
            stream.pid = stream.pid or pid
            waiting[inode] = max(waiting.get(inode, 0.0), now_s - began_s)
            stream.blocked_s += min(now_s - began_s, self._every_s)
        streams, self._streams = self._streams, {}
        longest = sorted(streams, key=lambda inode: (streams[inode].blocked_s, streams[inode].read_bytes), reverse=True)
        shown = [self._shown(inode, streams[inode], waiting.get(inode, 0.0)) for inode in longest[:_SHOWN]]
        gets = [
            {"seconds": took_s, "key": key, "start": start, "end": end, "runs": runs}
            for took_s, key, start, end, runs in self._watched.gets.slowest()
        ]
        line = {
            "every_s": self._every_s,
            "streams": shown,
            "stream_count": len(streams),
            "gets": gets,
            "gets_running": self._watched.gets.running,
            "memory": dict(self._watched.engine.memory()),
        }
        return json.dumps(line).encode() + b"\n"

    def _shown(self, inode: int, stream: _Stream, waiting_s: float) -> dict[str, Any]:
        pattern, window_bytes = self._watched.engine.pattern(inode)
        return {
            "path": self._watched.path(inode),
            "position": stream.position,
            "pid": stream.pid,
            "process": self._watched.name(stream.pid),
            "pattern": pattern,
            "window": window_bytes,
            "reads": stream.reads,
            "bytes": stream.read_bytes,
            "blocked_s": stream.blocked_s,
            "waiting_s": waiting_s,
        }


def process_name(pid: int) -> str:
    """Return the name of a process or thread, or "" if it is gone, or in another namespace.

    The name alone: the kernel would wait for the memory of the process to show its command line, and that process
    may wait for this mount.
    """
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n") if pid else ""
    except OSError:
        return ""


async def _send(client: trio.socket.SocketType, data: bytes) -> None:
    while data:
        data = data[await client.send(data) :]

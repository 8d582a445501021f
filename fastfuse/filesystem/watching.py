"""Shows a worker's reads to those who watch them: `fastfuse trace` and `fastfuse top`.

A watcher is a connection of the control socket that the supervisor has passed on. The read path pays for it only while
there is one (`MountOperations.watched`). Nothing here waits for a watcher in a read: each read is noted in a queue of
bounded length, which a task of its own writes out. What does not fit in the queue is counted, and the watcher is told.
"""

import errno
import json
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from time import perf_counter, time
from typing import Any, Protocol

import trio

from fastfuse.errors import FastfuseError, MountError
from fastfuse.filesystem.access import Access, InHand, process_name
from fastfuse.filesystem.children import error_message
from fastfuse.filesystem.control import TOP
from fastfuse.filesystem.fuse import interposed, pyfuse3
from fastfuse.filesystem.get_record import RecordedReader
from fastfuse.filesystem.hint_taker import cancel_when_gone
from fastfuse.filesystem.stream_view import EngineView, StreamView
from fastfuse.index.inodes.table import InodeTable
from fastfuse.objects import Buffer, ObjectRef

__all__ = ["Trace", "WatchedReads"]

_log = logging.getLogger(__name__)

_INODE_MASK = (1 << interposed.HANDLE_INODE_BITS) - 1
_MOST_WATCHERS = 16
# Reads that may wait to be written out, for each watcher: 2 MB.
_MOST_PENDING = 16_384
# Lines are made so many at a time, which takes a millisecond, and so long after the first.
_BATCH_LINES = 128
_GATHER_S = 0.02
# A table raises these for an inode that a refresh has taken away, or for a damaged row.
_NO_FILE = (FastfuseError, LookupError, ValueError)


class Engine(EngineView, Protocol):
    """The part of the read engine that is used here."""

    def find(self, inode: int, ref: ObjectRef, offset: int, size_bytes: int) -> str:
        """Return ``hit``, ``ahead`` or ``waited``."""
        ...


class Watcher(Protocol):
    """A client's view of the reads."""

    def note(self, access: Access) -> None:
        """Take a read that has ended; never wait and never fail."""
        ...

    async def next_lines(self) -> bytes:
        """Return what to tell the client, once there is something."""
        ...


class Serving(Protocol):
    """The part of `MountOperations` that is used here."""

    watched: "WatchedReads | None"

    @property
    def table(self) -> InodeTable: ...


class WatchedReads:
    """The watchers of one worker."""

    def __init__(self, engine: Engine, operations: Serving, gets: RecordedReader) -> None:
        self._engine = engine
        self._operations = operations
        self._gets = gets
        self._watchers: list[Watcher] = []
        self._numbers = count()
        # The reads that have not ended, while somebody watches.
        self._in_hand: InHand = {}

    async def read(
        self, handle: int, offset: int, size_bytes: int, read: Callable[[int, int, int], Awaitable[Buffer]]
    ) -> Buffer:
        """Return what `read` does, and tell the watchers of it. The `handle` is as `filesystem.interposed` makes it."""
        inode, pid, at, began_s = handle & _INODE_MASK, handle >> interposed.HANDLE_INODE_BITS, time(), perf_counter()
        found, failed, number = self._find(inode, offset, size_bytes), 0, next(self._numbers)
        self._in_hand[number] = inode, pid, began_s
        try:
            return await read(inode, offset, size_bytes)
        except pyfuse3.FUSEError as error:
            failed = error.errno
            raise
        finally:
            del self._in_hand[number]
            self.note(Access(at, pid, inode, offset, size_bytes, found, perf_counter() - began_s, failed))

    def note(self, access: Access) -> None:
        """Tell the watchers of a read that was answered elsewhere."""
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
            self._operations.watched = self
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
                    self._operations.watched = None

    def _watcher(self, asked: Mapping[str, Any]) -> Watcher | None:
        """Return what a client asked for, or None if that is nonsense."""
        sample, every_s = asked.get("sample", 1), asked.get("every_s", 1.0)
        if type(sample) is not int or sample < 1 or type(every_s) not in {int, float} or not 0.1 <= every_s <= 3600:
            return None
        if asked["request"] == TOP:
            return StreamView(self._engine, self._gets, self._path, self._in_hand, every_s=every_s)
        return Trace(self._path, sample)

    def _find(self, inode: int, offset: int, size_bytes: int) -> str:
        try:
            return self._engine.find(inode, self._operations.table.ref(inode), offset, size_bytes)
        except _NO_FILE:
            return "waited"

    def _path(self, inode: int) -> str:
        try:
            return self._operations.table.path(inode)
        except _NO_FILE:
            return f"(inode {inode})"


class Trace:
    """The reads that wait to be shown to one watcher, and how many were lost."""

    def __init__(self, path: Callable[[int], str], sample: int, *, most_pending: int = _MOST_PENDING) -> None:
        """Show one of `sample` reads; `path` returns the path of an inode."""
        self._path = path
        self._sample = sample
        self._most_pending = most_pending
        self._pending: deque[Access] = deque()
        self._seen = self._lost = 0
        self._some = trio.Event()

    def note(self, access: Access) -> None:
        """Keep the read, or count it as lost if as many wait as may."""
        self._seen += 1
        if self._seen % self._sample:
            return
        if len(self._pending) >= self._most_pending:
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
        names: dict[int, str] = {}
        lines = list(self._lines(names))
        if lost:
            lines.append(json.dumps({"lost": lost * self._sample}))
        return "".join(f"{line}\n" for line in lines).encode()

    def _lines(self, names: dict[int, str]) -> Iterator[str]:
        for _ in range(min(_BATCH_LINES, len(self._pending))):
            access = self._pending.popleft()
            if access.pid not in names:
                names[access.pid] = process_name(access.pid)
            shown = {
                "at": access.at,
                "pid": access.pid,
                "process": names[access.pid],
                "path": self._path(access.inode),
                "offset": access.offset,
                "size": access.size_bytes,
                "us": round(access.took_s * 1e6),
                "found": access.found,
            }
            if access.error:
                shown["errno"] = errno.errorcode.get(access.error, str(access.error))
            yield json.dumps(shown)


async def _send(client: trio.socket.SocketType, data: bytes) -> None:
    while data:
        data = data[await client.send(data) :]

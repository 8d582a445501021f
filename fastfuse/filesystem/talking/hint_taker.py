"""Take hints (announced orders of files) from `fastfuse.hints`, in the worker, and pass them on as inodes.

A hint is never trusted. It can make the engine fetch files that exist, as a reader of the mount could, and never more
of them ahead than the engine allows. A client that sends nonsense loses its connection and nothing else.
"""

import logging
import os
import select
import socket
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache

import trio

from fastfuse.filesystem.processes.sockets import (
    REFUSED,
    SERVED,
    TAKEN,
    PathTooLongError,
    hint_prefix,
    listen,
    peer_uid,
    split_paths,
)
from fastfuse.index.inodes.table import InodeTable
from fastfuse.metrics import Counters
from fastfuse.readahead.prefetch import Announcer
from fastfuse.repeats import RepeatedFailures

_log = logging.getLogger(__name__)

# A process for each GPU of a large machine, and a few evaluations. Each costs a task, an epoll descriptor and a buffer.
_MAX_CONNECTIONS = 64
# The most of each user but root and the one who mounted, and of all of these: those two always find a place.
_MAX_OF_STRANGER, _MAX_OF_STRANGERS = 16, 48

# Further connections wait in the kernel, as do those that come while no worker lives.
_BACKLOG = 128

# Some 300 paths. The kernel holds the rest, and then the sender waits.
_RECEIVE_BYTES = 16 << 10

# Looking a path up in a table of a million takes 5 to 7 µs: a batch delays no read by a millisecond. One is looked up
# in each turn of the loop, whatever the number of connections.
_BATCH_PATHS = 64

# The pause after each unknown path, over all connections: endless nonsense takes a tenth of the worker's time.
_UNKNOWN_PAUSE_S = 1e-4

# After a client of another user was refused, and after an accept that failed (too many open files, most likely).
_REFUSED_PAUSE_S = 0.01
_ACCEPT_PAUSE_S = 1.0

_PATHS_HINT = "Announce paths below the mountpoint, or relative to it."

# Directories whose inode is cached for each table: a data set has a folder for each of its classes.
_MAX_REMEMBERED_DIRECTORIES = 4096


def listen_for_hints(device: str) -> socket.socket:
    """Return the hint socket of the mount with this ``major:minor``, for the supervisor: it outlives workers."""
    return listen(hint_prefix(device), backlog=_BACKLOG)


class HintTaker:
    """The clients that announce orders to one worker.

    Invariant: an order that was not taken whole is withdrawn when its connection ends. The last whole one of each user
    stands until another one of that user names a file, because its sender may exit long before its files are opened. It
    ends with the worker.
    """

    def __init__(
        self,
        table: Callable[[], InodeTable],
        orders: Callable[[], Announcer],
        counters: Counters,
        *,
        trusted_uids: frozenset[int],
        takes_all: bool,
    ) -> None:
        """Take hints from `trusted_uids`, and from everybody if it `takes_all`.

        `table` returns the current table, `orders` a new order.
        """
        self._table = table
        self._orders = orders
        self._counters = counters
        self._trusted_uids = trusted_uids
        self._takes_all = takes_all
        self._may_look_up = trio.Lock()
        self._slots = trio.Semaphore(_MAX_CONNECTIONS, max_value=_MAX_CONNECTIONS)
        # The connections of each user.
        self._connected = Counter[int]()
        self._failures = RepeatedFailures(_log)
        # The order of each user that stands.
        self._standing: dict[int, Announcer] = {}
        # Not the table itself: after a refresh, nothing but a cache would hold gigabytes.
        self._directories_of: weakref.ref[InodeTable] = weakref.ref(self._table())
        self._directory = lru_cache(_MAX_REMEMBERED_DIRECTORIES)(lambda path: self._table().find(path, resolves=True))

    async def run(self, listener: socket.socket) -> None:
        """Serve every connection, for ever. Nothing that a client does ends it."""
        accepting = trio.socket.from_stdlib_socket(listener)
        async with trio.open_nursery() as nursery:
            while True:
                await self._slots.acquire()
                nursery.start_soon(self._serve, *await self._next_trusted(accepting))

    async def _next_trusted(self, accepting: trio.socket.SocketType) -> tuple[trio.socket.SocketType, int]:
        """Return the next connection to be served, and its user; `_serve` ends its count."""
        while True:
            try:
                connection, _ = await accepting.accept()
            except OSError as error:
                _log.warning("no hint can be taken for a second: %s", error)
                await trio.sleep(_ACCEPT_PAUSE_S)
                continue
            uid = peer_uid(connection)
            strangers = self._connected.total() - sum(self._connected[one] for one in self._trusted_uids)
            has_room = self._connected[uid] < _MAX_OF_STRANGER and strangers < _MAX_OF_STRANGERS
            if uid in self._trusted_uids or (self._takes_all and has_room):
                self._connected[uid] += 1
                return connection, uid
            with connection, suppress(OSError):
                await connection.send(REFUSED)
            await trio.sleep(_REFUSED_PAUSE_S)

    async def _serve(self, connection: trio.socket.SocketType, uid: int) -> None:
        order = self._orders()
        is_whole = False
        try:
            with connection:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancel_when_gone, connection, nursery.cancel_scope)
                    is_whole = await self._take(connection, order, uid)
                    nursery.cancel_scope.cancel()
        except Exception:  # noqa: BLE001 - a hint must not end the worker
            _log.exception("an announced order failed for an unforeseen reason; the mount goes on")
        finally:
            self._connected[uid] -= 1
            self._slots.release()
            if is_whole:
                self._stand_down(uid)
            if is_whole and (uid in self._trusted_uids or len(self._standing) < _MAX_CONNECTIONS):
                self._standing[uid] = order
            else:
                order.withdraw()

    def _stand_down(self, uid: int) -> None:
        if (order := self._standing.pop(uid, None)) is not None:
            order.withdraw()

    async def _take(self, connection: trio.socket.SocketType, order: Announcer, uid: int) -> bool:
        """Return whether the order was taken to its end, and names a file."""
        names_file = False
        try:
            await connection.send(SERVED)
            rest = b""
            while received := await connection.recv(_RECEIVE_BYTES):
                paths, rest = split_paths(rest, received)
                for at in range(0, len(paths), _BATCH_PATHS):
                    names_file |= await self._announce(paths[at : at + _BATCH_PATHS], order)
                    if names_file:
                        self._stand_down(uid)
            if not rest:
                await connection.send(TAKEN)  # fails if the client has hung up, and not only shut down its side
        except (OSError, PathTooLongError) as error:
            _log.debug("an announced order ends early: %s", error)
            return False
        return names_file and not rest

    async def _announce(self, paths: Sequence[bytes], order: Announcer) -> bool:
        """Pass on the files among `paths`, and return whether there are any."""
        async with self._may_look_up:
            found = [(path, self._file(path)) for path in paths]
        inodes = [inode for _, inode in found if inode is not None]
        if inodes:
            await order.announce(inodes)
        unknown = [path for path, inode in found if inode is None]
        if unknown:  # told once a batch: a line for each path takes longer than looking it up
            path = os.fsdecode(unknown[0])
            line = f"announced paths are no files of the mount, such as {path!r}. {_PATHS_HINT}"
            self._failures.tell("batches of announced paths that are no files", path, line)
        self._counters.count("fastfuse_hints", len(inodes), "taken")
        self._counters.count("fastfuse_hints", len(unknown), "unknown")
        await trio.sleep(len(unknown) * self._connected.total() * _UNKNOWN_PAUSE_S)
        return bool(inodes)

    def _file(self, path: bytes) -> int | None:
        """Return the inode of a file, as the kernel would find it; None if `path` is no file."""
        table = self._table()
        if table is not self._directories_of():
            self._directories_of = weakref.ref(table)
            self._directory.cache_clear()
        folder, slash, name = path.rpartition(b"/")
        directory = self._directory(folder + slash)  # None for what is no directory
        inode = None if directory is None else table.lookup(directory, name)
        return None if inode is None or table.is_directory(inode) else inode


async def cancel_when_gone(connection: trio.socket.SocketType, scope: trio.CancelScope) -> None:
    """Cancel `scope` when the client hangs up, even if bytes that it sent are not received yet."""
    with select.epoll() as hangup:
        hangup.register(connection.fileno(), 0)  # EPOLLHUP is reported without being asked for: epoll_ctl(2)
        await trio.lowlevel.wait_readable(hangup.fileno())
    scope.cancel()

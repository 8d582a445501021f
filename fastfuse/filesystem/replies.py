"""Write to the kernel past libfuse: large replies, from threads, and notices of what it has to forget.

The kernel copies 1 MiB into the page cache inside the call that writes the reply; pyfuse3 makes that call in the only
thread that serves, and holds the GIL. Threads let the loop serve the next request meanwhile. When more replies wait
than the threads write, the loop writes one itself, without the GIL.

A reply needs the number of its request, which only libfuse knows. So `hand_over` gives libfuse an empty answer and puts
a socket in the place of the session's descriptor. libfuse writes the head of the reply there; `settle` completes it
with the length and the bytes. libfuse must get its descriptor back before it reads or writes anything else, so `settle`
is called where another handler returns (`filesystem.operations`), before each request is read (`filesystem.loop`), and
before trio waits.

A worker that loses a reply would leave its reader waiting for ever. A worker that dies is replaced, and the kernel
sends its successor the request again. Any failure that would lose a reply therefore ends the process.

After a refresh the kernel is sent notifications of what it has to forget. A notification waits for the directory's
lock, which a reader may hold while it waits for the worker. Neither the worker nor the supervisor may therefore write
it: a process of its own does.
"""

import ctypes
import errno
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from queue import SimpleQueue
from typing import NoReturn

import trio

from fastfuse.index.inodes.changes import Changes
from fastfuse.objects import Buffer

__all__ = ["OUT_HEADER", "LargeReplies", "pack_notices", "send_notices", "threads_for", "write_reply"]

_log = logging.getLogger(__name__)

# <linux/fuse.h>, fuse_out_header: the length of all, the error or the notification's code, the request's number or 0.
OUT_HEADER = struct.Struct("=IiQ")

# fuse_notify_inval_inode_out, fuse_notify_inval_entry_out.
_STALE_INODE = struct.Struct("=Qqq")  # inode, offset, length of the data to drop
_STALE_NAME = struct.Struct("=QII")  # directory, length of the name, flags; then the name and a NUL
_INVAL_INODE, _INVAL_ENTRY = 2, 3

# Passing a smaller reply to a thread costs more CPU time than copying it: docs/MEASUREMENTS.md, "Mount".
_LEAST_BYTES = 512 << 10
# Each waiting reply pins the memory of a part, so the loop itself writes any more.
_MOST_WAITING = 8
# More threads are not known to help.
_MOST_THREADS = 4

# The errors when no reader waits for the reply any more: the request was interrupted, or the mount is gone.
_UNWANTED = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTCONN, errno.ECONNABORTED})


_libc = ctypes.PyDLL(None, use_errno=True)
_libc.recv.restype = ctypes.c_ssize_t


def dup2(fd: int, number: int) -> None:
    """Call dup2(2) without releasing the GIL: taking it back would cost the loop 50 µs. Children inherit `number`."""
    if _libc.dup2(fd, number) < 0:
        raise _os_error()


def receive(fd: int, most_bytes: int) -> bytes:
    """Return the message that has come through the socket `fd`, without releasing the GIL.

    Raises:
        BlockingIOError: none has come.
    """
    buffer = ctypes.create_string_buffer(most_bytes)
    count = _libc.recv(fd, buffer, ctypes.c_size_t(most_bytes), socket.MSG_DONTWAIT)
    if count < 0:
        raise _os_error()
    return buffer.raw[:count]


def _os_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def threads_for(cores: int) -> int:
    """Return how many threads write replies: all cores but the loop's, up to four; none on a single core."""
    return max(0, min(cores - 1, _MOST_THREADS))


class LargeReplies(trio.abc.Instrument):
    """The replies of one process. Without threads, libfuse writes all of them."""

    def __init__(self) -> None:
        # Receives what libfuse writes instead of the kernel; None without threads.
        self._place: _Place | None = None
        # The bytes of the reply whose head libfuse is about to write, or has written.
        self._data: Buffer | None = None
        # Head and bytes of each; None ends a thread.
        self._queue: SimpleQueue[tuple[bytes, Buffer] | None] = SimpleQueue()
        # Replies given to the threads, those that each thread has written, and how many that were at the last look.
        self._queued_count = 0
        self._written_counts: list[int] = []
        self._seen_count = -1

    @contextmanager
    def written_by(self, threads: int, session_fd: int) -> Iterator[None]:
        """Write large replies on the connection `session_fd` from `threads`, inside one trio run.

        If the system has no room for as many threads, fewer or none write.
        """
        with closing(_Place(session_fd)) as place:
            self._queued_count, self._written_counts = 0, [0] * threads
            writing = list(_started(threads, partial(self._write_all, place.device)))
            if writing:
                trio.lowlevel.add_instrument(self)
                self._place = place
            try:
                yield
            finally:
                self.settle()
                self._place = None
                if writing:
                    trio.lowlevel.remove_instrument(self)
                for _ in writing:
                    self._queue.put(None)
                for thread in writing:
                    thread.join()

    def hand_over(self, data: Buffer) -> Buffer:
        """Return what the handler of a read has to return at once in the place of `data`.

        Requires that every earlier reply is settled.
        """
        if len(data) < _LEAST_BYTES or self._place is None:
            return data
        self._place.take()
        self._data = data
        return b""

    def are_moving(self) -> bool:
        """Return whether the threads have written a reply since the last call, or have none to write."""
        written_count = sum(self._written_counts)
        are_moving = written_count == self._queued_count or written_count != self._seen_count
        self._seen_count = written_count
        return are_moving

    def settle(self) -> None:
        """Give libfuse its descriptor back and queue the reply; write it here if too many wait."""
        data = self._data
        if data is None:
            return
        self._data = None
        assert self._place is not None
        try:
            error, request = self._place.give_back()
            reply = (OUT_HEADER.pack(OUT_HEADER.size + len(data), error, request), data)
            if self._queue.qsize() < _MOST_WAITING:
                self._queued_count += 1
                self._queue.put(reply)
            else:
                write_reply(self._place.device, reply)
        except Exception:  # noqa: BLE001 - trio would go on without this instrument
            _die("a reply is lost that libfuse has been asked for")

    def before_io_wait(self, timeout: float) -> None:
        """Settle before trio waits; trio calls this."""
        self.settle()

    def _write_all(self, device: int, thread: int) -> None:
        """Write queued replies until None comes, as the thread of that number."""
        take = self._queue.get
        try:
            while (reply := take()) is not None:
                write_reply(device, reply)
                self._written_counts[thread] += 1
                # Release its memory before the wait.
                del reply
        except BaseException:  # noqa: BLE001 - nobody would hear of it
            _die("a thread that writes replies has failed")


class _Place:
    """The session's descriptor number, which stands for the connection and for a socket in turns."""

    def __init__(self, session_fd: int) -> None:
        self._session_fd = session_fd
        # The connection itself, whatever is in its place.
        self.device = os.dup(session_fd)
        # Each message comes as it was sent.
        self._heads, self._stand_in = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._heads_fd, self._stand_in_fd = self._heads.fileno(), self._stand_in.fileno()

    def take(self) -> None:
        dup2(self._stand_in_fd, self._session_fd)

    def give_back(self) -> tuple[int, int]:
        """Return the error and the number of the request that libfuse has answered; `OSError` if it has not."""
        dup2(self.device, self._session_fd)
        _, error, request = OUT_HEADER.unpack(receive(self._heads_fd, OUT_HEADER.size))
        return error, request

    def close(self) -> None:
        self._heads.close()
        self._stand_in.close()
        os.close(self.device)


def _started(threads: int, work: Callable[[int], object]) -> Iterator[threading.Thread]:
    for number in range(threads):
        thread = threading.Thread(target=work, args=(number,), name="fastfuse-reply", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            _log.warning("large files are read more slowly: %s; see ulimit -u and the cgroup's pids.max", error)
            return
        yield thread


def write_reply(device: int, reply: tuple[bytes, Buffer]) -> None:
    """Write head and bytes of a reply to the kernel; if it does not take them, answer EIO and tell the log."""
    try:
        os.writev(device, reply)
    except OSError as error:
        if error.errno not in _UNWANTED:
            _log.error("the kernel does not take a reply, so the read fails: %s", error)
            _fail(device, reply[0])


def _fail(device: int, head: bytes) -> None:
    """Answer EIO to the request whose reply begins with `head`, unless the kernel has ended it."""
    _, _, request = OUT_HEADER.unpack(head)
    try:
        os.write(device, OUT_HEADER.pack(OUT_HEADER.size, -errno.EIO, request))
    except OSError as error:
        if error.errno not in _UNWANTED:
            raise


def pack_notices(changes: Changes) -> bytes:
    """Return the notifications for `changes`, one after the other.

    Those of directories drop their listings, too. They come first, and again last: a listing that the old table
    answered may be on its way into the kernel's memory.
    """
    names = [
        _message(_INVAL_ENTRY, _STALE_NAME.pack(inode, len(name), 0) + name + b"\0")
        for inode, name in changes.stale_names
    ]
    directories = [_message(_INVAL_INODE, _STALE_INODE.pack(inode, 0, 0)) for inode in changes.stale_directories]
    return b"".join((*directories, *names, *directories))


def send_notices(fd: int, notices: bytes) -> None:
    """Write each of `notices` to the connection `fd`. One that the kernel refuses is skipped.

    Raises:
        OSError: the connection is gone.
    """
    start = 0
    while start < len(notices):
        length, _, _ = OUT_HEADER.unpack_from(notices, start)
        try:
            os.write(fd, memoryview(notices)[start : start + length])
        except OSError as error:
            # ENOTDIR, ENOTEMPTY, EBUSY: a name in use keeps what it had; the next lookup asks the worker.
            if error.errno in {errno.ENODEV, errno.EBADF, errno.ECONNABORTED}:
                raise
        start += length


def _message(code: int, body: bytes) -> bytes:
    return OUT_HEADER.pack(OUT_HEADER.size + len(body), code, 0) + body


def _die(why: str) -> NoReturn:
    _log.critical("the worker ends: %s", why, exc_info=True)
    os._exit(1)

"""Large replies are written by threads: while the kernel copies one, the loop serves the next request.

Copying 1 MiB into the page cache takes the kernel about 250 µs, in the call that writes the reply; pyfuse3 makes that
call in the only thread that serves, and holds the GIL. One reader of large files then kept this thread busy for nine
tenths of its time, six of them in copies, while other cores had nothing to do.

Where more replies come than the threads write, the loop writes one as they do, without the GIL, so that they can go on
to the next ones meanwhile. When libfuse wrote these, which holds it, the threads slept for four fifths of the time, and
the loop copied every other reply and came to nothing else. Four readers of 2 GiB each, on four shared cores (20 ms to
the first byte, 90 MB/s a connection, medians of three runs in turns), got 1.47 GB/s so, and get 2.66.

A reply needs the number of its request, which only libfuse knows. So libfuse is given an empty answer, and for this one
reply a socket stands in the place of the session's descriptor: what it writes there is the head of the reply, and that
goes to the kernel with the length and the bytes that belong to it.

The place is taken when the handler of a read returns. Before libfuse can read or write anything else it has to be given
back, so `settle` is called where another handler returns (`mount.operations`), before each request is read
(`mount.loop`) and, as neither may happen for a while, before trio waits.

A worker that loses a reply would leave its reader waiting for ever. One that dies is replaced, and the kernel asks its
successor again: so what must not happen here ends the process.
"""

import errno
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from queue import SimpleQueue
from typing import NoReturn

import trio

from fastfuse.mount.protocol import OUT_HEADER
from fastfuse.mount.syscalls import dup2, receive
from fastfuse.objects import Buffer

__all__ = ["LargeReplies", "threads_for"]

_log = logging.getLogger(__name__)

# Two threads that wake each other and pass the GIL on cost up to 150 µs of CPU time, more than copying a smaller one:
# random reads of 256 KiB, four readers, were 2,060 a second without and 1,810 with it.
_LEAST_BYTES = 512 << 10
# Each that waits to be written keeps a part's memory from being used again, so the loop itself writes any more.
_MOST_WAITING = 8
# More are not known to be of use.
_MOST_THREADS = 4

# Nobody waits for the reply any more: the request was given up, or the mount is gone.
_UNWANTED = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTCONN, errno.ECONNABORTED})


def threads_for(cores: int) -> int:
    """How many threads write replies: a core is left to the loop. None with one, where nothing goes on meanwhile."""
    return max(0, min(cores - 1, _MOST_THREADS))


class LargeReplies(trio.abc.Instrument):
    """The replies of one process. While it has no threads, all stays as libfuse has it."""

    def __init__(self) -> None:
        # Where libfuse's words go instead of the kernel; None without threads.
        self._place: _Place | None = None
        # Of the reply whose head libfuse is about to write, or has written.
        self._data: Buffer | None = None
        # Head and bytes of each; None ends a thread.
        self._queue: SimpleQueue[tuple[bytes, Buffer] | None] = SimpleQueue()

    @contextmanager
    def written_by(self, threads: int, session_fd: int) -> Iterator[None]:
        """Hand over replies on the connection `session_fd`, in a trio run that does not end before.

        To fewer threads, or to none, where there is no room for as many.
        """
        with closing(_Place(session_fd)) as place:
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
        """What the handler of a read returns in the place of `data`, and nothing may come between.

        Requires that all before is settled.
        """
        if len(data) < _LEAST_BYTES or self._place is None:
            return data
        self._place.take()
        self._data = data
        return b""

    def settle(self) -> None:
        """Give libfuse its descriptor back, and the reply to a thread if not too many wait for one."""
        data = self._data
        if data is None:
            return
        self._data = None
        assert self._place is not None
        try:
            error, request = self._place.give_back()
            reply = (OUT_HEADER.pack(OUT_HEADER.size + len(data), error, request), data)
            if self._queue.qsize() < _MOST_WAITING:
                self._queue.put(reply)
            else:
                _write(self._place.device, reply)
        except Exception:  # noqa: BLE001 - trio would go on without this instrument
            _die("a reply is lost that libfuse has been asked for")

    def before_io_wait(self, timeout: float) -> None:
        """See `settle`: trio calls this."""
        self.settle()

    def _write_all(self, device: int) -> None:
        """What a thread does."""
        take = self._queue.get
        try:
            while (reply := take()) is not None:
                _write(device, reply)
                # Its memory is used again.
                del reply
        except BaseException:  # noqa: BLE001 - nobody would hear of it
            _die("a thread that writes replies has failed")


class _Place:
    """The number of the session's descriptor, which is the connection's or a socket's in turns."""

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
        """Error and number of the request that libfuse has answered meanwhile. `OSError` if it has not."""
        dup2(self.device, self._session_fd)
        _, error, request = OUT_HEADER.unpack(receive(self._heads_fd, OUT_HEADER.size))
        return error, request

    def close(self) -> None:
        self._heads.close()
        self._stand_in.close()
        os.close(self.device)


def _started(threads: int, work: Callable[[], object]) -> Iterator[threading.Thread]:
    for _ in range(threads):
        thread = threading.Thread(target=work, name="fastfuse-reply", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            _log.warning("large files are read more slowly: %s; see ulimit -u and the cgroup's pids.max", error)
            return
        yield thread


def _write(device: int, reply: tuple[bytes, Buffer]) -> None:
    try:
        os.writev(device, reply)
    except OSError as error:
        if error.errno not in _UNWANTED:
            _log.error("the kernel does not take a reply, so the read fails: %s", error)
            _fail(device, reply[0])


def _fail(device: int, head: bytes) -> None:
    """End the request whose reply begins with `head`, unless the kernel has done so itself."""
    _, _, request = OUT_HEADER.unpack(head)
    try:
        os.write(device, OUT_HEADER.pack(OUT_HEADER.size, -errno.EIO, request))
    except OSError as error:
        if error.errno not in _UNWANTED:
            raise


def _die(why: str) -> NoReturn:
    _log.critical("the worker ends: %s", why, exc_info=True)
    os._exit(1)

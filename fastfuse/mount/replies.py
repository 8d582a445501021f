"""Large replies are written by threads: while the kernel copies one, the loop serves the next request.

Copying 1 MiB into the page cache takes the kernel about 250 µs, in the call that writes the reply; pyfuse3 makes that
call in the only thread that serves, and holds the GIL. One reader of large files then kept this thread busy for nine
tenths of its time, six of them in copies, while other cores had nothing to do. Measured on four shared cores (20 ms to
the first byte, 90 MB/s a connection, 2 GiB of TFRecords by one reader, medians of seven runs in turns): 1.14 s without
threads, 0.97 with one, 0.94 with two and 0.96 with three, and no more CPU time.

A reply needs the number of its request, which only libfuse knows. So libfuse is given an empty answer, and for this one
reply a socket stands in the place of the session's descriptor: what it writes there is the head of the reply, and that
goes to the kernel with the length and the bytes that belong to it.

The place is taken when a handler returns. Before libfuse can read or write anything else it has to be given back, so
`settle` is called where another handler returns (`mount.operations`), before each request is read (`mount.loop`) and
before trio waits, for nothing of this may happen for a while.
"""

import errno
import logging
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import trio

from fastfuse.objects import Buffer

__all__ = ["LargeReplies", "threads_for"]

_log = logging.getLogger(__name__)

# <linux/fuse.h>: fuse_out_header, with the length of all, the error, and the number of the request.
_OUT_HEADER = struct.Struct("=IiQ")

# Two threads that wake each other and pass the GIL on cost up to 150 µs of CPU time, more than copying a smaller one:
# random reads of 256 KiB, four readers, were 2,060 a second without and 1,810 with it.
_LEAST_BYTES = 512 << 10
# Each that waits to be written keeps a part's memory from being used again, so the loop itself writes any more.
_MOST_WAITING = 8
# More threads than two changed nothing on four cores.
_CORES_PER_THREAD = 2
_MOST_THREADS = 4

# Nobody waits for the reply any more: the request was given up, or the mount is gone.
_UNWANTED = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTCONN, errno.ECONNABORTED})


def threads_for(cores: int) -> int:
    """How many threads write replies; none with a single core, where nothing goes on meanwhile."""
    return min(cores // _CORES_PER_THREAD, _MOST_THREADS)


class LargeReplies(trio.abc.Instrument):
    """The replies of one process. While it has no threads, all stays as libfuse has it."""

    def __init__(self) -> None:
        self._most_waiting = 0
        # Of the reply whose head libfuse is about to write, or has written.
        self._data: Buffer | None = None
        # Head and bytes of each; None ends a thread.
        self._queue: SimpleQueue[tuple[bytes, Buffer] | None] = SimpleQueue()

    @contextmanager
    def written_by(self, threads: int, session_fd: int) -> Iterator[None]:
        """Hand over replies on the connection `session_fd`, in a trio run that does not end before."""
        if not threads:
            yield
            return
        self._session_fd, self._device = session_fd, os.dup(session_fd)
        # Each message comes as it was sent.
        self._heads, self._stand_in = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        writing = [threading.Thread(target=self._write, name="fastfuse-reply", daemon=True) for _ in range(threads)]
        for thread in writing:
            thread.start()
        trio.lowlevel.add_instrument(self)
        self._most_waiting = _MOST_WAITING
        try:
            yield
        finally:
            self._most_waiting = 0
            trio.lowlevel.remove_instrument(self)
            self.settle()
            for _ in writing:
                self._queue.put(None)
            for thread in writing:
                thread.join()
            self._heads.close()
            self._stand_in.close()
            os.close(self._device)

    def hand_over(self, data: Buffer) -> Buffer:
        """What the handler of a read returns in the place of `data`, and nothing may come between.

        Requires that all before is settled.
        """
        if len(data) < _LEAST_BYTES or self._queue.qsize() >= self._most_waiting:
            return data
        os.dup2(self._stand_in.fileno(), self._session_fd)
        self._data = data
        return b""

    def settle(self) -> None:
        """Give libfuse its descriptor back, and the reply to a thread."""
        data = self._data
        if data is None:
            return
        self._data = None
        os.dup2(self._device, self._session_fd)
        _, error, request = _OUT_HEADER.unpack(self._heads.recv(_OUT_HEADER.size))
        self._queue.put((_OUT_HEADER.pack(_OUT_HEADER.size + len(data), error, request), data))

    def before_io_wait(self, timeout: float) -> None:
        """See `settle`: trio calls this."""
        self.settle()

    def _write(self) -> None:
        take, device = self._queue.get, self._device
        while (reply := take()) is not None:
            try:
                os.writev(device, reply)
            except OSError as error:
                # The kernel has ended the request in any case.
                if error.errno not in _UNWANTED:
                    _log.error("a reply was not taken by the kernel: %s", error)
            # Its memory is used again.
            del reply

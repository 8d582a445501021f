"""Claims on ranges that are being fetched, so that the processes of a node fetch each once.

A claim is a lock of the kernel on bytes of one file (an open file description lock). It ends with the process that
holds it, however that ends. The kernel cannot tell the tasks of one process apart, so a dictionary does. Two objects
may share locks by chance: one of them then waits for nothing, and fetches what it needs.
"""

import errno
import fcntl
import struct
import threading
from contextlib import suppress

# struct flock of 64-bit Linux: type, whence, start, length, pid.
_LOCK = struct.Struct("hhqqi4x")
_PAGE_BYTES = 4096
# An offset has 63 bits: 34 of them number the pages of the largest object (50 TB), and the object has the others.
_PAGE_BITS, _OBJECT_BITS = 34, 28


class Claims:
    """The claims of this process, in the lock file `fd` that all processes share."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._held: dict[int, list[tuple[int, int]]] = {}
        # The thread that writes gives up what the loop has taken.
        self._mutex = threading.Lock()

    def take(self, object_id: int, start: int, end: int) -> bool:
        """Claim ``[start, end)`` of an object; return False if a task of any process has claimed some of it.

        Raise `OSError` if the file system has no locks.
        """
        with self._mutex:
            if any(start < one_end and one_start < end for one_start, one_end in self._held.get(object_id, ())):
                return False
            try:
                self._lock(fcntl.F_WRLCK, object_id, start, end)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    return False
                raise
            self._held.setdefault(object_id, []).append((start, end))
            return True

    def release(self, object_id: int, start: int, end: int) -> None:
        """Give up a claim that was taken. If the file system fails, other processes wait for it in vain for a while."""
        with self._mutex:
            held = self._held[object_id]
            held.remove((start, end))
            if not held:
                del self._held[object_id]
            with suppress(OSError):  # a thread may be fetching the range already, or the writer has more to do
                self._lock(fcntl.F_UNLCK, object_id, start, end)

    def _lock(self, kind: int, object_id: int, start: int, end: int) -> None:
        first, behind = start // _PAGE_BYTES, -(-end // _PAGE_BYTES)
        base = object_id % (1 << _OBJECT_BITS) << _PAGE_BITS
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _LOCK.pack(kind, 0, base + first, behind - first, 0))

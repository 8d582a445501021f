"""Claims on ranges that are being fetched, so that the processes of a node fetch each once.

A claim is a lock of the kernel on bytes of one file (an open file description lock). It ends with the process that
holds it, however that ends. The kernel cannot tell the tasks of one process apart, so a dictionary does. Two objects
may share locks by chance: one of them then waits for nothing, and fetches what it needs.
"""

import errno
import threading
from contextlib import suppress

from fastfuse.cache.shared import count_claim, set_lock


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
                set_lock(self._fd, True, object_id, start, end)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    return False
                raise
            self._hold(object_id, start, end)
            return True

    def holds(self, object_id: int) -> bool:
        """Return whether a task of this process has claimed some of an object."""
        return object_id in self._held

    def adopt(self, object_id: int, start: int, end: int) -> None:
        """Take over a claim that a thread without the interpreter has taken in this process's name."""
        with self._mutex:
            self._hold(object_id, start, end)

    def _hold(self, object_id: int, start: int, end: int) -> None:
        self._held.setdefault(object_id, []).append((start, end))
        count_claim(object_id, 1)

    def release(self, object_id: int, start: int, end: int) -> None:
        """Give up a claim that was taken. If the file system fails, other processes wait for it in vain for a while."""
        with self._mutex:
            held = self._held[object_id]
            held.remove((start, end))
            if not held:
                del self._held[object_id]
            count_claim(object_id, -1)
            with suppress(OSError):  # a thread may be fetching the range already, or the writer has more to do
                set_lock(self._fd, False, object_id, start, end)

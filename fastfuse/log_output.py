"""Write log lines without waiting for whoever reads them.

A pipe, a terminal or a socket takes lines until it is full, and then holds up the process that writes. poll(2) tells
whether there is room, but not for how much.
"""

import io
import os
import select
import socket
import stat
import time
from contextlib import suppress
from typing import Final

# What reads of the data wait, once, for a reader of the log that has stopped; one that keeps up needs microseconds.
READER_TIMEOUT_S: Final = 0.1


def has_room(output: object, *, timeout_s: float) -> bool:
    """Return whether `output`, a stream or a socket, has room after `timeout_s` at most.

    A pipe says so while it has room for PIPE_BUF bytes, 4,096 here; a terminal, while it has room for one.
    """
    try:
        fd = output.fileno() if hasattr(output, "fileno") else -1
    except (OSError, ValueError):  # a stream of a test, or one that was closed
        fd = -1
    if fd < 0:
        return True
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(timeout_s * 1000))


class Unbuffered(io.FileIO):
    """A file that is given each line once; one that was torn, as by a full disk, is ended before the next.

    Where a write does not wait, the rest of a line waits here for room, but only once for a reader that has stopped.
    """

    _before_next = b""
    _is_read = True

    def write(self, line: bytes, /) -> int:  # type: ignore[override]
        left = whole = self._before_next + line
        deadline_s = time.monotonic() + (READER_TIMEOUT_S if self._is_read else 0)
        self._is_read = False
        try:
            while left:
                try:
                    left = left[self._write_some(left) :]
                except BlockingIOError:
                    left_s = deadline_s - time.monotonic()
                    if left_s <= 0 or not has_room(self, timeout_s=left_s):
                        raise
            self._is_read = True
        finally:
            if taken := whole[: len(whole) - len(left)]:
                self._before_next = b"" if taken.endswith(b"\n") else b"\n"
        return len(whole)

    def _write_some(self, data: bytes) -> int:
        return os.write(self.fileno(), data)


class Unwaiting(Unbuffered):
    """A descriptor that other programs share, and that is written without waiting.

    O_NONBLOCK would be theirs, too. So a pipe or a terminal is opened once more, as long as this process may. Where it
    may not, a line that does not fit still waits.
    """

    # Another descriptor of it; -1 if there is none, or no need of it.
    _own_fd = -1

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "wb", closefd=False)
        self._mode = os.fstat(fd).st_mode
        # Now, before this process gives up its user. A regular file does not wait, and a second description of it would
        # have an offset of its own.
        if stat.S_ISFIFO(self._mode) or stat.S_ISCHR(self._mode):
            with suppress(OSError):
                self._own_fd = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)

    def close(self) -> None:
        if self._own_fd >= 0:
            os.close(self._own_fd)
            self._own_fd = -1
        super().close()

    def _write_some(self, data: bytes) -> int:
        if stat.S_ISSOCK(self._mode):
            with socket.socket(fileno=os.dup(self.fileno())) as end:
                return end.send(data, socket.MSG_DONTWAIT)
        if stat.S_ISFIFO(self._mode):
            # Whole lines, which the kernel takes at once: other processes write to the same pipe.
            data = data[: data.rfind(b"\n", 0, select.PIPE_BUF) + 1 or None]
        return os.write(self.fileno() if self._own_fd < 0 else self._own_fd, data)

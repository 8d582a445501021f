"""The reading end of a pipe through which a child says something, line by line; never waits."""

import fcntl
import os

__all__ = ["LinePipe"]

_READ_BYTES = 65536


class LinePipe:
    """A pipe to be forked with. That there is something to read is a SIGIO of the process that made it."""

    def __init__(self) -> None:
        self._reading_fd, self.writing_fd = os.pipe()
        fcntl.fcntl(self._reading_fd, fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(self._reading_fd, fcntl.F_GETFL)
        fcntl.fcntl(self._reading_fd, fcntl.F_SETFL, flags | os.O_NONBLOCK | os.O_ASYNC)
        self._begun = b""

    def close_writing(self) -> None:
        """For the reader, once it has forked: the end of the pipe is that of its last writer."""
        os.close(self.writing_fd)

    def lines(self) -> list[bytes]:
        """What has come since, without the newlines; a line that has only begun is kept."""
        received = [self._begun]
        while chunk := self._receive():
            received.append(chunk)
        *lines, self._begun = b"".join(received).split(b"\n")
        return lines

    def close(self) -> list[bytes]:
        """The last lines, one that never ended included."""
        last = self.lines()
        os.close(self._reading_fd)
        return [*last, self._begun] if self._begun else last

    def _receive(self) -> bytes:
        try:
            return os.read(self._reading_fd, _READ_BYTES)
        except BlockingIOError:
            return b""

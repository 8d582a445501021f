"""The child processes of a run, as their parent sees them.

A child says what it does in lines through one pipe, and logs through another, so that lines of two processes never
mix. It has a process group of its own: the terminal's Ctrl-C is for the command, and a child goes on until the parent
stops it. Processes that it forks die with it.
"""

import fcntl
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable

from fastfuse.filesystem.children import fork_child
from fastfuse.sagemaker.running.phases import Phases

__all__ = ["ChildProcess", "LinePipe"]

_READ_BYTES = 65536


class LinePipe:
    """A pipe from a child to its parent. SIGIO tells the process that made it that there is something to read."""

    def __init__(self) -> None:
        self._reading_fd, self.writing_fd = os.pipe()
        fcntl.fcntl(self._reading_fd, fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(self._reading_fd, fcntl.F_GETFL)
        fcntl.fcntl(self._reading_fd, fcntl.F_SETFL, flags | os.O_NONBLOCK | os.O_ASYNC)
        self._begun = b""

    def close_writing(self) -> None:
        """Close the parent's writing end after the fork: the pipe ends with its last writer."""
        os.close(self.writing_fd)

    def lines(self) -> list[bytes]:
        """Return the whole lines that came since, without newlines; never wait."""
        received = [self._begun]
        while chunk := self._receive():
            received.append(chunk)
        *lines, self._begun = b"".join(received).split(b"\n")
        return lines

    def close(self) -> list[bytes]:
        """Close the pipe and return the last lines, with one that never ended."""
        last = self.lines()
        os.close(self._reading_fd)
        return [*last, self._begun] if self._begun else last

    def _receive(self) -> bytes:
        try:
            return os.read(self._reading_fd, _READ_BYTES)
        except BlockingIOError:
            return b""


class ChildProcess(ABC):
    """A child from its fork to its end; a subclass hears what it says."""

    def __init__(self, work: Callable[[], object]) -> None:
        """Fork a child that does `work`, which inherits what the object has until now."""
        # None while it lives; negative for a signal.
        self.exit_code: int | None = None
        self._told, self._log = LinePipe(), LinePipe()
        self.pid = fork_child(lambda: self._work(work))
        self._told.close_writing()
        self._log.close_writing()

    def _work(self, work: Callable[[], object]) -> None:
        os.setpgid(0, 0)
        os.dup2(self._log.writing_fd, 2)
        work()

    def listen(self, phases: Phases) -> None:
        """Take in what the process has said until now."""
        if self.exit_code is None:
            self._take(self._told.lines(), self._log.lines(), phases)

    def ended(self, exit_code: int, phases: Phases) -> None:
        """Note that the process was reaped."""
        self.exit_code = exit_code
        self._take(self._told.close(), self._log.close(), phases)

    def stop(self) -> None:
        """Tell the process to end."""
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process."""
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGKILL)

    @property
    def how_it_ended(self) -> str:
        """The end of the process in words; it has ended."""
        assert self.exit_code is not None
        return f"was killed by signal {-self.exit_code}" if self.exit_code < 0 else f"exited with {self.exit_code}"

    def _take(self, told: list[bytes], log: list[bytes], phases: Phases) -> None:
        for line in log:
            phases.relay(line)
        for line in told:
            self._hear(line, phases)

    @abstractmethod
    def _hear(self, line: bytes, phases: Phases) -> None:
        """Take in a line that the process has said."""

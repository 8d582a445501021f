"""Commands on a terminal of their own, of a chosen width."""

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tests.forked import Forked
from tests.mounting import ENVIRONMENT

# Long enough for a loaded machine; a test that needs it has failed.
_PATIENCE_S = 60.0
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SETTINGS = ("COLORTERM", "COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
_ENVIRONMENT = {name: value for name, value in ENVIRONMENT.items() if name not in _SETTINGS}


@dataclass
class Terminal:
    """A command whose three standard streams are one terminal."""

    process: subprocess.Popen[bytes]
    fd: int
    written: bytes = b""

    @property
    def output(self) -> str:
        """What it has written until now."""
        return self.written.decode(errors="replace")

    def read_until(self, text: str) -> None:
        """Fail if the command ends before it has written `text`."""
        while text not in self.output:
            assert self._read(), f"{text!r} was not written: {self.output}"

    def finished(self) -> int:
        """Return the exit code, once everything is read."""
        while self._read():
            pass
        return self.process.wait(_PATIENCE_S)

    def interrupt(self) -> None:
        """Send what Ctrl-C sends to every process of the command."""
        os.killpg(self.process.pid, signal.SIGINT)

    def _read(self) -> bool:
        readable, _, _ = select.select([self.fd], [], [], _PATIENCE_S)
        assert readable, f"nothing more was written: {self.output}"
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # EIO: no process has the terminal open any more
            return False
        self.written += data
        return bool(data)


@contextmanager
def terminal(
    *words: str, columns: int = 80, settings: Mapping[str, str] | None = None, redirection: str = ""
) -> Iterator[Terminal]:
    """Run ``fastfuse WORDS`` on a terminal; `settings` are environment variables, `redirection` is the shell's."""
    fd, command_fd = os.openpty()
    fcntl.ioctl(command_fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = Forked[bytes](
        ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "fastfuse", *words],
        env={**_ENVIRONMENT, "TERM": "xterm-256color", **(settings or {})},
        stdin=command_fd, stdout=command_fd, stderr=command_fd, start_new_session=True,
    )  # fmt: skip
    os.close(command_fd)
    try:
        yield Terminal(process, fd)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(_PATIENCE_S)
        os.close(fd)


def finished_on_terminal(*words: str, columns: int = 80, settings: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a command that ends by itself; return its exit code and what it has written."""
    with terminal(*words, columns=columns, settings=settings) as running:
        return running.finished(), running.output


def lines_on_screen(output: str) -> list[str]:
    """Return every line that has stood on the screen, each state of a line that is redrawn included."""
    redrawn = output.replace("\x1b[2K", "\n")
    return [line for line in re.split(r"[\r\n]+", _ESCAPES.sub("", redrawn)) if line.strip()]

"""``--daemon``: a child without a terminal, and a parent that waits until the child is ready or has failed.

The parent is to be forked before anything starts a thread. The child's standard streams are ``/dev/null`` from the
start, not from readiness on: whatever it forks before that would keep the caller's terminal or pipe open for ever.
Until it is ready its lines go to the parent's stderr through a pipe; a NUL ends them.
"""

import io
import logging
import os
import select
import signal
import sys
from typing import Final, NoReturn

__all__ = ["Startup", "fork", "open_standard_streams"]

# No line holds it: log lines have their control characters escaped.
_READY: Final = b"\0"
_READ_BYTES: Final = 64 * 1024


class Startup:
    """The child's side: what it says until `ready` or `fail`, one of which is called once."""

    def __init__(self, pipe_fd: int) -> None:
        self._pipe = os.fdopen(pipe_fd, "w", encoding="utf-8", errors="backslashreplace", buffering=1)
        self._relay = _Relay(self._pipe)

    def relay_logs(self, formatter: logging.Formatter) -> None:
        """Show log records to whoever started the daemon, besides where they go anyway."""
        self._relay.setFormatter(formatter)
        logging.getLogger().addHandler(self._relay)

    def fail(self, text: str) -> None:
        """Show why there will be no mount, as the last thing; the exit code is the child's own."""
        self._end(text + "\n")

    def ready(self) -> None:
        """Let the parent return."""
        self._end(_READY.decode())

    def _end(self, text: str) -> None:
        self._pipe.write(text)
        self._pipe.close()


class _Relay(logging.StreamHandler):  # type: ignore[type-arg]
    """Stops once the pipe is closed, or its other end: a process forked before readiness holds a copy of ours."""

    def handleError(self, record: logging.LogRecord) -> None:
        logging.getLogger().removeHandler(self)


def open_standard_streams() -> None:
    """Let standard streams that we were started without be ``/dev/null``: no file that is opened later takes a number
    that others write to.
    """
    # Looked at first: who has all of them needs no ``/dev/null``, which may be missing where `/dev` is made by hand.
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: `fd`
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    # Python does so for standard error: a name that the terminal's encoding does not have must not end a command.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def fork() -> Startup:
    """Return in the child only. The parent waits, and exits 0 once the child is ready, else with the child's code."""
    # It may have been ignored where we were started: the kernel would reap the child, and nobody learn how it ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        _wait(child, reader)
    os.close(reader)
    os.setsid()
    # Nothing that is mounted where we were started is kept busy by us.
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)
    return Startup(writer)


def _wait(child: int, reader: int) -> NoReturn:
    # Told to end, we end the child as well: it left our process group, so nothing sent to that reaches it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # The pipe's end alone would not do: a process that the child left behind may hold the other end open.
    child_fd = os.pidfd_open(child)
    try:
        while True:
            readable, _, _ = select.select([reader, child_fd], [], [])
            data = os.read(reader, _READ_BYTES) if reader in readable else b""
            text, ready, _ = data.partition(_READY)
            os.write(sys.stderr.fileno(), text)
            if ready:
                sys.exit(0)
            if not data:
                sys.exit(_exit_code(os.waitpid(child, 0)[1]))
    except KeyboardInterrupt:
        os.kill(child, signal.SIGTERM)
        sys.exit(128 + signal.SIGINT)


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    if code > 0:
        return code
    how = f"killed by {signal.Signals(-code).name}" if code else "stopped"
    os.write(sys.stderr.fileno(), f"fastfuse: error: the daemon was {how} before the mount was ready\n".encode())
    return 1

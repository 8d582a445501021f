"""The start of a process: fast, with open standard streams, and for ``--daemon`` in the background.

Nearly everything that a command loads lives until its process ends, so it is loaded as late as it can be.

``--daemon`` makes a child, and a parent that waits until the child is ready or has failed. The parent must fork before
anything starts a thread. The child leaves the parent's process group once it has mounted: autofs, which waits for that,
lets only this group look at the place. The child's standard streams are ``/dev/null`` from the start: a
process that it forks before it is ready would otherwise keep the caller's terminal or pipe open for ever. Until it is
ready its lines go to the parent's stderr through a pipe; a NUL ends them.
"""

import atexit
import fcntl
import gc
import io
import logging
import os
import select
import signal
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NoReturn


def prepare() -> None:
    """Set up the process before it loads what it needs."""
    # numpy serves for its arrays only. Its OpenBLAS would start a thread for each core, and until the first fork ends
    # them they spin: 100 to 200 ms of CPU on four cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # As it ends, Python searches all objects for garbage: 250 ms of CPU after a mount, 30 ms if they are frozen.
    atexit.register(gc.freeze)
    # The caller may ignore SIGCHLD. Then the kernel would reap every child, and its exit code would be lost.
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def environment_without(names: Collection[str]) -> dict[str, str]:
    """Return the environment for a process, without the variables `names` and those whose names go on after one.

    Without ``FASTFUSE_CACHE``, ``FASTFUSE_CACHE_SIZE`` would be refused.
    """
    beginnings = tuple(f"{name}_" for name in names)
    return {name: value for name, value in os.environ.items() if not f"{name}_".startswith(beginnings)}


def has_working_directory() -> bool:
    """Return whether the working directory has a path; one that was deleted has none."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


@contextmanager
def loading() -> Iterator[None]:
    """Load modules without searches for garbage in between, which take a tenth of the start of a mount.

    An interrupt ends the process: an exception may be shown or lost where Python calls what a module has defined.
    """
    gc.disable()
    is_heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_heeded:
        signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))
    try:
        yield
    finally:
        gc.enable()
        if is_heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)


# No line holds it: log lines have their control characters escaped.
_READY: Final = b"\0"
_READ_BYTES: Final = 64 * 1024
# The variable with which a Python program that mounts names its pipe, see `_end_with_program`.
PROGRAM_FD: Final = "_FASTFUSE_PROGRAM_FD"
# The variable with which it says that it has made the mountpoint, and nobody else needs it.
IS_TEMPORARY: Final = "_FASTFUSE_IS_TEMPORARY"
# A process that the child left behind may hold the other end of the pipe open, so that it has no end.
_LOOK_EVERY_S: Final = 1.0
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Startup:
    """The child's end of the pipe to its parent, which the first call of `ready` or `fail` ends."""

    def __init__(self, pipe_fd: int) -> None:
        self._pipe = os.fdopen(pipe_fd, "w", encoding="utf-8", errors="backslashreplace", buffering=1)
        self._relay = _Relay(self._pipe)

    def relay_logs(self, formatter: logging.Formatter) -> None:
        """Show log records to the user who started the daemon, too."""
        self._relay.setFormatter(formatter)
        logging.getLogger().addHandler(self._relay)

    def fail(self, text: str) -> None:
        """Show why there will be no mount, and close the pipe; the parent exits with the child's exit code."""
        self._end(text + "\n")

    def ready(self) -> None:
        """Leave the caller's session, and let the parent return."""
        os.setsid()
        self._end(_READY.decode())

    def _end(self, text: str) -> None:
        if not self._pipe.closed:
            # A parent that was killed reads no more. The child serves all the same.
            with suppress(OSError), self._pipe:
                self._pipe.write(text)


class _Relay(logging.StreamHandler):  # type: ignore[type-arg]
    """Stops once either end of the pipe is closed: a process forked before readiness holds a copy of our end."""

    def handleError(self, record: logging.LogRecord) -> None:
        logging.getLogger().removeHandler(self)


def open_standard_streams() -> None:
    """Open ``/dev/null`` for standard streams that are closed, so that no file opened later takes their numbers."""
    # Checked first: where all are open, ``/dev/null`` is not needed. It may be missing where `/dev` is made by hand.
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: `fd`
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    # Python does the same for standard error: a name that the terminal's encoding lacks must not end a command.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def fork() -> Startup:
    """Return in the child only. The parent waits, and exits 0 once the child is ready, else with the child's code.

    Raises:
        NoRoomError: the system has no room for another process.
    """
    from fastfuse.filesystem.processes import children

    reader, writer = os.pipe()
    # A signal between the fork and `_wait` would end the parent alone.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    child = children.fork()
    if child:
        os.close(writer)
        _wait(child, reader, before)
    os.close(reader)
    if fd := os.environ.pop(PROGRAM_FD, ""):
        _end_with_program(int(fd))
    children.UNHEEDED.update({signal.SIGINT, signal.SIGHUP})  # the terminal's, which the parent heeds
    children.ignore_unheeded()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    for name, path in os.environ.items():
        is_of_aws = name.startswith("AWS_") and name.endswith(("_FILE", "_BUNDLE"))
        if is_of_aws and path and not path.startswith(("/", "~", "$")):  # botocore knows a home and variables
            os.environ[name] = os.path.abspath(path)
    # The daemon must not keep the file system of the caller's working directory busy.
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)
    return Startup(writer)


def _end_with_program(fd: int) -> None:
    """Have the kernel end this process by SIGTERM once the pipe `fd` has no writer any more.

    The writers are the program and what it forked or became (exec); whatever ends them closes the pipe.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # inherited from a program that ignores it, it would be lost
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_ASYNC)
    hangup = select.poll()  # not select(2): a program may have more than 1,023 descriptors
    hangup.register(fd, 0)
    if hangup.poll(0):  # they have ended before
        os.kill(os.getpid(), signal.SIGTERM)


def _wait(child: int, reader: int, mask: Collection[int]) -> NoReturn:
    from fastfuse.filesystem.processes.children import is_over_within

    def end(number: int, _: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)
        sys.exit(128 + number)

    # A signal that ends the parent has to end the child, too, which heeds none of the terminal's.
    for number in _ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, end)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    is_over = False
    while True:
        readable, _, _ = select.select([reader], [], [], 0.0 if is_over else _LOOK_EVERY_S)
        data = os.read(reader, _READ_BYTES) if readable else b""
        text, ready, _ = data.partition(_READY)
        with suppress(OSError):  # the terminal, or what read the pipe, may be gone
            os.write(sys.stderr.fileno(), text)
        if ready:
            sys.exit(0)
        if not data and (readable or is_over):
            sys.exit(_exit_code(os.waitpid(child, 0)[1]))
        is_over = is_over_within(child, 0)


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    if code > 0:
        return code
    how = f"killed by {signal.Signals(-code).name}" if code else "stopped"
    os.write(sys.stderr.fileno(), f"fastfuse: error: the daemon was {how} before the mount was ready\n".encode())
    return 1

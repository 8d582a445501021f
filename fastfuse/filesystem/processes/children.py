"""Fork processes that do not outlive their parent and never return to its stack, send errors, and take signals."""

import ctypes
import json
import logging
import os
import signal
import struct
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, NamedTuple, TypeAlias, TypeVar

import fastfuse.errors
from fastfuse.errors import FastfuseError, ServiceError

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

# The type of `fork_child` and of its wrappers.
Fork = Callable[[Callable[[], object]], int]
# A generator that yields the pid of each process that it waits for, and is sent how that ended (`wait_child`).
Steps: TypeAlias = Generator[int, Any, _T]

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
_LIBC = ctypes.CDLL(None)
# <bits/types/siginfo_t.h>, and a sigset_t, of which the kernel reads 64 bits.
_SIGINFO_BYTES, _SIGSET_BYTES, _READ_BYTES = 128, 128, 8
_SIGINFO = struct.Struct("3i")
_TIMESPEC = struct.Struct("2l")
_NS = 1_000_000_000

_LOOK_EVERY_S = 0.005

# A shell that its terminal hangs up on sends SIGHUP to its jobs within milliseconds.
_HANGUP_S = 10.0

# The most of a message, and of a hint, that is sent. Both, escaped as JSON, fit into a pipe (64 KiB) that nobody reads.
_MOST_CHARACTERS = 2000

# A killed process frees gigabytes in a second. One that waits for a disk that hangs stays.
DIES_WITHIN_S = 10.0

# The signals that tell this process to end.
STOPPING: set[int] = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT}
STOP_ORDER = signal.SIGRTMIN

# Each ends a process by default, and means nothing to ours. Slurm warns the training script by one of the first two,
# which `fastfuse run` passes on. SIGIO means something to a process that asks for it, and blocks it, and SIGALRM to one
# that sets its alarm.
UNHEEDED: set[int] = {
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGPWR),
    *(signal.SIGSTKFLT, signal.SIGXCPU, signal.SIGIO),
    *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
}


class NoRoomError(FastfuseError):
    """The system has no room for another process now; it may have later."""


def fork_child(
    work: Callable[[], object], *, outlives_parent: bool = False, stops_at: Collection[int] | None = None
) -> int:
    """Run `work` in a new process and return its pid; it exits 0 when `work` returns and 1 when `work` raises.

    Unless it `outlives_parent`, the kernel kills the child when its parent dies. A supervisor killed with ``kill -9``
    then leaves no process that holds the connection to the kernel, and the next mount can clear the place (clause L4).
    The child starts with no signal blocked and with default actions, but for those that are `UNHEEDED`.

    If `stops_at` is given, the child and what it forks end at these signals alone: at `STOP_ORDER`, or at none.
    systemd, Slurm or a shutdown may send SIGTERM to every process of a job, and the parent decides when each ends.

    Raises:
        NoRoomError: the system has no room for another process.
    """
    parent = os.getpid()
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        # Inherited: the kernel would reap our children, and their exit codes would be lost.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = fork()
    if child:
        return child
    status = 1
    try:
        if not outlives_parent:
            die_with(parent)
        if stops_at is not None:
            UNHEEDED.update(STOPPING, {signal.SIGHUP})
            UNHEEDED.difference_update(stops_at)
            STOPPING.clear()
            STOPPING.update(stops_at)
        handled = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGCHLD}
        for number in (handled | STOPPING) - UNHEEDED:
            signal.signal(number, signal.SIG_DFL)
        ignore_unheeded()
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        work()
        status = 0
    except BaseException:  # noqa: BLE001 - there is no caller to raise it to
        _log.exception("a process of the mount failed for an unforeseen reason")
    finally:
        # Not sys.exit: that would unwind the parent's stack and wait for threads that wait for the network.
        os._exit(status)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent, the process `parent`, dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def ignore_unheeded() -> None:
    """Ignore what is `UNHEEDED`, in this process and in those that it forks."""
    for number in UNHEEDED:
        signal.signal(number, signal.SIG_IGN)


class Terminals:
    """The standard streams that are terminals. SIGHUP means a hangup if one of them has just gone."""

    def __init__(self) -> None:
        self._there = _terminals()
        self._gone_at_s = -inf

    def have_hung_up(self) -> bool:
        """Return whether one has gone in the last seconds. Ask every second or so.

        A process in the background outlives its shell and terminal, and is told by SIGHUP to list again later.
        """
        if (there := _terminals()) != self._there:
            self._there, self._gone_at_s = there, time.monotonic()
        return time.monotonic() - self._gone_at_s < _HANGUP_S


def _terminals() -> list[int]:
    return [fd for fd in range(3) if os.isatty(fd)]


class SignalInfo(NamedTuple):
    """The beginning of a siginfo_t."""

    si_signo: int
    si_errno: int
    si_code: int


def next_signal(signals: Iterable[int], timeout_s: float) -> SignalInfo | None:
    """Return the next of the blocked `signals`, or None if none came in time or a pause cut the wait short.

    `signal.sigtimedwait` is no help: after a pause (SIGSTOP, a frozen control group) that outlasts the timeout, CPython
    returns whatever memory holds for a signal.
    """
    numbers = sum(1 << number - 1 for number in signals).to_bytes(_READ_BYTES, sys.byteorder)
    timeout, caught = _TIMESPEC.pack(*divmod(int(timeout_s * _NS), _NS)), ctypes.create_string_buffer(_SIGINFO_BYTES)
    if _LIBC.sigtimedwait(numbers.ljust(_SIGSET_BYTES, b"\0"), caught, timeout) != -1:
        return SignalInfo(*_SIGINFO.unpack_from(caught))
    return None


def fork() -> int:
    """Fork as `os.fork` does.

    Raises:
        NoRoomError: the system has no room for another process.
    """
    try:
        return os.fork()
    except OSError as error:
        raise NoRoomError(
            f"no process can be started: {error.strerror}", hint="see ulimit -u, the cgroup's pids.max and free memory"
        ) from error


def wait_child(pid: int) -> int:
    """Reap `pid` and return its exit code, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def ended_children() -> Iterator[tuple[int, int]]:
    """Reap each child that has ended; yield its pid, and its exit code as of `wait_child`."""
    with suppress(ChildProcessError):  # there is no child
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended[0], os.waitstatus_to_exitcode(ended[1])


def is_over_within(pid: int, timeout_s: float) -> bool:
    """Return whether the child `pid` ends within `timeout_s`; it is not reaped."""
    until_s = time.monotonic() + timeout_s
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= until_s:
            return False
        time.sleep(_LOOK_EVERY_S)  # noqa: TID251 - no pidfd: the seccomp filters of older containers refuse it
    return True


def how_it_ended(exit_code: int) -> str:
    """Return in words how a process failed whose exit code, as of `wait_child`, is not 0."""
    if exit_code == -signal.SIGALRM:
        return "did not end in time"
    return f"was killed by signal {-exit_code}" if exit_code < 0 else "failed (see the log)"


def ask_child(make: Callable[[], dict[str, Any]], who: str) -> dict[str, Any]:
    """Return the result of `make`, which a new process calls, or raise the error that it raises.

    Raises:
        ServiceError: the process, `who` in the message, did not live to answer.
    """
    with os.fdopen(memory_fd("fastfuse-answer"), "rb") as answer:
        child = fork_child(partial(_answer_on, answer.fileno(), make))
        try:
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # an interrupt that comes as it ends finds it unreaped
        except BaseException:
            os.kill(child, signal.SIGKILL)
            wait_child(child)
            raise
        return _result_of(answer.read(), who, wait_child(child))


def asking(fork: Fork, make: Callable[[], dict[str, Any]], who: str) -> Steps[dict[str, Any]]:
    """Do as `ask_child`, without waiting for the process that `fork` starts.

    Raises:
        NoRoomError: the system has no room for it, or for its answer.
    """
    with os.fdopen(memory_fd("fastfuse-answer"), "rb") as answer:
        exit_code = yield fork(partial(_answer_on, answer.fileno(), make))
        return _result_of(answer.read(), who, exit_code)


class Procedure(ABC):
    """Work for one process after the other, while their parent does other things."""

    def __init__(self) -> None:
        # The process that runs now, or 0, and how the last one ended, if there was one.
        self.pid = 0
        self._exit_code: int | None = None
        self._steps = self._run()

    def child_ended(self, pid: int, exit_code: int) -> None:
        """Note that the caller reaped the process `pid`."""
        if pid == self.pid:
            self.pid, self._exit_code = 0, exit_code

    def go_on(self) -> None:
        """Take every step that waits for no process; call it every second, and once a child has ended."""
        if not self.pid:
            self.pid = self._steps.send(self._exit_code)

    def close_files(self) -> None:
        """Close, in a child that takes no step, what the steps have opened: a copy would keep its memory."""
        self._steps.close()

    @abstractmethod
    def _run(self) -> Steps[None]:
        """Take the steps, for ever; yield 0 while there is nothing to do."""

    def _end(self) -> None:
        """Kill the process that runs, and begin anew."""
        if self.pid:
            # Not waited for: a notice may wait for a reader, and the reader for the end of the mount.
            os.kill(self.pid, signal.SIGKILL)
            self.pid = 0
        self._steps.close()
        self._exit_code, self._steps = None, self._run()


def memory_fd(name: str) -> int:
    """Return the descriptor of a new file in memory.

    Raises:
        NoRoomError: none is left for it.
    """
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise NoRoomError(f"no process can be started: {error.strerror}", hint="see ulimit -n") from error


def _answer_on(fd: int, make: Callable[[], dict[str, Any]]) -> None:
    os.pwrite(fd, message_of(make), 0)  # whoever reads shares the offset


def _result_of(message: bytes, who: str, exit_code: int) -> dict[str, Any]:
    """Return what a process that has ended wrote by `message_of`, or raise the error that it wrote.

    Raises:
        ServiceError: the process, `who` in the message, did not live to write all of it.
    """
    try:
        return heard(message)
    except ValueError as error:
        hint = "out of memory?" if exit_code == -signal.SIGKILL else ""
        raise ServiceError(f"{who} {how_it_ended(exit_code)}", hint=hint) from error


def message_of(make: Callable[[], dict[str, Any]]) -> bytes:
    """Return the result of `make`, or the error that it raises, as bytes for `heard`."""
    try:
        return json.dumps(make()).encode()
    except FastfuseError as error:
        return error_message(error)


def error_message(error: FastfuseError) -> bytes:
    """Return `error` as bytes that `heard` raises again on the other side of a pipe or socket. A long one is cut."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    message, hint = (text[:_MOST_CHARACTERS] for text in (str(error), error.hint))
    return json.dumps({"error": {"kinds": kinds, "message": message, "hint": hint}}).encode()


def heard(message: bytes) -> dict[str, Any]:
    """Return the JSON object that another process sent, or raise the error that it made with `error_message`.

    If `fastfuse.errors` does not have the error's class, its nearest base class there is raised: another module or
    another version of fastfuse defines the class.
    """
    answer: dict[str, Any] = json.loads(message)
    if "error" in answer:
        error = answer["error"]
        raise _nearest_kind(error["kinds"])(error["message"], hint=error["hint"])
    return answer


def _nearest_kind(names: Sequence[str]) -> type[FastfuseError]:
    for name in names:
        kind = getattr(fastfuse.errors, name, None)
        # A class with a constructor of its own may want more than a message and a hint.
        if isinstance(kind, type) and issubclass(kind, FastfuseError) and kind.__init__ is FastfuseError.__init__:
            return kind
    return FastfuseError

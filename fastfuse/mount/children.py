"""Forked processes: they do not outlive their parent and never return to its stack."""

import ctypes
import json
import logging
import os
import select
import signal
from collections.abc import Callable, Sequence
from typing import Any

import fastfuse.errors
from fastfuse.errors import FastfuseError

__all__ = ["Fork", "NoRoomError", "error_message", "fork_child", "heard", "is_over_within", "wait_child"]

_log = logging.getLogger(__name__)

# `fork_child`, or what calls it.
Fork = Callable[[Callable[[], object]], int]

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


class NoRoomError(FastfuseError):
    """The system has no room for another process; later it may have."""


def fork_child(work: Callable[[], object], *, outlives_parent: bool = False) -> int:
    """Run `work` in a new process and return its pid; it exits 0 when `work` returns and 1 when it raises.

    Unless it `outlives_parent`, the child is killed when its parent dies: a supervisor killed with ``kill -9`` leaves
    no process behind that would hold the connection to the kernel, and the next mount can clear the place (clause L4).
    It starts with no signal blocked and with their default actions.

    Raises:
        NoRoomError: the system has no room for another process.
    """
    parent = os.getpid()
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        # Inherited from whoever started us: the kernel would reap our children, and nobody learn how they ended.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        child = os.fork()
    except OSError as error:
        raise NoRoomError(
            f"no process can be started: {error.strerror}", hint="see ulimit -u, the cgroup's pids.max and free memory"
        ) from error
    if child:
        return child
    status = 1
    try:
        if not outlives_parent:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before the line above
                os._exit(status)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        work()
        status = 0
    except BaseException:  # noqa: BLE001 - there is no caller to raise it to
        _log.exception("a process of the mount failed for an unforeseen reason")
    finally:
        # Not sys.exit: the parent's stack is not ours to unwind, and threads that wait for the network
        # must not hold the process back.
        os._exit(status)


def wait_child(pid: int) -> int:
    """The exit code of `pid`; negative: minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def is_over_within(pid: int, timeout_s: float) -> bool:
    """Whether the child `pid` ends within that time; it is not reaped."""
    fd = os.pidfd_open(pid)
    try:
        ready, _, _ = select.select([fd], [], [], timeout_s)
    finally:
        os.close(fd)
    return bool(ready)


def error_message(error: FastfuseError) -> bytes:
    """Return `error` as bytes that `heard` raises again on the other side of a pipe or socket."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    return json.dumps({"error": {"kinds": kinds, "message": str(error), "hint": error.hint}}).encode()


def heard(message: bytes) -> dict[str, Any]:
    """Return the JSON object that another process sent, or raise the error that it made with `error_message`.

    An error whose class `fastfuse.errors` does not have is raised as the nearest base class that it has: another module
    defines that class, or another version of fastfuse.
    """
    told: dict[str, Any] = json.loads(message)
    if "error" in told:
        error = told["error"]
        raise _nearest_kind(error["kinds"])(error["message"], hint=error["hint"])
    return told


def _nearest_kind(names: Sequence[str]) -> type[FastfuseError]:
    for name in names:
        kind = getattr(fastfuse.errors, name, None)
        # A class with a constructor of its own may want more than a message and a hint.
        if isinstance(kind, type) and issubclass(kind, FastfuseError) and kind.__init__ is FastfuseError.__init__:
            return kind
    return FastfuseError

"""The process that trains: started with the caller's signals and streams, stopped as SageMaker stops it.

It stays in our process group, for a terminal's job control and for scripts that read from it. Its orphans become our
children (`adopt_orphans`) and are told to end as well: a shell dies without telling its children, and in a container
nothing outlives the first process.
"""

import ctypes
import logging
import os
import shutil
import signal
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fastfuse.errors import ConfigurationError
from fastfuse.filesystem.children import fork_child
from fastfuse.sagemaker.script.host_names import HostNames

__all__ = ["CommandProcess", "adopt_orphans", "find_command", "ignored_signals"]

_log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <sys/prctl.h>

# A shell's exit code for a file that cannot be run.
_CANNOT_RUN = 126
# Signals that Python ignores from its start, and a program expects at their default.
_PYTHONS_OWN = (signal.SIGPIPE, signal.SIGXFSZ)
# Signals that `fork_child` resets; a caller may ignore them (nohup, a shell's background).
_INHERITED = (signal.SIGINT, signal.SIGHUP)
# A process that outlives SIGKILL for so long waits for a device; we do not wait for it.
_DIES_WITHIN_S = 5.0


def find_command(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the path of the program to run.

    Raises:
        ConfigurationError: there is none that can be run.
    """
    found = shutil.which(command[0], path=environment.get("PATH", os.defpath))
    if found is None:
        raise ConfigurationError(
            f"the command {command[0]!r} is not to be found, or may not be run",
            hint="give its path, or see $PATH and the file's permissions",
        )
    return found


def ignored_signals() -> set[signal.Signals]:
    """Return the signals that our caller ignores."""
    return {number for number in _INHERITED if signal.getsignal(number) == signal.SIG_IGN}


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


class CommandProcess:
    """The command, from its start to its end."""

    def __init__(
        self, program: str, command: Sequence[str], environment: Mapping[str, str], names: HostNames | None = None
    ) -> None:
        ignored = ignored_signals()
        # Children that the command did not start: channels, the guardian, and those of a shell that we replaced.
        self._others = frozenset(_children(os.getpid()))
        self.pid = fork_child(lambda: _become(program, command, dict(environment), ignored, names))
        self._exit_code: int | None = None
        self._kill_at_s: float | None = None

    @property
    def is_over(self) -> bool:
        return self._exit_code is not None

    @property
    def exit_code(self) -> int:
        """The exit code as a shell reports it: 128 + N after signal N."""
        assert self._exit_code is not None
        return self._exit_code if self._exit_code >= 0 else 128 - self._exit_code

    def ended(self, exit_code: int) -> None:
        """Note that the command was reaped; `exit_code` is negative for a signal."""
        self._exit_code = exit_code

    def describe_end(self) -> str:
        assert self._exit_code is not None
        if self._exit_code >= 0:
            return f"the command exited with {self._exit_code}"
        return f"the command was killed by {signal.Signals(-self._exit_code).name}"

    def stop(self, number: signal.Signals, timeout_s: float, *, has_it: bool = False) -> None:
        """Send `number` to the command, unless it `has_it`, and let `enforce` kill it after the timeout."""
        if self.is_over:
            return
        if not has_it:
            _send(self.pid, number)
        if self._kill_at_s is None:
            self._kill_at_s = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float | None:
        """The seconds until the command must be killed; None while it may run."""
        return None if self._kill_at_s is None else max(0.0, self._kill_at_s - time.monotonic())

    def enforce(self) -> None:
        """Kill the command and all that it started if its time is over."""
        if not self.is_over and self.left_s == 0.0:
            _log.warning("the command did not end in time and is killed")
            self.kill()

    def leftovers(self, timeout_s: float) -> "Leftovers":
        """Return the processes that the command leaves running, which get `timeout_s` to end."""
        return Leftovers(self._others, timeout_s)

    def kill(self) -> None:
        if not self.is_over:
            for pid in (*_descendants(self.pid), self.pid):
                _send(pid, signal.SIGKILL)


class Leftovers:
    """Processes that the command left running when it ended: children that are not among `others`."""

    def __init__(self, others: Container[int], timeout_s: float) -> None:
        self._others = others
        self._kill_at_s = time.monotonic() + timeout_s
        self._told: set[int] = set()

    def press(self) -> bool:
        """Tell them to end, or kill them when they are late; return False once none is left or nothing helps."""
        left = [pid for pid in _children(os.getpid()) if pid not in self._others]
        late_s = time.monotonic() - self._kill_at_s
        for pid in left:
            if late_s >= 0:
                for late in (*_descendants(pid), pid):
                    _send(late, signal.SIGKILL)
            elif pid not in self._told:
                _log.info("process %d, which the command left running, is told to end", pid)
                self._told.add(pid)
                _send(pid, signal.SIGTERM)
        return bool(left) and late_s < _DIES_WITHIN_S


def _become(
    program: str,
    command: Sequence[str],
    environment: dict[str, str],
    ignored: Iterable[int],
    names: HostNames | None,
) -> None:
    if names is not None:
        names.enter(environment)
    # If we are killed, its data are gone, but it may write a checkpoint.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    for number in _PYTHONS_OWN:
        signal.signal(number, signal.SIG_DFL)
    for inherited in ignored:
        signal.signal(inherited, signal.SIG_IGN)
    try:
        os.execve(program, list(command), environment)
    except OSError as error:
        os.write(2, f"fastfuse: error: {program} cannot be run: {error.strerror}\n".encode(errors="replace"))
        os._exit(_CANNOT_RUN)


def _descendants(pid: int) -> list[int]:
    found = _children(pid)
    for child in found:
        found += _children(child)
    return found


def _children(pid: int) -> list[int]:
    """Return the children of every thread, for any of them may have forked (proc(5))."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread, or all of it, has just ended
            found += map(int, task.read_text().split())
    return found


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # gone, or somebody else's by now (setuid)
        os.kill(pid, number)

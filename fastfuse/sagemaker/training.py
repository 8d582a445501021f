"""The process that trains: started with the caller's signals and streams, told to stop as SageMaker does it.

It stays in our process group, so that a terminal's job control reaches both and an interactive script can read from
it. Whatever it starts becomes our child once its own parent is gone (`adopt_orphans`), and is told to end as well: a
shell that is told dies and tells nobody, and in a container nothing outlives the first process, either.
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
from fastfuse.mount.children import fork_child

__all__ = ["CommandProcess", "adopt_orphans", "find_command", "ignored_signals"]

_log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <sys/prctl.h>

# What shells answer for a file that is there and cannot be run.
_CANNOT_RUN = 126
# What Python changed of its own accord when it started, and a program expects to find at its default.
_PYTHONS_OWN = (signal.SIGPIPE, signal.SIGXFSZ)
# What `fork_child` resets, and a caller may have had ignored (nohup, a shell's background).
_INHERITED = (signal.SIGINT, signal.SIGHUP)
# A process that does not end within this time after SIGKILL waits for a device, and we not for it.
_DIES_WITHIN_S = 5.0


def find_command(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The file to run.

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
    """Those that our caller does not want to reach us."""
    return {number for number in _INHERITED if signal.getsignal(number) == signal.SIG_IGN}


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


class CommandProcess:
    """The command, from its start to its end."""

    def __init__(self, program: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        ignored = ignored_signals()
        # Children that are not its: channels, the guardian, and what a shell had started that became us by `exec`.
        self._others = frozenset(_children(os.getpid()))
        self.pid = fork_child(lambda: _become(program, command, environment, ignored))
        self._exit_code: int | None = None
        self._kill_at_s: float | None = None

    @property
    def is_over(self) -> bool:
        return self._exit_code is not None

    @property
    def exit_code(self) -> int:
        """As shells tell it: its own, or 128 and the signal that killed it."""
        assert self._exit_code is not None
        return self._exit_code if self._exit_code >= 0 else 128 - self._exit_code

    def ended(self, exit_code: int) -> None:
        """It was reaped; `exit_code` is negative for a signal."""
        self._exit_code = exit_code

    def describe_end(self) -> str:
        assert self._exit_code is not None
        if self._exit_code >= 0:
            return f"the command exited with {self._exit_code}"
        return f"the command was killed by {signal.Signals(-self._exit_code).name}"

    def stop(self, number: signal.Signals, timeout_s: float, *, has_it: bool = False) -> None:
        """Send it `number`, unless it has that already, and have `enforce` kill it once the time is over."""
        if self.is_over:
            return
        if not has_it:
            _send(self.pid, number)
        if self._kill_at_s is None:
            self._kill_at_s = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float | None:
        """How long until it has to be killed; None while nobody wants it to end."""
        return None if self._kill_at_s is None else max(0.0, self._kill_at_s - time.monotonic())

    def enforce(self) -> None:
        """Kill it with all that it started if its time is over."""
        if not self.is_over and self.left_s == 0.0:
            _log.warning("the command did not end in time and is killed")
            self.kill()

    def leftovers(self, timeout_s: float) -> "Leftovers":
        """What it leaves running, which may take so long to end."""
        return Leftovers(self._others, timeout_s)

    def kill(self) -> None:
        """With all that it started."""
        if not self.is_over:
            for pid in (*_descendants(self.pid), self.pid):
                _send(pid, signal.SIGKILL)


class Leftovers:
    """What the command left running when it ended: children that are not among `others`."""

    def __init__(self, others: Container[int], timeout_s: float) -> None:
        self._others = others
        self._kill_at_s = time.monotonic() + timeout_s
        self._told: set[int] = set()

    def press(self) -> bool:
        """Tell those that are left to end, or make them; False once nobody is left, or nothing helps."""
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


def _become(program: str, command: Sequence[str], environment: Mapping[str, str], ignored: Iterable[int]) -> None:
    # If we are killed: its data are gone, but it may have a checkpoint to write.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    for number in _PYTHONS_OWN:
        signal.signal(number, signal.SIG_DFL)
    for inherited in ignored:
        signal.signal(inherited, signal.SIG_IGN)
    try:
        os.execve(program, list(command), dict(environment))
    except OSError as error:
        os.write(2, f"fastfuse: error: {program} cannot be run: {error.strerror}\n".encode(errors="replace"))
        os._exit(_CANNOT_RUN)


def _descendants(pid: int) -> list[int]:
    found = _children(pid)
    for child in found:
        found += _children(child)
    return found


def _children(pid: int) -> list[int]:
    """proc(5); of every thread, for any of them may have forked."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread, or all of it, has just ended
            found += map(int, task.read_text().split())
    return found


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # gone, or somebody else's by now (setuid)
        os.kill(pid, number)

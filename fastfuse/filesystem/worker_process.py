"""The worker as the supervisor sees it: started, watched, given newer tables, and killed if it hangs.

The supervisor waits for a worker here and nowhere else, and never longer than it takes to find that one hangs. It goes
on telling the service manager meanwhile that it lives.
"""

import json
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from fastfuse import log
from fastfuse.errors import ServiceError
from fastfuse.filesystem.processes.children import DIES_WITHIN_S, is_over_within, wait_child
from fastfuse.filesystem.processes.hang_report import cpu_and_state, hang_report, is_held
from fastfuse.filesystem.processes.health import BEAT_EVERY_S, Heartbeat
from fastfuse.filesystem.processes.sockets import raise_no_sigio
from fastfuse.filesystem.serving.worker import LOG_FILE, LOG_LEVEL, READY, REQUEST, SWAPPED, TABLE
from fastfuse.metrics import Counters

_log = logging.getLogger(__name__)

# A worker whose loop turns, but does not take a table within this time, hangs, too. A million files take 0.1 s.
_SWAP_S = 10.0
# A worker that is told to end counts what it did last.
_COUNTS_WITHIN_S = 0.5


class WorkerProcess:
    """One worker after the other."""

    def __init__(self, counters: Counters, every_second: Callable[[], None]) -> None:
        """`every_second` is called so often while a worker is waited for."""
        self._counters = counters
        self._heartbeat = Heartbeat()
        self._every_second = every_second
        # 0 while no worker lives.
        self.pid = 0
        # These are of the last one. It `has_served` once it was ready; the exit code is None if it hung.
        # It `is_blameless` if it did not die of what it did: it was killed or stopped from outside, or for its memory,
        # or retired, or waited for a disk.
        self.has_served = False
        self.end = ""
        self.exit_code: int | None = 0
        self.is_blameless = self._was_stopped = False
        # Hung ones that were killed and have not ended.
        self.undead: set[int] = set()
        # Takes to the worker what is handed over, and brings what it says.
        self.messages = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The worker writes the stacks of its threads into it (`faulthandler`).
        self.dump_fd = os.memfd_create("worker-stacks")

    @property
    def may_have_ended_by_cache(self) -> bool:
        """Return whether the last worker hung, and nobody had stopped it, or a file that it had mapped was cut."""
        return self.exit_code == -signal.SIGBUS or (self.exit_code is None and not self._was_stopped)

    @property
    def may_survive(self) -> bool:
        """Return whether a worker may not die when it is killed: a disk may hold it, and it the connection."""
        return bool(self.undead) or (self.pid != 0 and is_held(self.pid))

    def start(self, fork: Callable[[socket.socket], int]) -> None:
        """Have `fork` start a worker, and wait until it serves.

        `fork` passes the worker its end of the socket for messages, and returns the worker's pid.

        Raises:
            ServiceError: it died or hung before.
            NoRoomError: `fork` raised it.
        """
        self.messages.close()
        self.messages, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.messages.settimeout(_SWAP_S)
        with theirs:
            self.pid, self.has_served = fork(theirs), False
        self._heartbeat.restart(time.monotonic())
        if self._comes():
            self.has_served = self._says(READY)
            if self.has_served:
                self._heartbeat.restart(time.monotonic())
                return
            self.child_ended(self.pid, wait_child(self.pid))
        raise ServiceError(f"the worker did not come to serve: {self.end}", hint="see the log")

    def take_table(self, snapshot_fd: int) -> None:
        """Have the worker answer from another table; kill one that does not, so that its successor does."""
        with suppress(OSError):  # it has died, or takes nothing any more
            socket.send_fds(self.messages, [TABLE], [snapshot_fd])
            if self._comes(within_s=_SWAP_S) and self._says(SWAPPED):
                return
        _log.warning("the worker does not take the new table")
        self.kill()

    def take_request(self, connection: socket.socket, asked: Mapping[str, Any]) -> bool:
        """Have the worker answer a client, and what it asked, from now on; return False if none can."""
        raise_no_sigio(connection)
        return self._hand_over(REQUEST + json.dumps(asked).encode(), connection.fileno())

    def take_log_level(self) -> None:
        """Have the worker log from the level on at which this process does."""
        self._hand_over(LOG_LEVEL + log.level().encode())

    def take_log_file(self, fd: int) -> None:
        """Have the worker log to another file."""
        self._hand_over(LOG_FILE, fd)

    def _hand_over(self, message: bytes, *fds: int) -> bool:
        """Send the worker a message, without waiting; return False if none lives, or one that takes nothing."""
        with suppress(OSError):  # it has died
            if self.pid and select.select([], [self.messages], [], 0)[1]:
                socket.send_fds(self.messages, [message], fds)
                return True
        return False

    def child_ended(self, pid: int, exit_code: int) -> None:
        """Note that the caller reaped the process `pid`."""
        self.undead.discard(pid)
        if pid != self.pid:
            return
        self.pid, self.exit_code = 0, exit_code
        self.end = f"it was killed by signal {-exit_code}" if exit_code < 0 else f"it exited with {exit_code}"
        self.is_blameless = exit_code in {-signal.SIGKILL, 0}

    def kill(self) -> None:
        """Kill the worker, if one lives; it is still to be reaped."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)

    def close(self, within_s: float = 0.0) -> None:
        """Have the worker, if one lives, end; kill it if that takes longer than `within_s` and a moment.

        One that does not die of it, because a disk holds it, is left to init.
        """
        self.messages.close()
        if self.pid:
            is_over_within(self.pid, within_s + _COUNTS_WITHIN_S)
        self.kill()
        if self.pid and is_over_within(self.pid, DIES_WITHIN_S):
            wait_child(self.pid)
        elif self.pid:
            _log.warning("worker %d was killed and does not end: a disk that hangs may hold it", self.pid)

    def _says(self, word: bytes) -> bool:
        """Return whether the worker has said this."""
        with suppress(OSError):  # it has died
            return self.messages.recv(len(word)) == word
        return False

    def _comes(self, *, within_s: float = float("inf")) -> bool:
        """Wait until the worker says something, or dies; return False if it hung before, or that time is over."""
        until_s = time.monotonic() + within_s
        while not select.select([self.messages], [], [], BEAT_EVERY_S)[0]:
            self._every_second()
            if self.kill_if_hung() or time.monotonic() >= until_s:
                return False
        self._every_second()
        return True

    def kill_if_hung(self) -> bool:
        """Kill the worker if one lives and hangs, and return whether it did.

        Nobody waits until it is gone: it answers nothing any more, whatever it is stuck in.
        """
        if not self.pid:
            return False
        cpu_s, state = cpu_and_state(self.pid)
        beats = self._counters.get("fastfuse_worker_beats")
        if not self._heartbeat.is_hung(beats=beats, cpu_s=cpu_s, state=state, now_s=time.monotonic()):
            return False
        self.end = f"it hung for {self._heartbeat.silent_s:.0f} s (state {state})"
        _log.error("the worker does not answer: %s; it is killed. What it was doing:", self.end)
        for line in hang_report(self.pid, self.dump_fd):
            _log.error("hung worker %d: %s", self.pid, line)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        # Reaped whenever it is gone. One that a signal or a debugger has stopped hung in nothing.
        # A disk holds its first thread (D), or another one that outlives the first (Z).
        self.undead.add(self.pid)
        self.pid, self.exit_code, self._was_stopped = 0, None, state in {"T", "t"}
        self.is_blameless = self._was_stopped or state in {"D", "Z"}
        self._counters.count("fastfuse_worker_hangs")
        return True

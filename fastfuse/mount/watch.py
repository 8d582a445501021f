"""Watches the worker for the supervisor: kills one that hangs, after telling what it does."""

import logging
import os
import signal
import time
from contextlib import suppress

from fastfuse.metrics import Counters
from fastfuse.mount.hang_report import cpu_and_state, hang_report
from fastfuse.mount.heartbeat import Heartbeat

__all__ = ["WorkerWatch"]

_log = logging.getLogger(__name__)


class WorkerWatch:
    """Watches one worker after the other."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._beats_slot = counters.slot("fastfuse_worker_beats")
        self._heartbeat = Heartbeat()
        # The worker writes the stacks of its threads into it (`faulthandler`).
        self.dump_fd = os.memfd_create("worker-stacks")

    def restart(self) -> None:
        """Watch a worker that has just begun to serve."""
        os.ftruncate(self.dump_fd, 0)
        os.lseek(self.dump_fd, 0, os.SEEK_SET)  # workers share this offset
        self._heartbeat.restart(time.monotonic())

    def kill_if_hung(self, pid: int) -> str:
        """Kill the worker `pid` if it hangs, and return how it ended; "" if it lives.

        The caller need not wait until it is gone: it answers nothing any more, whatever it is stuck in.
        """
        cpu_s, state = cpu_and_state(pid)
        beats = self._counters.read(self._beats_slot)
        if not self._heartbeat.is_hung(beats=beats, cpu_s=cpu_s, wants_cpu=state == "R", now_s=time.monotonic()):
            return ""
        how = f"it hung for {self._heartbeat.silent_s:.0f} s (state {state})"
        _log.error("the worker does not answer: %s; it is killed. What it was doing:", how)
        for line in hang_report(pid, self.dump_fd):
            _log.error("hung worker %d: %s", pid, line)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return how

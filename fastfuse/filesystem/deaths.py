"""Take stock when a worker has died: say of what, fail what workers die of, and decide when the next one starts.

Until then, count for how long readers wait for a worker that says nothing.
"""

import logging
import signal
import time
from math import inf

from fastfuse.cgroup import oom_kills
from fastfuse.filesystem.kernel.in_hand import ReadsInHand
from fastfuse.filesystem.kernel.session import Session
from fastfuse.filesystem.mounting.mount_settings import MINIMUM_MEMORY_BYTES
from fastfuse.filesystem.processes.health import DEATHS_WITHIN_S, LONGEST_LOOK_S, DeathRecord
from fastfuse.filesystem.worker_process import WorkerProcess
from fastfuse.metrics import Counters

_log = logging.getLogger(__name__)

# A worker counts a beat every second, and may be late.
_SILENT_S = 2.0


class Deaths:
    """The deaths of one mount's workers."""

    def __init__(
        self,
        worker: WorkerProcess,
        counters: Counters,
        in_hand: ReadsInHand,
        read_deadline_s: float,
    ) -> None:
        self._worker = worker
        self._counters = counters
        self._in_hand = in_hand
        self._record = DeathRecord(read_deadline_s)
        # The number of processes of the control group that memory has killed, if it is known, and when it grew.
        self._oom_kills = oom_kills()
        self._grew_s = -inf
        # The last worker that was killed by SIGKILL, and whether the log has named the cause in this series.
        self._killed_s, self._has_told = -inf, False
        self._silence = Silence(worker, counters)
        self._looked_s = inf
        # Announced paths that workers have taken until the last death.
        self._taken_paths = 0
        # At the last death the request that was waited for was failed.
        self._has_refused = False

    def look(self, session: Session | None) -> None:
        """Look whether memory runs out, who waits for a worker, and whether all stood still; call it every second."""
        before_s, self._looked_s = self._looked_s, time.monotonic()
        if self._looked_s > before_s + LONGEST_LOOK_S:
            self._in_hand.resumed_s = self._looked_s
        self._look_at_memory()
        self._silence.look(session)

    def note(self, session: Session) -> float:
        """Count the death of the last worker, and return the seconds to wait before the next one starts.

        Raises:
            ServiceError: one worker dies after the other, and no request is served.
        """
        worker, counters, now_s = self._worker, self._counters, time.monotonic()
        if worker.exit_code == -signal.SIGKILL:
            self._tell_kill(now_s)
        pause_s = self._record.note(
            worker.end,
            now_s=now_s,
            answered=counters.get("fastfuse_requests"),
            is_blameless=worker.is_blameless,
            is_waited_for=not self._has_refused and (not worker.has_served or session.is_waited_for),
        )
        taken = counters.get("fastfuse_hints", "taken")
        ended = "; orders that 'fastfuse hint' has announced end with it" if taken > self._taken_paths else ""
        self._taken_paths = taken
        _log.warning("%s; starting another%s", self._what_happened(session), ended)
        if poisoned := self._in_hand.worker_died(session.requests, is_blameless=worker.is_blameless):
            _log.error("workers die of the read of inode %d at %d of %d bytes: it fails from now on", *poisoned)
        refused = session.refuse_deadly_request(is_blameless=worker.is_blameless)
        self._has_refused = refused is not None
        if refused:
            _log.error("workers die of request %d, operation %d of FUSE, of inode %d: it fails", *refused)
            counters.count("fastfuse_errors", value="EIO")  # not answered by a worker
        counters.count("fastfuse_worker_respawns")
        # Its successor counts again what it goes on with.
        counters.set("fastfuse_waiting_reads", 0)
        return pause_s

    def _look_at_memory(self) -> None:
        if (kills := oom_kills()) is not None:
            if self._oom_kills not in {None, kills}:
                self._grew_s = time.monotonic()
            self._oom_kills = kills

    def _tell_kill(self, now_s: float) -> None:
        """Log once in a series of kills that memory ran out; none in it is a minute after the one before.

        Where the control group counted no kill, a person may have killed one worker, but hardly a second one.
        """
        self._look_at_memory()
        is_counted = now_s - self._grew_s < DEATHS_WITHIN_S
        is_series = now_s - self._killed_s < DEATHS_WITHIN_S
        has_told, self._has_told = is_series and self._has_told, is_counted or is_series
        self._killed_s = now_s
        if self._has_told and not has_told:
            is_least = self._counters.get("fastfuse_memory_target_bytes") <= MINIMUM_MEMORY_BYTES
            _log.error(
                "workers are killed%s: give %s",
                " by the OOM killer" if is_counted else " by SIGKILL, as the OOM killer does",
                "the container a larger memory limit, 512 MiB or more: --memory-target is the least already"
                if is_least
                else "a smaller --memory-target, or the container a larger memory limit",
            )

    def _what_happened(self, session: Session) -> str:
        if self._worker.exit_code == 0 and not session.is_connected:
            return "the connection to the kernel was aborted, which ends the worker"
        return f"the worker died: {self._worker.end}"


class Silence:
    """Counts the time in which readers wait for a worker that is dead or stands still, and cannot count it itself."""

    def __init__(self, worker: WorkerProcess, counters: Counters) -> None:
        self._worker = worker
        self._counters = counters
        self._beats = 0
        # The last look, and the requests that readers waited for then.
        self._looked_s, self._waiting = 0.0, 0
        # The time that they have waited since the last beat, and what of it is counted as stalled.
        self._silent_s = self._counted_s = 0.0

    def look(self, session: Session | None) -> None:
        """Look whether somebody waits for the worker; call it every second."""
        worker, counters, now_s = self._worker, self._counters, time.monotonic()
        before, self._beats = self._beats, counters.get("fastfuse_worker_beats")
        is_gone = not (worker.pid and worker.has_served)
        if self._beats != before and not is_gone:
            self._silent_s = self._counted_s = 0.0  # it counts the reads that it had
        elif self._waiting and self._beats:
            self._silent_s += min(now_s - self._looked_s, LONGEST_LOOK_S)
        # A worker that goes on will count the reads that it has taken, and no others.
        new_us = int((self._silent_s - self._counted_s) * 1e6)
        if is_gone or (new_us >= _SILENT_S * 1e6 and not counters.get("fastfuse_waiting_reads")):
            self._counted_s = self._silent_s
            counters.count("fastfuse_stalled_seconds", new_us)
            counters.count("fastfuse_blocked_seconds", new_us * self._waiting)
        if is_gone:  # one that goes on was stopped, or starved of CPU
            counters.count("fastfuse_unserved_seconds", int(self._silent_s * 1e6))
            self._silent_s = self._counted_s = 0.0
        self._looked_s = now_s
        self._waiting = max(1, len(session.owed)) if session is not None and session.is_waited_for else 0

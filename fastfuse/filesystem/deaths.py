"""Take stock when a worker has died: say of what, fail what workers die of, and decide when the next one starts."""

import logging
import signal
import time

from fastfuse.cgroup import oom_kills
from fastfuse.filesystem.kernel.in_hand import ReadsInHand
from fastfuse.filesystem.kernel.session import Session
from fastfuse.filesystem.processes.health import DeathRecord, MemoryRecord
from fastfuse.filesystem.worker_process import WorkerProcess
from fastfuse.metrics import Counters

_log = logging.getLogger(__name__)


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
        self._memory = MemoryRecord(oom_kills())
        # At the last death the request that was waited for was failed.
        self._has_refused = False

    def look(self) -> None:
        """Look whether memory runs out; call it every second."""
        self._memory.look(time.monotonic(), oom_kills())

    def note(self, session: Session) -> float:
        """Count the death of the last worker, and return the seconds to wait before the next one starts.

        Raises:
            ServiceError: one worker dies after the other, and no request is served.
        """
        worker, counters, now_s = self._worker, self._counters, time.monotonic()
        if worker.exit_code == -signal.SIGKILL and (told := self._memory.killed(now_s, oom_kills())):
            _log.error("%s", told)
        pause_s = self._record.note(
            worker.end,
            now_s=now_s,
            answered=counters.get("fastfuse_requests"),
            was_killed=worker.was_killed,
            is_waited_for=not self._has_refused and (not worker.has_served or session.is_waited_for),
            has_retired=worker.exit_code == 0,
        )
        _log.warning("%s; starting another", self._what_happened(session))
        if poisoned := self._in_hand.worker_died(session.requests, was_killed=worker.was_killed):
            _log.error("workers die of the read of inode %d at %d of %d bytes: it fails from now on", *poisoned)
        refused = session.refuse_deadly_request(was_killed=worker.was_killed)
        self._has_refused = refused is not None
        if refused:
            _log.error("workers die of request %d, operation %d of FUSE, of inode %d: it fails", *refused)
            counters.count("fastfuse_errors", value="EIO")  # not answered by a worker
        counters.count("fastfuse_worker_respawns")
        # Its successor counts again what it goes on with.
        counters.set("fastfuse_waiting_reads", 0)
        return pause_s

    def _what_happened(self, session: Session) -> str:
        if self._worker.exit_code == 0 and not session.is_connected:
            return "the connection to the kernel was aborted, which ends the worker"
        return f"the worker died: {self._worker.end}"

"""Threads that receive long bodies, each in one or two calls without the GIL.

trio's own are started by `threading.Thread`, which waits until the new one runs. That one wants the GIL, as do all that
have received something, so each start kept the event loop for 1 ms: where the first parts of a job came over thirty
connections at once, 35 ms went by before it took any of them. Here nobody waits for a thread, and what many have done
meanwhile is taken in one turn of the loop.
"""

import errno
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, Queue

import trio

__all__ = ["NoThreadError", "Receivers"]

# As trio's.
_IDLE_S = 10.0


class NoThreadError(OSError):
    """The system has no room for a thread, and none is there yet."""


class _Job:
    """`task` waits for what `work` returns or raises; None once it was cancelled."""

    __slots__ = ("count", "error", "task", "work")

    def __init__(self, work: Callable[[], int], task: trio.lowlevel.Task) -> None:
        self.work = work
        self.task: trio.lowlevel.Task | None = task
        self.count = 0
        self.error: BaseException | None = None


class Receivers:
    """A thread for each work at once; those without any end after a while. For one run of trio.

    Only the event loop decides how many there are.
    """

    def __init__(self, idle_s: float = _IDLE_S) -> None:
        self._idle_s = idle_s
        # None ends a thread. Not a SimpleQueue: where another thread is faster, its `get` may wait for ever (CPython
        # 3.11 goes on with what is left of the timeout, and takes less than nothing for no timeout).
        self._jobs: Queue[_Job | None] = Queue()
        self._finished: deque[_Job] = deque()
        # Whether `_take_finished` is about to be called.
        self._is_told = False
        self._threads = self._busy = 0

    async def run(self, work: Callable[[], int]) -> int:
        """What `work` returns, or raises, in a thread; who cancels this sees to it that it ends.

        Raises:
            NoThreadError: `work` will not be called.
        """
        job = _Job(work, trio.lowlevel.current_task())
        if self._busy >= self._threads:
            self._start()
        self._busy += 1
        self._jobs.put(job)

        def give_up(_: object) -> trio.lowlevel.Abort:
            job.task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)
        error, job.error = job.error, None
        if error is None:
            return job.count
        try:
            raise error
        finally:
            # Its traceback, which it refers to, has this frame, and that of `work` the part's memory.
            del error

    def _start(self) -> None:
        try:
            start_new_thread(self._serve, (trio.lowlevel.current_trio_token(),))
        except RuntimeError as error:
            if not self._threads:
                raise NoThreadError(errno.EAGAIN, "no room for a thread; see ulimit -u and pids.max") from error
            # Those that are here do it when they can.
        else:
            self._threads += 1

    def _serve(self, token: trio.lowlevel.TrioToken) -> None:
        # Of a run that is over no thread is left once it has had nothing to do.
        with suppress(trio.RunFinishedError):
            while True:
                try:
                    job = self._jobs.get(timeout=self._idle_s)
                except Empty:
                    token.run_sync_soon(self._take_leave)
                    continue
                if job is None:
                    return
                try:
                    job.count = job.work()
                except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits for it
                    job.error = error
                self._finished.append(job)
                # The part's memory is used again.
                del job
                if not self._is_told:
                    self._is_told = True
                    token.run_sync_soon(self._take_finished)

    def _take_finished(self) -> None:
        # First of all: whoever finishes from now on tells it again.
        self._is_told = False
        while self._finished:
            job = self._finished.popleft()
            self._busy -= 1
            if job.task is not None:
                trio.lowlevel.reschedule(job.task)

    def _take_leave(self) -> None:
        """A thread has had nothing to do for long."""
        if self._busy < self._threads:
            self._threads -= 1
            self._jobs.put(None)

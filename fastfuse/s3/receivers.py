"""Threads that receive long bodies, each in one or two calls without the GIL.

trio starts its threads by `threading.Thread`, which waits until the new thread runs. The new thread waits for the GIL,
as does every thread that has received something, so each start stopped the event loop for 1 ms: where the first parts
of a job came over thirty connections at once, 35 ms went by before the loop took any of them. Here the loop never waits
for a thread, and takes the results of many threads in one turn.
"""

import errno
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Queue

import trio

__all__ = ["NoThreadError", "Receivers"]

# trio's own threads end after this time, too.
_IDLE_S = 10.0


class NoThreadError(OSError):
    """The system has no room for a thread, and none is there yet."""

    def __init__(self) -> None:
        super().__init__(errno.EAGAIN, "no room for a thread; see ulimit -u and pids.max")


@dataclass(slots=True, eq=False)
class _Job:
    """One call of `work`. `task` waits for its result or error, and is None once it was cancelled."""

    work: Callable[[], int]
    task: trio.lowlevel.Task | None
    count: int = 0
    error: BaseException | None = None


class Receivers:
    """Runs each call in a thread of its own, for one run of trio. A thread that is idle for long ends.

    Only the event loop starts threads and decides how many there are.
    """

    def __init__(self, idle_s: float = _IDLE_S) -> None:
        self._idle_s = idle_s
        # None ends a thread. A SimpleQueue would not do: where another thread is faster, its `get` may wait for ever
        # (CPython 3.11 goes on with the rest of the timeout, and takes a negative rest for no timeout).
        self._jobs: Queue[_Job | None] = Queue()
        self._finished: deque[_Job] = deque()
        # True while `_take_finished` is about to be called.
        self._is_told = False
        self._threads = self._busy = 0

    async def run(self, work: Callable[[], int]) -> int:
        """Call `work` in a thread and return or raise as it does. A caller that is cancelled has to make `work` end.

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
            # The error refers to its traceback, and that to this frame and to the part's memory in the frame of `work`.
            del error

    def _start(self) -> None:
        try:
            start_new_thread(self._serve, (trio.lowlevel.current_trio_token(),))
        except RuntimeError as error:
            if not self._threads:
                raise NoThreadError from error
            # The threads that exist will take the job.
        else:
            self._threads += 1

    def _serve(self, token: trio.lowlevel.TrioToken) -> None:
        # Once the run of trio is over, an idle thread ends here.
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
                except BaseException as error:  # noqa: BLE001 - the waiting task raises it
                    job.error = error
                self._finished.append(job)
                # It keeps the part's memory from being used again.
                del job
                if not self._is_told:
                    self._is_told = True
                    token.run_sync_soon(self._take_finished)

    def _take_finished(self) -> None:
        # Reset first: a thread that finishes from now on has to announce it again.
        self._is_told = False
        while self._finished:
            job = self._finished.popleft()
            self._busy -= 1
            if job.task is not None:
                trio.lowlevel.reschedule(job.task)

    def _take_leave(self) -> None:
        """End a thread, because one has had nothing to do for long."""
        if self._busy < self._threads:
            self._threads -= 1
            self._jobs.put(None)

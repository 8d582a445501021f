"""The clock of trio's loops, which stands still while this process does not run.

A job scheduler stops a job for hours (SIGSTOP), and ``docker pause`` freezes a container. On the system's clock, the
deadlines of all requests under way pass meanwhile, and the requests would fail as the process goes on.
"""

from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import TypeVar, TypeVarTuple

import trio

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

# A loop sleeps for so long at a time, and looks at the clock at least so often; a busy machine delays it by less.
_LONGEST_SLEEP_S = 1.0
LONGEST_STEP_S = 3.0


def run(work: Callable[[*_Ts], Awaitable[_T]], *args: *_Ts, instruments: Sequence[trio.abc.Instrument] = ()) -> _T:
    """Return the result of ``work(*args)``, for which trio runs on a clock of this kind."""
    return trio.run(work, *args, clock=AwakeClock(), instruments=instruments)


class AwakeClock(trio.abc.Clock):
    """The monotonic clock, on which no more than `LONGEST_STEP_S` passes between two looks. For one run."""

    def __init__(self) -> None:
        self._looked_s, self._stopped_s = perf_counter(), 0.0

    def start_clock(self) -> None:
        """Do nothing: the time before the run does not matter."""

    def current_time(self) -> float:
        """Return the seconds on this clock."""
        now_s = perf_counter()
        if now_s > self._looked_s + LONGEST_STEP_S:
            self._stopped_s += now_s - self._looked_s - LONGEST_STEP_S
        self._looked_s = now_s
        return now_s - self._stopped_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return how long the loop sleeps, until `deadline` at most."""
        return min(deadline - self.current_time(), _LONGEST_SLEEP_S)

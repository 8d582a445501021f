"""Keeps what the counters of a mount or a channel were, for `fastfuse report`: its last hours, and a week coarsely.

A record is a JSON object. ``at`` has the times of the samples in seconds since 1970. ``numbers`` has a list of as many
numbers for each name of `Counters.NAMES`, or one number if it never changed.
"""

import time
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from fastfuse.metrics import Counters

# The file, in the directory of its outputs, in which a job leaves its record.
HISTORY_NAME: Final = "job-history.json"

# A chart of two hours has 720 points then, and a sample has 1.2 KB.
EVERY_S: Final = 10.0
_RECENT: Final = 720
# One in so many is kept when newer ones take its place: five minutes apart, for a week.
_COARSE: Final = 30
_OLD: Final = 2016

# The begin of this boot, in seconds since 1970, as it was known when this process began.
_BOOTED_AT: Final = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)

# When it was taken, in seconds since 1970, and the numbers.
_Sample: TypeAlias = "tuple[float, array[int]]"


def moment() -> float:
    """Return the seconds since 1970, on a clock that nobody sets while this process lives."""
    return _BOOTED_AT + time.clock_gettime(time.CLOCK_BOOTTIME)


class Recorder:
    """The samples of one set of counters."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._old: deque[_Sample] = deque(maxlen=_OLD)
        self._recent: deque[_Sample] = deque()
        self._looked_s = 0.0
        self._leaving = 0

    def look(self, now_s: float, now: float) -> None:
        """Take a sample if it is time: `now_s` on the monotonic clock, `now` in seconds since 1970."""
        if self._recent and now_s < self._looked_s + EVERY_S:
            return
        self._looked_s = now_s
        if len(self._recent) >= _RECENT:
            leaving = self._recent.popleft()
            if self._leaving % _COARSE == 0:
                self._old.append(leaving)
            self._leaving += 1
        self._recent.append((now, self._counters.copy()))

    def record(self, now: float) -> dict[str, Any]:
        """Return what was sampled, and what is `now`, as the part of a record that `samples_of` reads."""
        samples = [*self._old, *self._recent, (now, self._counters.copy())]
        columns = zip(Counters.NAMES, zip(*(numbers for _, numbers in samples), strict=True), strict=True)
        return {
            "at": [round(at, 1) for at, _ in samples],
            "numbers": {name: column[0] if len({*column}) == 1 else [*column] for name, column in columns},
        }


def samples_of(at: Sequence[float], numbers: Mapping[str, int | Sequence[int]]) -> list[tuple[float, Counters]]:
    """Return the samples of a record. A counter that this version does not know is left out; a new one is 0."""
    columns = [numbers.get(name, 0) for name in Counters.NAMES]
    rows = zip(*([column] * len(at) if isinstance(column, int) else column for column in columns), strict=True)
    return [(moment, Counters(row)) for moment, row in zip(at, rows, strict=True)]

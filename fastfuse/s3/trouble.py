"""Tells in the log what keeps requests from being answered, and when it is over."""

import logging
import time
from typing import Any

import trio

from fastfuse.metrics import Counters
from fastfuse.repeats import RepeatedFailures
from fastfuse.s3.failures import Failure

__all__ = ["Trouble"]

_log = logging.getLogger(__name__)

# Objects that waited and are told apart.
_MOST_NAMES = 10_000
# Kinds of failures that `Trouble.now` tells.
_MOST_KINDS = 5


class Trouble:
    """The time from the first request that has to be tried again to the first answer after the last of them.

    A request tells of each failure with `failed`, and `ended` once it is tried no more; any request that is answered
    calls `answered` while `is_open`.
    """

    def __init__(self, counters: Counters | None = None) -> None:
        self.is_open = False
        self._counters = counters or Counters()
        self._repeats = RepeatedFailures(_log)
        self._waiting = 0
        self._began_s = 0.0
        self._was_told = False
        # How many failures there were of each kind, the names of the objects, and what was done with them.
        self._failures: dict[str, int] = {}
        self._names: set[str] = set()

    def now(self) -> dict[str, Any] | None:
        """Return the trouble that there is, as JSON can carry it: since when (seconds since 1970), and what fails."""
        if not self.is_open:
            return None
        worst = sorted(self._failures.items(), key=lambda item: -item[1])[:_MOST_KINDS]
        return {
            "since": time.time() - (trio.current_time() - self._began_s),
            "failures": dict(worst),
            "requests": self._waiting,
        }

    def failed(self, name: str, failure: Failure, *, attempt: int, waited_s: float) -> None:
        """Note that a request for `name` failed for the `attempt`-th time, and is tried again."""
        now_s = trio.current_time()
        if not self.is_open:
            self.is_open, self._began_s, self._was_told = True, now_s - waited_s, False
            self._failures.clear()
            self._names.clear()
        if attempt == 1:
            self._waiting += 1
        self._failures[failure.detail] = self._failures.get(failure.detail, 0) + 1
        if len(self._names) < _MOST_NAMES:
            self._names.add(name)
        self._counters.add(self._counters.slot("fastfuse_retries", failure.cause))
        request = f", request {failure.request_id}" if failure.request_id else ""
        self._was_told |= self._repeats.tell(
            f"requests tried again after {failure.detail}",
            name,
            f"{name}: {failure.detail}{request}; trying again (attempt {attempt} failed, {waited_s:.1f} s so far)",
        )

    def ended(self) -> None:
        """Note that a request that had failed is answered, or is not tried again."""
        self._waiting -= 1

    def answered(self) -> None:
        """Note that a request was answered: if none waits to be tried again, the trouble is over."""
        if self._waiting or not self.is_open:
            return
        self.is_open = False
        if not self._was_told:
            return
        failures = ", ".join(f"{count} × {detail}" for detail, count in self._failures.items())
        _log.info(
            "answered again after %.1f s: %s; %d %s waited",
            trio.current_time() - self._began_s,
            failures,
            len(self._names),
            "object" if len(self._names) == 1 else "objects",
        )

"""The one retry policy: it decides which failures are tried again, how often, and after which pauses.

The log tells what keeps requests from being answered, and when it is over.

botocore's own retries are off, for uploads too: they stop at a response's headers (a GET cut off in its body is not
retried) and share a quota that a burst of 503 drains for every file at once.
"""

import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, TypeVar

import trio

from fastfuse.metrics import Counters
from fastfuse.repeats import RepeatedFailures
from fastfuse.s3.failures import Failure, Kind

__all__ = ["FIRST_PAUSE_S", "LONGEST_PAUSE_S", "UNTIL_DEADLINE", "Retries", "RetryBudget", "RetryableError", "attempts"]

_log = logging.getLogger(__name__)

# "Full jitter", https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0

# All requests of a client together: the burst lets a full set of connections be tried again at once. What 128 requests
# in an outage make of the pauses above is 50 a second.
RETRIES_PER_S = 50.0
RETRY_BURST = 128
RETRIES_PER_ANSWER = 0.5

# The deadline ends these attempts, not a count: a busy service recovers within it.
UNTIL_DEADLINE = 1000
# Three pauses: an address that does not answer, of a mistyped --endpoint-url say, is reported within two seconds.
_A_FEW = 4
_ATTEMPTS = {
    Kind.THROTTLED: UNTIL_DEADLINE,
    Kind.BUSY: UNTIL_DEADLINE,
    Kind.BROKEN: UNTIL_DEADLINE,
    Kind.UNREACHABLE: _A_FEW,
    # A service that starts may close connections, too. What answers instead is told within two seconds.
    Kind.NOT_S3: _A_FEW,
    # New credentials, or a clock that was set, may be there a moment later.
    Kind.EXPIRED: _A_FEW,
    Kind.SKEWED: _A_FEW,
}

# The objects that waited and are counted apart, and the kinds of failures that `Retries.trouble` tells.
_MOST_NAMES = 10_000
_MOST_KINDS = 5

T = TypeVar("T")


def attempts(kind: Kind, *, is_read: bool, is_mended: bool = False) -> int:
    """Return how often a request is made in all before a failure of `kind` is final.

    A mount that serves reads outlives an outage of the network; a command that starts does not wait for one. If the
    reason of the failure `is_mended`, by new credentials say, only the deadline counts.
    """
    if is_mended:
        # A denied object stays denied, whichever credentials a program makes up for each call.
        return _A_FEW if kind is Kind.DENIED else UNTIL_DEADLINE
    return UNTIL_DEADLINE if is_read and kind is Kind.UNREACHABLE else _ATTEMPTS.get(kind, 1)


class RetryableError(Exception):
    """Wraps the `error` that is raised in the end if no later attempt succeeds."""

    def __init__(self, error: Exception, failure: Failure, *, is_read: bool = False, is_mended: bool = False) -> None:
        """The next attempt is expected to succeed if the reason `is_mended`, and nothing is told in the log."""
        super().__init__(str(error))
        self.error = error
        self.failure = failure
        self.is_mended = is_mended
        self.attempts = attempts(failure.kind, is_read=is_read, is_mended=is_mended)


class RetryBudget:
    """The number of retries per second of all requests together, so that they do not multiply an outage.

    The generic cell rate algorithm (ITU-T I.371): a retry waits until the earlier ones have been spread in time.
    """

    def __init__(self) -> None:
        # When the last retry would have been made if none had been made ahead of its time.
        self._spread_until_s = -inf

    def wait_s(self, now_s: float) -> float:
        """Return how long the next retry has to wait at least."""
        self._spread_until_s = max(self._spread_until_s, now_s - RETRY_BURST / RETRIES_PER_S) + 1 / RETRIES_PER_S
        return max(0.0, self._spread_until_s - now_s)

    def answered(self) -> None:
        """Note that the service answered a request: it can bear more retries."""
        self._spread_until_s -= RETRIES_PER_ANSWER / RETRIES_PER_S


class Retries:
    """Tries the requests of one client again, by one policy and one budget, and tells of their trouble in the log.

    There is trouble from the first request that has to be tried again to the first answer after the last of them.
    """

    def __init__(self, counters: Counters | None = None) -> None:
        self.is_in_trouble = False
        self._budget = RetryBudget()
        self._counters = counters or Counters()
        self._repeats = RepeatedFailures(_log)
        self._waiting = 0
        self._began_s = 0.0
        self._was_told = False
        # The failures of this trouble by kind, and the names of what was requested.
        self._failures = Counter[str]()
        self._names: set[str] = set()

    def trouble(self) -> dict[str, Any] | None:
        """Return the trouble that there is, as JSON can carry it: since when (seconds since 1970), and what fails."""
        if not self.is_in_trouble:
            return None
        return {
            "since": time.time() - (trio.current_time() - self._began_s),
            "failures": dict(self._failures.most_common(_MOST_KINDS)),
            "requests": self._waiting,
        }

    def answered(self) -> None:
        """Note that a request was answered while there is trouble, which is over if none waits to be tried again."""
        self._budget.answered()
        if self._waiting or not self.is_in_trouble:
            return
        self.is_in_trouble = False
        if self._was_told:
            _log.info(
                "answered again after %.1f s: %s; %d %s waited",
                trio.current_time() - self._began_s,
                ", ".join(f"{count} × {detail}" for detail, count in self._failures.items()),
                len(self._names),
                "object" if len(self._names) == 1 else "objects",
            )

    async def run(self, attempt: Callable[[], Awaitable[T]], *, name: str, failed: RetryableError | None = None) -> T:
        """Return the result of `attempt`, called again while it raises `RetryableError`; `failed` is a first failure.

        `name` tells in the log what was requested. Failures are counted apart by kind: four of one do not end the
        attempts of another.

        Raises the wrapped error when the attempts are used up, or at once when the next pause would outlive the
        deadline of the surrounding cancel scope.
        """
        result = await self._run(attempt, name, failed)
        if self.is_in_trouble:
            self.answered()
        return result

    async def _run(self, attempt: Callable[[], Awaitable[T]], name: str, failed: RetryableError | None) -> T:
        made: Counter[Kind] = Counter()
        began_s = trio.current_time()
        told = 0
        try:
            while True:
                if failed is None:
                    try:
                        return await attempt()
                    except RetryableError as error:
                        failed = error
                kind = failed.failure.kind
                made[kind] += 1
                now_s = trio.current_time()
                pause_s = random.uniform(0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** made.total()))
                is_final = made[kind] >= failed.attempts
                if not is_final:
                    pause_s = max(pause_s, self._budget.wait_s(now_s))
                if is_final or now_s + pause_s >= trio.current_effective_deadline():
                    raise failed.error from failed.__cause__
                if not failed.is_mended:
                    told += 1
                    self._failed(name, failed.failure, attempt=told, waited_s=now_s - began_s)
                failed = None
                await trio.sleep(pause_s)
        finally:
            self._waiting -= min(told, 1)

    def _failed(self, name: str, failure: Failure, *, attempt: int, waited_s: float) -> None:
        """Note that a request for `name` failed for the `attempt`-th time, and is tried again."""
        if not self.is_in_trouble:
            self.is_in_trouble, self._began_s, self._was_told = True, trio.current_time() - waited_s, False
            self._failures.clear()
            self._names.clear()
        if attempt == 1:
            self._waiting += 1
        self._failures[failure.detail] += 1
        if len(self._names) < _MOST_NAMES:
            self._names.add(name)
        self._counters.add(self._counters.slot("fastfuse_retries", failure.cause))
        request = f", request {failure.request_id}" if failure.request_id else ""
        self._was_told |= self._repeats.tell(
            f"requests tried again after {failure.detail}",
            name,
            f"{name}: {failure.detail}{request}; trying again (attempt {attempt} failed, {waited_s:.1f} s so far)",
        )

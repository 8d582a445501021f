"""Tries requests again by the policy, and tells in the log what keeps them from being answered, and when it is over."""

import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from math import inf
from typing import Any, TypeVar

import trio

from fastfuse.errors import ServiceError
from fastfuse.metrics import Counters
from fastfuse.repeats import RepeatedFailures
from fastfuse.s3.failures import Failure, Kind
from fastfuse.s3.retry_policy import FailedAttempts, RetryBudget, attempts

_log = logging.getLogger(__name__)

# The failures that are counted apart by name, and how many of them are told.
_MOST_FAILURES = 100
_SHOWN = 5
_OTHERS = "other failures"
# What a service says that is there, and needs no other credentials for that.
_ANSWERS = frozenset({Kind.CHANGED, Kind.NO_BUCKET, Kind.DENIED, Kind.ARCHIVED, Kind.WRONG_REGION, Kind.OTHER})

T = TypeVar("T")


class RetryableError(Exception):
    """Wraps the `error` that is raised in the end if no later attempt succeeds."""

    def __init__(self, error: Exception, failure: Failure, *, is_read: bool = False, is_mended: bool = False) -> None:
        """The next attempt is expected to succeed if the reason `is_mended`, and nothing is told in the log."""
        super().__init__(str(error))
        self.error = error
        self.failure = failure
        self.is_mended = is_mended
        self.attempts = attempts(failure.kind, is_read=is_read, is_mended=is_mended)


class Retries:
    """Tries the requests of one client again, by one policy and one budget, and tells of their trouble in the log.

    There is trouble from the first request that has to be tried again to the first answer after the last of them.
    """

    def __init__(self, counters: Counters | None = None) -> None:
        self.is_in_trouble = False
        self._budget = RetryBudget()
        self._counters = counters or Counters()
        self._repeats = RepeatedFailures(_log)
        # The requests that wait to be made again, and those that have waited in this trouble.
        self._waiting = self._waited = 0
        # When the first request of this trouble was made, and when it failed.
        self._began_s = self._failed_s = 0.0
        # When the first request failed that no answer has followed, and when the last answer came.
        self._silent_since_s, self._answered_s = inf, -inf
        # The failures of this trouble, all and by name.
        self._failure_count = 0
        self._failures = Counter[str]()

    def trouble(self) -> dict[str, Any] | None:
        """Return the trouble that there is, as JSON can carry it: since when (seconds since 1970), and what fails."""
        if not self.is_in_trouble:
            return None
        return {
            "since": time.time() - (trio.current_time() - self._began_s),
            "failures": dict(self._most_failures()),
            "requests": self._waiting,
        }

    def take_over(self, trouble: Mapping[str, Any]) -> None:
        """Go on with the `trouble` of a client that is no more: it ends with the first answer, which is told."""
        self.is_in_trouble = True
        self._began_s, self._failed_s = trio.current_time() - (time.time() - trouble["since"]), -inf
        self._failures.update(trouble["failures"])
        self._failure_count = self._failures.total()
        self._waited = trouble["requests"]

    @property
    def silent_s(self) -> float:
        """The time in which requests have failed and none was answered; whoever goes on for others sets it.

        An answer is also one that a request is refused with for good. A request that hangs until its deadline has
        failed all the time.
        """
        return max(0.0, trio.current_time() - self._silent_since_s)

    @silent_s.setter
    def silent_s(self, silent_s: float) -> None:
        self._silent_since_s = trio.current_time() - silent_s if silent_s else inf

    def answered(self) -> None:
        """Note that a request was answered while there is trouble, which is over if none waits to be tried again."""
        self._budget.answered()
        if self._waiting:
            return
        self.is_in_trouble = False
        if self._repeats.told_s >= self._failed_s:
            failures = ", ".join(f"{count} × {name}" for name, count in self._most_failures())
            requests = "1 request" if self._waited == 1 else f"{self._waited} requests"
            took_s = trio.current_time() - self._began_s
            _log.info("answered again after %.1f s: %s; %s waited", took_s, failures, requests)
            self._repeats.forget_untold()

    async def run(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        name: str,
        failed: RetryableError | None = None,
        began_s: float | None = None,
    ) -> T:
        """Return the result of `attempt`, called again while it raises `RetryableError` or gets no memory.

        `failed` is a first failure, of an attempt that began at `began_s` on trio's clock.

        `name` tells in the log what was requested. Failures are counted apart by kind: four of one do not end the
        attempts of another.

        Raises the wrapped error when the attempts are used up; the last one is made shortly before the deadline of the
        surrounding cancel scope. If that is not answered either, the error is that of the one before.
        """
        began_s = trio.current_time() if began_s is None else began_s
        ends_s = trio.current_effective_deadline()
        try:
            result = await self._run(attempt, name, failed, began_s)
        except trio.Cancelled:
            if trio.current_time() >= ends_s:
                self._silent_since_s = min(self._silent_since_s, max(began_s, self._answered_s))
            raise
        self._end_silence()
        if self.is_in_trouble:
            self.answered()
        return result

    async def _run(
        self, attempt: Callable[[], Awaitable[T]], name: str, failed: RetryableError | None, began_s: float
    ) -> T:
        made = FailedAttempts(self._budget, began_s=began_s, deadline_s=trio.current_effective_deadline())
        told = 0
        last: RetryableError | None = None
        try:
            while True:
                if failed is None:
                    try:
                        return await (attempt() if last is None else _try_again(attempt, last, made.ends_s))
                    except RetryableError as error:
                        failed = error
                    except MemoryError:
                        final = ServiceError("This process got no memory.", hint="see ulimit -v and the free memory")
                        failed = RetryableError(final, Failure(kind=Kind.BROKEN, detail="no memory"))
                # Its frames hold it, and would keep the memory of this attempt until a collection, and there are few.
                failed.__traceback__ = None
                now_s = trio.current_time()
                pause_s = made.pause_s(failed.failure.kind, failed.attempts, draw=random.random(), now_s=now_s)
                if pause_s is None:
                    if failed.failure.kind in _ANSWERS:
                        self._end_silence()
                    raise failed.error from failed.__cause__
                if not failed.is_mended:
                    told += 1
                    self._failed(name, failed.failure, attempt=told, waited_s=now_s - began_s)
                last = None if failed.is_mended else failed
                failed = None
                await trio.sleep(pause_s)
        finally:
            self._waiting -= min(told, 1)
            failed = last = None  # which hold the error that is raised, and it this frame

    def _end_silence(self) -> None:
        self._silent_since_s, self._answered_s = inf, trio.current_time()

    def _failed(self, name: str, failure: Failure, *, attempt: int, waited_s: float) -> None:
        """Note that a request for `name` failed for the `attempt`-th time, and is tried again."""
        self._silent_since_s = min(self._silent_since_s, trio.current_time())
        if not self.is_in_trouble:
            self.is_in_trouble, self._failed_s = True, trio.current_time()
            self._began_s = self._failed_s - waited_s
            self._failure_count = self._waited = 0
            self._failures.clear()
        if attempt == 1:
            self._waiting += 1
            self._waited += 1
        self._failure_count += 1
        if failure.name in self._failures or len(self._failures) < _MOST_FAILURES:
            self._failures[failure.name] += 1
        self.count(name, failure, f" (attempt {attempt} failed, {waited_s:.1f} s so far)")

    def count(self, name: str, failure: Failure, attempts: str = "") -> None:
        """Count and log a failure of a request for `name` that is made again."""
        self._counters.count("fastfuse_retries", value=failure.cause)
        request = f", request {failure.request_id}" if failure.request_id else ""
        line = f"{name}: {failure.detail}{request}; trying again{attempts}"
        self._repeats.tell(f"requests tried again after {failure.name}", name, line)

    def _most_failures(self) -> list[tuple[str, int]]:
        """Return the most frequent failures of this trouble, each with its number, and that of all others."""
        shown = self._failures.most_common(_SHOWN)
        others = self._failure_count - sum(count for _, count in shown)
        return [*shown, (_OTHERS, others)] if others else shown


async def _try_again(attempt: Callable[[], Awaitable[T]], last: RetryableError, ends_s: float) -> T:
    """Return the result of `attempt`; raise what the `last` one failed with if this one goes on until `ends_s`."""
    with trio.move_on_at(ends_s):
        return await attempt()
    try:
        raise last.error from last.__cause__
    finally:
        del last  # as in `Retries._run`

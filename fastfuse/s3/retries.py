"""The one retry policy: it decides which failures are tried again, how often, and after which pauses.

botocore's own retries are off, for uploads too: they stop at a response's headers (a GET cut off in its body is not
retried) and share a quota that a burst of 503 drains for every file at once.
"""

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from fastfuse.s3.failures import Kind

__all__ = ["LONGEST_PAUSE_S", "UNTIL_DEADLINE", "RetryableError", "attempts", "retrying"]

# "Full jitter", https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0

# The deadline ends these attempts, not a count: a busy service recovers within it.
UNTIL_DEADLINE = 1000
# Three pauses: an address that does not answer, of a mistyped --endpoint-url say, is reported within two seconds.
_A_FEW = 4
_ATTEMPTS = {
    Kind.BUSY: UNTIL_DEADLINE,
    Kind.UNREACHABLE: _A_FEW,
    # New credentials, or a clock that was set, may be there a moment later.
    Kind.EXPIRED: _A_FEW,
    Kind.SKEWED: _A_FEW,
}

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
    """Wraps the error that is raised in the end if no later attempt succeeds within `attempts`."""

    def __init__(self, error: Exception, *, attempts: int) -> None:
        super().__init__(str(error))
        self.error = error
        self.attempts = attempts


async def retrying(attempt: Callable[[], Awaitable[T]], *, failed: RetryableError | None = None) -> T:
    """Return the result of `attempt`, called again while it raises `RetryableError`; `failed` is a first failure.

    Raises the wrapped error when the attempts are used up, or at once when the next pause would outlive the deadline
    of the surrounding cancel scope.
    """
    made = 0
    while True:
        if failed is None:
            try:
                return await attempt()
            except RetryableError as error:
                failed = error
        made += 1
        pause_s = random.uniform(0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**made))
        if made >= failed.attempts or trio.current_time() + pause_s >= trio.current_effective_deadline():
            raise failed.error from failed.__cause__
        failed = None
        await trio.sleep(pause_s)

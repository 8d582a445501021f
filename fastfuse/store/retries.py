"""Backoff inside a deadline, for the client that cannot do it itself.

botocore's own retries stop at a response's headers (a GET cut off in its body is not retried) and share a quota that
a burst of 503 drains for every file at once, so they are off and this is used.
"""

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

__all__ = ["FIRST_PAUSE_S", "RetryableError", "retrying"]

# "Full jitter", https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/; obstore waits the same.
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0

T = TypeVar("T")


class RetryableError(Exception):
    """Wraps the error that is raised in the end if no later attempt succeeds within `attempts`."""

    def __init__(self, error: Exception, *, attempts: int) -> None:
        super().__init__(str(error))
        self.error = error
        self.attempts = attempts


async def retrying(attempt: Callable[[], Awaitable[T]], *, failed: RetryableError | None = None) -> T:
    """The result of `attempt`, called again while it raises `RetryableError`; `failed` says that it has once.

    Ends with that error's cause when its attempts are used up, or at once when the next pause would outlive the
    deadline of the surrounding cancel scope.
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

"""The one retry policy: which failures are tried again, how often, after which pauses, and until when.

botocore's own retries are off, for uploads too: they stop at a response's headers (a GET cut off in its body is not
retried) and share a quota that a burst of 503 drains for every file at once.
"""

from collections import Counter
from math import inf

from fastfuse.s3.failures import Kind

# "Full jitter", https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
# What is left of the time for the last attempt, to which longer pauses are cut: so many seconds, or this share.
LAST_ATTEMPT_S = 1.0
LAST_ATTEMPT_SHARE = 0.05

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
    # A service that starts may close connections, too, and a gateway may answer in its place for a moment. What answers
    # instead is told within two seconds.
    Kind.NOT_S3: _A_FEW,
    # New credentials, or a clock that was set, may be there a moment later.
    Kind.EXPIRED: _A_FEW,
    Kind.SKEWED: _A_FEW,
}


def attempts(kind: Kind, *, is_read: bool, is_mended: bool = False) -> int:
    """Return how often a request is made in all before a failure of `kind` is final.

    A mount that serves reads outlives an outage of the network; a command that starts does not wait for one. If the
    reason of the failure `is_mended`, by new credentials say, only the deadline counts.
    """
    if is_mended:
        # A denied object stays denied, whichever credentials a program makes up for each call.
        return _A_FEW if kind is Kind.DENIED else UNTIL_DEADLINE
    return UNTIL_DEADLINE if is_read and kind is Kind.UNREACHABLE else _ATTEMPTS.get(kind, 1)


def longest_pause_s(failures: int) -> float:
    """Return the longest pause after so many `failures` of a request; the pause is drawn between 0 and it."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures, 10))


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


class FailedAttempts:
    """The failed attempts of one request, counted apart by kind: four of one do not end the attempts of another."""

    def __init__(self, budget: RetryBudget, *, began_s: float, deadline_s: float) -> None:
        """The request has from `began_s` to `deadline_s`, and shares its `budget` with the others of its client."""
        self._budget = budget
        # The deadline of a scope that is cancelled already is infinitely long ago.
        last_s = max(0.0, min(LAST_ATTEMPT_S, LAST_ATTEMPT_SHARE * (deadline_s - began_s)))
        self._latest_s = deadline_s - last_s
        # Another attempt ends before the deadline does, so that the failure of the one before can be told.
        self.ends_s = deadline_s - last_s / 10
        self._failed: Counter[Kind] = Counter()

    def pause_s(self, kind: Kind, allowed: int, *, draw: float, now_s: float) -> float | None:
        """Note one more failure, of `kind`; return the pause before the next attempt, or None if there is no other.

        The last of `allowed` attempts of a kind is final, and so is one that fails shortly before the deadline. A
        longer pause, for the budget too, ends then. `draw` is a random number from 0 to 1.
        """
        self._failed[kind] += 1
        if self._failed[kind] >= allowed or now_s >= self._latest_s:
            return None
        pause_s = max(draw * longest_pause_s(self._failed.total()), self._budget.wait_s(now_s))
        return min(pause_s, self._latest_s - now_s)

"""Finds the rate of requests that a service bears while it throttles, and keeps to it.

After https://docs.aws.amazon.com/sdkref/latest/guide/feature-retry-behavior.html ("adaptive"), with the rate that was
answered in the place of a share of the rate that was sent. The figures are those of the simulation in
tests/s3/test_rate.py: at least 0.9 of what a service allows, and at most one request in 20 in vain.
"""

from math import exp, inf

__all__ = ["RequestRate"]

# A lone refusal is no limit: S3 refuses a few while it moves load about.
_LEAST_REFUSED = 3
_LEAST_SHARE = 0.02
_LEAST_WINDOW_S = 0.2
_LONGEST_WINDOW_S = 5.0
# The rate as a share of what was answered, and how it grows from there: by 5 % in 4 s, 35 % in 10 s, 230 % in 20 s.
_BACK_OFF = 0.95
_GROWTH_PER_S2 = 0.003
_LEAST_PER_S = 1.0
# After this time the rate is 49,000 times what it was.
_ENDS_AFTER_S = 60.0


class RequestRate:
    """The requests per second that a client may send: any number until the service throttles.

    Pure: each call is told what time it is, in seconds.
    """

    def __init__(self) -> None:
        self._per_s = inf
        self._set_s = -inf
        self._next_s = -inf
        # What came since the window began.
        self._window_began_s = -inf
        self._answered = 0
        self._refused = 0

    @property
    def is_limited(self) -> bool:
        return self._per_s < inf

    def turn_s(self, now_s: float) -> float:
        """Return when the next request may be sent, and count on its being sent then."""
        if now_s > self._set_s + _ENDS_AFTER_S:
            self._per_s = inf
        if not self.is_limited:
            return now_s
        per_s = self._per_s * exp(_GROWTH_PER_S2 * (now_s - self._set_s) ** 2)
        turn_s = max(self._next_s, now_s)
        self._next_s = turn_s + 1 / per_s
        return turn_s

    def answered(self, now_s: float) -> None:
        """Note that the service answered a request."""
        self._begin_window(now_s)
        self._answered += 1

    def throttled(self, now_s: float) -> None:
        """Note that the service refused a request because there are too many."""
        self._begin_window(now_s)
        self._refused += 1
        if not self._answered:
            return  # a service that answers nothing is out of order, and bears any rate once it is not
        share = self._refused / (self._answered + self._refused)
        window_s = now_s - self._window_began_s
        if self._refused < _LEAST_REFUSED or share < _LEAST_SHARE or window_s < _LEAST_WINDOW_S:
            return
        rate = _BACK_OFF * self._answered / window_s
        # Some services refuse everything until a second is over, which tells nothing about the rate.
        self._per_s = max(_LEAST_PER_S, max(rate, self._per_s / 2) if self.is_limited else rate)
        self._set_s = now_s
        self._window_began_s = -inf

    def _begin_window(self, now_s: float) -> None:
        if now_s > self._window_began_s + _LONGEST_WINDOW_S:
            self._window_began_s, self._answered, self._refused = now_s, 0, 0

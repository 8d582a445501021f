"""Finds the rate of requests that a service bears while it throttles, and keeps to it.

Each refusal takes a fixed number of requests a second off the rate, and it grows by its root, as
https://www.rfc-editor.org/rfc/rfc5681 does with a fixed number for each round trip: so hosts that share what a service
allows come to equal rates. The figures are those of the simulation in tests/s3/test_rate.py and of `bench.fleet`.
"""

from math import inf, sqrt

# A lone refusal is no limit: S3 refuses a few while it moves load about.
_LEAST_REFUSED = 3
_LEAST_SHARE = 0.02
_LEAST_WINDOW_S, _LONGEST_WINDOW_S = 0.2, 5.0
# The first rate, as a share of what was answered.
_BACK_OFF = 0.95
# What a refusal takes, requests a second. All in so short a time take a share of the rate at most, and so much is the
# most that a second adds: some services refuse everything until a second is over, and a burst was sent at no rate yet.
_STEP_PER_S = 8.0
_MOST_STEP = 1 / 8
_BURST_S = 0.05
_LEAST_PER_S = 1.0
# Without a refusal for so long, there is no limit.
_ENDS_AFTER_S = 60.0


class RequestRate:
    """The requests per second that a client may send: any number until the service throttles.

    Pure: each call is told what time it is, in seconds.
    """

    def __init__(self) -> None:
        # The requests a second; infinitely many while there is no limit.
        self.per_s = inf
        self._grown_s = self._refused_s = self._next_s = -inf
        # When the refusals of this burst began, and what they leave of the rate.
        self._burst_s, self._floor_per_s = -inf, 0.0
        # So many came since the window began; there is no window while there is a rate.
        self._window_began_s = -inf
        self._answered = 0
        self._refused = 0
        # The requests that were answered a second in the window before.
        self._before_per_s = 0.0

    @property
    def is_limited(self) -> bool:
        return self.per_s < inf

    def turn_s(self, now_s: float) -> float:
        """Return when the next request may be sent; tell by `sent` if it is."""
        if now_s > self._refused_s + _ENDS_AFTER_S:
            self.per_s = inf
        if not self.is_limited:
            return now_s
        self._grow(now_s)
        return max(self._next_s, now_s)

    def sent(self, turn_s: float) -> None:
        """Note that a request was sent in its turn. Those who wait for theirs ask again, at the rate of now."""
        self._next_s = turn_s + 1 / self.per_s

    def answered(self, now_s: float) -> None:
        """Note that the service answered a request."""
        if not self.is_limited:
            self._begin_window(now_s)
            self._answered += 1

    def throttled(self, now_s: float) -> None:
        """Note that the service refused a request because there are too many; of its attempts, only the first one."""
        if not self.is_limited:
            self._begin_window(now_s)
            self._refused += 1
            self._set_first(now_s)
            return
        self._grow(now_s)
        self._refused_s = now_s
        if now_s > self._burst_s + _BURST_S:
            self._burst_s, self._floor_per_s = now_s, max(_LEAST_PER_S, (1 - _MOST_STEP) * self.per_s)
        self.per_s = max(self._floor_per_s, self.per_s - _STEP_PER_S)

    def _set_first(self, now_s: float) -> None:
        if not self._answered:
            return  # a service that answers nothing is out of order, and bears any rate once it is not
        share = self._refused / (self._answered + self._refused)
        window_s = now_s - self._window_began_s
        if self._refused < _LEAST_REFUSED or share < _LEAST_SHARE or window_s < _LEAST_WINDOW_S:
            return
        # Too high a first rate falls within a second, and too low a one takes long to grow.
        answered_per_s = max(self._answered / window_s, self._before_per_s)
        self.per_s = max(_LEAST_PER_S, _BACK_OFF * answered_per_s)
        self._grown_s = self._refused_s = now_s
        self._window_began_s, self._burst_s = -inf, now_s
        self._floor_per_s = self.per_s

    def _grow(self, now_s: float) -> None:
        self.per_s += min(sqrt(self.per_s), _MOST_STEP * self.per_s) * (now_s - self._grown_s)
        self._grown_s = now_s

    def _begin_window(self, now_s: float) -> None:
        if now_s > self._window_began_s + _LONGEST_WINDOW_S:
            self._before_per_s = self._answered / (now_s - self._window_began_s)
            self._window_began_s, self._answered, self._refused = now_s, 0, 0

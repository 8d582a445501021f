"""The number of GETs at once: as many as the network carries before any comes near its deadline. Pure.

64 parts of 8 MiB take 54 s at 10 MB/s, and a GET fails after 60 s (`ConnectionConfig.deadline_s`); a fast network needs
that many.
"""

__all__ = ["Pace"]

# 4 parts of 8 MiB arrive in time at 1 MB/s, and doubling gets to 64 within four round trips.
_FIRST = 4
# Far enough from the deadline for what is doubled to keep it.
_SHORT_S = 5.0
_LONG_S = 15.0


class Pace:
    """A limit that a short GET raises by one and a long one halves, once in a round trip."""

    def __init__(self, most: int) -> None:
        self.limit = min(_FIRST, most)
        self._most = most
        self._cut_s = float("-inf")

    def landed(self, started_s: float, now_s: float) -> None:
        """Count a GET that began at `started_s` and is over."""
        if now_s - started_s < _SHORT_S:
            self.limit = min(self.limit + 1, self._most)
        elif now_s - started_s > _LONG_S and started_s >= self._cut_s:
            self.limit = max(self.limit // 2, 1)
            self._cut_s = now_s

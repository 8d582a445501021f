"""How many GETs at once: as many as the network carries without any of them coming near its deadline. Pure.

64 parts of 8 MiB take 54 s through a line of 10 MB/s, and after 60 s a GET is given up (`ConnectionConfig.deadline_s`);
where the line is fast, fewer would not fill it.
"""

__all__ = ["Pace"]

# 4 parts of 8 MiB arrive in time at 1 MB/s, and doubling gets to 64 within four round trips.
_FIRST = 4
# Far enough from the deadline for what is doubled to keep it.
_SHORT_S = 5.0
_LONG_S = 15.0


class Pace:
    """`limit` grows by one with each GET that was short and is halved, once in a round trip, by one that was long."""

    def __init__(self, most: int) -> None:
        self.limit = min(_FIRST, most)
        self._most = most
        self._cut_s = float("-inf")

    def landed(self, started_s: float, now_s: float) -> None:
        """A GET that began at `started_s` is over."""
        if now_s - started_s < _SHORT_S:
            self.limit = min(self.limit + 1, self._most)
        elif now_s - started_s > _LONG_S and started_s >= self._cut_s:
            self.limit = max(self.limit // 2, 1)
            self._cut_s = now_s

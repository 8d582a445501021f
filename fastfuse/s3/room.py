"""Room for more GETs of whoever fetches many objects: bounded in number and in memory, by what the network carries.

64 parts of 8 MiB take 54 s at 10 MB/s, and a GET fails after 60 s (`ConnectionConfig.deadline_s`); a fast network needs
that many.
"""

from math import inf

import trio

# 4 parts of 8 MiB arrive in time at 1 MB/s, and doubling gets to 64 within four round trips.
_FIRST = 4
# Far enough from the deadline for what is doubled to keep it.
_SHORT_S = 5.0
_LONG_S = 15.0


class Pace:
    """A limit that a short GET raises by one and a long one halves, once in a round trip. Pure."""

    def __init__(self, most: int) -> None:
        self.limit = min(_FIRST, most)
        self._most = most
        self._cut_s = -inf

    def landed(self, started_s: float, now_s: float) -> None:
        """Count a GET that began at `started_s` and is over."""
        if now_s - started_s < _SHORT_S:
            self.limit = min(self.limit + 1, self._most)
        elif now_s - started_s > _LONG_S and started_s >= self._cut_s:
            self.limit = max(self.limit // 2, 1)
            self._cut_s = now_s


class Room:
    """Count what is in flight: GETs, fetches (a GET and then a write), and bytes of memory. One task waits for room."""

    def __init__(self, *, most_gets: int, most_fetches: int, memory_bytes: int) -> None:
        self._pace = Pace(most_gets)
        self._most_fetches = most_fetches
        self._memory_bytes = memory_bytes
        self._gets = self._fetches = self._bytes = 0
        self._changed = trio.Event()

    def _has_room(self, size_bytes: int) -> bool:
        return (
            self._gets < self._pace.limit
            and self._fetches < self._most_fetches
            and (not self._bytes or self._bytes + size_bytes <= self._memory_bytes)
        )

    async def enter(self, size_bytes: int) -> None:
        """Wait until a GET of so many bytes may begin."""
        while not self._has_room(size_bytes):
            self._changed = trio.Event()
            await self._changed.wait()
        self._gets += 1
        self._fetches += 1
        self._bytes += size_bytes

    def landed(self, started_s: float) -> None:
        """Note that the GET is over; its bytes are still held."""
        self._gets -= 1
        self._pace.landed(started_s, trio.current_time())
        self._changed.set()

    def leave(self, size_bytes: int) -> None:
        """Note that the bytes are on the disk."""
        self._fetches -= 1
        self._bytes -= size_bytes
        self._changed.set()

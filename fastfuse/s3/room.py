"""Room for more GETs of whoever fetches many objects: bounded in number and in memory, by what the network carries."""

import trio

from fastfuse.s3.concurrency import Pace

__all__ = ["Room"]


class Room:
    """Count what is in flight: GETs, fetches (a GET and then a write), and bytes of memory. One task waits for room."""

    def __init__(self, pace: Pace, *, most_fetches: int, memory_bytes: int) -> None:
        self._pace = pace
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

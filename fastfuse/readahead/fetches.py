"""Fetches as tasks, and the figures that the engine reports."""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from fastfuse.readahead.parts import Part

__all__ = ["Fetches", "PoolStatistics", "ReadCounts"]


@dataclass(slots=True)
class ReadCounts:
    """The counts of all files of an engine together. A read is a hit when it waited for nothing."""

    hits: int = 0
    # Reads that waited, and those of their bytes that were not in memory when they came.
    waits: int = 0
    waited_bytes: int = 0
    demanded_parts: int = 0
    ahead_parts: int = 0
    prefetched_parts: int = 0
    failed_parts: int = 0


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """`reserved_bytes` are parts in flight or being handed over, `held_bytes` parts that may be evicted."""

    reserved_bytes: int
    held_bytes: int
    spent_bytes: int
    expected_bytes: int
    parts_in_flight: int
    parts_waiting: int
    active_files: int
    fetched_bytes: int
    unread_dropped_bytes: int


class Fetches:
    """Tasks in `nursery` that begin in the order in which they are started.

    trio runs the tasks that become ready in one turn in either order, by chance. Without this queue the part that a
    reader waits for would often be requested last.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self.counts = ReadCounts()
        self._nursery = nursery
        self._next: deque[tuple[Callable[[Part], Awaitable[None]], Part]] = deque()

    def start(self, fetch: Callable[[Part], Awaitable[None]], part: Part) -> None:
        """Call `fetch`, which must raise nothing, with `part` in a task of its own."""
        self._next.append((fetch, part))
        self._nursery.start_soon(self._run_next)

    async def _run_next(self) -> None:
        fetch, part = self._next.popleft()
        await fetch(part)

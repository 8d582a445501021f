"""Fetches as tasks."""

from collections import deque
from collections.abc import Awaitable, Callable

import trio

from fastfuse.readahead.parts import Part

__all__ = ["Fetches"]


class Fetches:
    """Tasks in `nursery` that begin in the order in which they are started.

    Of the tasks that become ready in one turn trio runs, by chance, the last one first. Where thirty GETs are sent at
    once, which takes 10 to 30 ms, that was the one that a reader waits for.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._next: deque[tuple[Callable[[Part], Awaitable[None]], Part]] = deque()

    def start(self, fetch: Callable[[Part], Awaitable[None]], part: Part) -> None:
        """Call `fetch` with `part`, which must raise nothing, in a task of its own."""
        self._next.append((fetch, part))
        self._nursery.start_soon(self._run_next)

    async def _run_next(self) -> None:
        fetch, part = self._next.popleft()
        await fetch(part)

"""Readers that wrap another one to count, delay or fail its reads."""

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from fastfuse.objects import Buffer, ObjectRef
from fastfuse.s3.base import RangeReader


@dataclass
class CountingReader:
    """Remembers every read in `calls`, and how many were under way at most."""

    inner: RangeReader
    calls: list[tuple[str, int, int]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        self.calls.append((ref.key, start, end))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self.inner.get(ref, start, end)
        finally:
            self.in_flight -= 1

    async def aclose(self) -> None:
        await self.inner.aclose()


@dataclass
class SlowReader:
    """Every read takes `delay_s` on trio's clock first."""

    inner: RangeReader
    delay_s: float

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        await trio.sleep(self.delay_s)
        return await self.inner.get(ref, start, end)

    async def aclose(self) -> None:
        await self.inner.aclose()


@dataclass
class FailingReader:
    """Raises what `error` makes for the first `times` reads that `fails` chooses (all, unless told)."""

    inner: RangeReader
    error: Callable[[], Exception]
    times: int
    fails: Callable[[ObjectRef, int, int], bool] = lambda ref, start, end: True

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        await trio.lowlevel.checkpoint()
        if self.times > 0 and self.fails(ref, start, end):
            self.times -= 1
            raise self.error()
        return await self.inner.get(ref, start, end)

    async def aclose(self) -> None:
        await self.inner.aclose()

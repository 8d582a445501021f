"""Fills the tier with objects before anybody reads them: fetches what is missing, and then looks whether all is kept.

It reads through a `CachedReader`, so it shares its fetches with running mounts, and what is there is not fetched. A
range takes the place of what nobody has asked for since the warm-up began. When all that is left was asked for since,
the tier has no room, and nothing more is fetched.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import trio

from fastfuse.cache.directory import OpenCache
from fastfuse.cache.reader import CachedReader
from fastfuse.errors import ReadError
from fastfuse.metrics import Counters
from fastfuse.objects import ObjectRef
from fastfuse.s3.aws import S3Session
from fastfuse.s3.buffers import PartBuffers
from fastfuse.s3.client import S3Client
from fastfuse.s3.concurrency import Pace
from fastfuse.s3.retries import Retries
from fastfuse.s3.room import Room

__all__ = ["PART_BYTES", "WarmState", "warm", "warm_with"]

PART_BYTES = 8 << 20
# After so many failures it is not about single objects.
_MOST_FAILURES = 100
# So many ranges that are kept are looked up in one turn of the loop: 1 ms.
_TURN_RANGES = 100
# As often as a line is worth drawing again.
_TELL_EVERY_S = 0.1
# The disk is looked at as often while too much waits for it.
_LOOK_S = 0.005


@dataclass(slots=True)
class WarmState:
    """How far a warm-up is. In the end `missing_bytes` are not kept."""

    there_bytes: int = 0
    fetched_bytes: int = 0
    requests: int = 0
    damaged: int = 0
    has_no_room: bool = False
    missing_bytes: int = 0
    # The URI and the reason.
    failures: list[tuple[str, str]] = field(default_factory=list)


def warm(
    session: S3Session,
    cache: OpenCache,
    refs: Callable[[], Iterable[ObjectRef]],
    tell: Callable[[WarmState], None],
    *,
    memory_bytes: int,
    bytes_per_s: float | None,
    checks: bool,
) -> WarmState:
    """Put every object of `refs` into `cache`, which is closed then. `tell` is called ten times a second.

    With `checks`, what is kept is read, too, and fetched again if it is damaged. A second call continues one that was
    ended in any way.
    """

    async def run() -> WarmState:
        counters = Counters()
        buffers = PartBuffers(part_bytes=PART_BYTES, limit_bytes=memory_bytes)
        client = S3Client(session, buffers=buffers, counters=counters, retries=Retries(counters))
        reader = CachedReader(
            client, cache, buffers, counters,
            endpoint_url=session.endpoint_url or "", queue_bytes=memory_bytes, takes_places=True,
        )  # fmt: skip
        try:
            state = await warm_with(
                reader, refs, tell, most_gets=session.config.max_connections, memory_bytes=memory_bytes,
                bytes_per_s=bytes_per_s, checks=checks,
            )  # fmt: skip
        finally:
            with trio.CancelScope(shield=True):
                await reader.aclose()
        state.requests = counters.get("fastfuse_fetch_requests", "ok")
        state.damaged = counters.get("fastfuse_cache_failures", "corrupt")
        return state

    return trio.run(run)


async def warm_with(
    reader: CachedReader,
    refs: Callable[[], Iterable[ObjectRef]],
    tell: Callable[[WarmState], None] = lambda _: None,
    *,
    most_gets: int = 64,
    memory_bytes: int = 256 << 20,
    bytes_per_s: float | None = None,
    checks: bool = False,
) -> WarmState:
    """Do as `warm` through `reader`, which must take places."""
    state = WarmState()
    # Half for what is being fetched, half for what waits to be written.
    room = Room(Pace(most_gets), most_fetches=most_gets, memory_bytes=memory_bytes // 2)
    begins_s = 0.0

    async def fetch(ref: ObjectRef, start: int, end: int, *, is_there: bool) -> None:
        began_s = trio.current_time()
        try:
            await reader.get(ref, start, end)
            if is_there:
                state.there_bytes += end - start
            else:
                state.fetched_bytes += end - start
        except ReadError as error:
            state.failures.append((ref.uri, str(error)))
        finally:
            room.landed(began_s)
            room.leave(end - start)

    async with trio.open_nursery() as telling:
        telling.start_soon(_tell_often, partial(tell, state))
        async with trio.open_nursery() as nursery:
            for number, (ref, start, end) in enumerate(_ranges(refs())):
                is_there = reader.keeps(ref, start, end)
                if is_there and not checks:
                    state.there_bytes += end - start
                    if number % _TURN_RANGES == 0:
                        await trio.lowlevel.checkpoint()
                    continue
                if not ref.etag:
                    if start == 0:
                        state.failures.append((ref.uri, "it has no ETag, so it is not kept"))
                    continue
                await room.enter(end - start)
                while reader.queued_bytes > memory_bytes // 2:
                    await trio.sleep(_LOOK_S)
                state.has_no_room = not is_there and not reader.takes_more()
                if state.has_no_room or len(state.failures) >= _MOST_FAILURES:
                    break
                if bytes_per_s is not None:
                    begins_s = max(begins_s, trio.current_time())
                    await trio.sleep_until(begins_s)
                    begins_s += (end - start) / bytes_per_s
                nursery.start_soon(partial(fetch, ref, start, end, is_there=is_there))
        while reader.queued_bytes:
            await trio.sleep(_LOOK_S)
        for number, (ref, start, end) in enumerate(_ranges(refs())):
            state.missing_bytes += 0 if reader.keeps(ref, start, end) else end - start
            if number % _TURN_RANGES == 0:
                await trio.lowlevel.checkpoint()
        telling.cancel_scope.cancel()
    return state


def _ranges(refs: Iterable[ObjectRef]) -> Iterator[tuple[ObjectRef, int, int]]:
    for ref in refs:
        for start in range(0, ref.size_bytes, PART_BYTES):
            yield ref, start, min(start + PART_BYTES, ref.size_bytes)


async def _tell_often(tell: Callable[[], None]) -> None:
    while True:
        tell()
        await trio.sleep(_TELL_EVERY_S)

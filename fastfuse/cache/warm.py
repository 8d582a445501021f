"""Fills the tier with objects before anybody reads them: fetches what is missing, and then looks whether all is kept.

It reads through a `CachedReader`, so it shares its fetches with running mounts, and what is there is not fetched. A
range takes the place of what nobody has asked for since the warm-up began. When all that is left was asked for since,
or is one of the objects, the tier has no room, and nothing more is fetched.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import trio

from fastfuse import awake
from fastfuse.cache.directory import OpenCache
from fastfuse.cache.reader import CachedReader
from fastfuse.errors import ReadError, first_of
from fastfuse.metrics import Counters
from fastfuse.objects import ObjectRef
from fastfuse.s3.aws import S3Session
from fastfuse.s3.buffers import PartBuffers
from fastfuse.s3.client import S3Client
from fastfuse.s3.retries import Retries
from fastfuse.s3.room import Room

_PART_BYTES = 8 << 20
# Once so many objects have failed, it is not about single ones.
_MOST_FAILURES = 100
# So many ranges that are kept are looked up in one turn of the loop: 1 ms.
_TURN_RANGES = 100
# As often as a line is worth drawing again.
_TELL_EVERY_S = 0.1
# The disk is looked at as often while it is waited for. It is given up once it was waited for so long and has taken
# nothing: twice as long as one that has not answered is left alone (`hanging_disk.OFF_S`).
_LOOK_S = 0.005
_MOST_WAIT_S = 60.0


@dataclass(slots=True)
class WarmState:
    """The progress of a warm-up. At its end, `missing_bytes` are not kept."""

    there_bytes: int = 0
    fetched_bytes: int = 0
    requests: int = 0
    damaged: int = 0
    has_no_room: bool = False
    # The disk has taken nothing for too long; or the reason why it never will.
    is_given_up: bool = False
    end_reason: str = ""
    missing_bytes: int = 0
    # The reason by URI.
    failures: dict[str, str] = field(default_factory=dict)


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

    Raises:
        FastfuseError: S3 cannot be asked at all.
    """

    async def run() -> WarmState:
        counters = Counters()
        buffers = PartBuffers(part_bytes=_PART_BYTES, limit_bytes=memory_bytes)
        client = S3Client(session, buffers=buffers, counters=counters, retries=Retries(counters))
        reader = CachedReader(
            client, cache, buffers, counters,
            endpoint_url=session.endpoint_url or "", queue_bytes=memory_bytes, deadline_s=session.config.deadline_s,
            takes_places=True,
        )  # fmt: skip
        warming = Warming(
            reader=reader, most_gets=session.config.max_connections, memory_bytes=memory_bytes,
            bytes_per_s=bytes_per_s, checks=checks, limit_bytes=cache.settings.size_bytes,
        )  # fmt: skip
        state = warming.state
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_tell_often, lambda: tell(state))
                await warming.run(refs)
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await reader.aclose()
        state.requests = counters.get("fastfuse_fetch_requests", "ok")
        state.damaged = counters.get("fastfuse_cache_failures", "corrupt")
        return state

    try:
        return awake.run(run)
    except ExceptionGroup as error:
        raise first_of(error) from error


@dataclass(kw_only=True)
class Warming:
    """One warm-up through a reader that takes places; `state` says how far it is."""

    reader: CachedReader
    most_gets: int
    checks: bool
    # The size of the tier: nothing is fetched that has no room beside the rest of the objects.
    limit_bytes: int
    # Half for what is being fetched, half for what waits to be written.
    memory_bytes: int = 256 << 20
    bytes_per_s: float | None = None
    state: WarmState = field(default_factory=WarmState)

    def __post_init__(self) -> None:
        self._begins_s = self._waited_s = 0.0
        self._written_bytes = 0
        self._room = Room(most_gets=self.most_gets, most_fetches=self.most_gets, memory_bytes=self.memory_bytes // 2)

    async def run(self, refs: Callable[[], Iterable[ObjectRef]]) -> None:
        """Fetch what is missing of `refs`, have it written, and count what is not kept then."""
        state = self.state
        there_bytes = await self._count_missing(refs())
        if not state.missing_bytes and not self.checks:
            state.there_bytes = there_bytes
            return
        state.there_bytes = 0 if self.checks else there_bytes
        needed_bytes = there_bytes
        async with trio.open_nursery() as nursery:
            for number, (ref, start, end) in enumerate(_ranges(refs())):
                await _turn(number)
                if len(state.failures) >= _MOST_FAILURES:
                    break
                is_there = self.reader.keeps(ref, start, end)
                if is_there and not self.checks:
                    continue
                if not ref.etag:
                    state.failures[ref.uri] = "it has no ETag, so no version of it can be kept"
                    continue
                if not is_there and ref.uri in state.failures:
                    continue  # another of its ranges could not be read
                await self._enter(end - start)
                if not is_there:
                    needed_bytes += end - start
                    state.has_no_room = needed_bytes > self.limit_bytes or not self.reader.writer.has_place(0)
                if state.has_no_room or state.is_given_up:
                    break
                nursery.start_soon(self._fetch, ref, start, end, is_there)
        await self._wait_for_disk(0)
        await self._count_missing(refs())
        # The last ranges may have found the tier full.
        state.has_no_room |= state.missing_bytes > 0 and not self.reader.writer.has_place(0)

    async def _count_missing(self, refs: Iterable[ObjectRef]) -> int:
        """Count what is not kept, and have the rest stay while this runs; return the bytes of the rest."""
        self.state.missing_bytes = there_bytes = 0
        for number, (ref, start, end) in enumerate(_ranges(refs)):
            await _turn(number)
            is_there = self.reader.keeps(ref, start, end)
            there_bytes += is_there * (end - start)
            self.state.missing_bytes += (not is_there) * (end - start)
        return there_bytes

    async def _enter(self, size_bytes: int) -> None:
        """Wait until network, disk and limit have room for a fetch of so many bytes, or the disk is given up."""
        await self._room.enter(size_bytes)
        await self._wait_for_disk(self.memory_bytes // 2)
        if self.bytes_per_s is not None:
            self._begins_s = max(self._begins_s, trio.current_time())
            await trio.sleep_until(self._begins_s)
            self._begins_s += size_bytes / self.bytes_per_s

    async def _wait_for_disk(self, queued_bytes: int) -> None:
        """Wait until the disk takes what is fetched, and no more than `queued_bytes` wait for it; or give it up."""
        writer, looked_s = self.reader.writer, trio.current_time()
        while writer.queued_bytes > queued_bytes or writer.is_paused or not self.reader.is_used:
            await trio.sleep(_LOOK_S)  # a thread that knows no loop writes
            if writer.written_bytes > self._written_bytes:
                self._written_bytes, self._waited_s = writer.written_bytes, 0.0
            self._waited_s += trio.current_time() - looked_s
            looked_s = trio.current_time()
            if self._waited_s >= _MOST_WAIT_S or writer.end_reason:
                self.state.is_given_up, self.state.end_reason = True, writer.end_reason
                return

    async def _fetch(self, ref: ObjectRef, start: int, end: int, is_there: bool) -> None:
        began_s = trio.current_time()
        try:
            await self.reader.get(ref, start, end)
        except ReadError as error:
            self.state.failures.setdefault(ref.uri, str(error))
        else:
            self.state.there_bytes += is_there * (end - start)
            self.state.fetched_bytes += (not is_there) * (end - start)
        self._room.landed(began_s)
        self._room.leave(end - start)


def _ranges(refs: Iterable[ObjectRef]) -> Iterator[tuple[ObjectRef, int, int]]:
    return ((ref, start, end) for ref in refs for start, end in ref.parts(_PART_BYTES))


async def _turn(number: int) -> None:
    """Let others run every now and then; a look-up does not."""
    if number % _TURN_RANGES == 0:
        await trio.lowlevel.checkpoint()


async def _tell_often(tell: Callable[[], None]) -> None:
    while True:
        tell()
        await trio.sleep(_TELL_EVERY_S)

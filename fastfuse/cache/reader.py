"""The `RangeReader` that looks into the tier first, and keeps there what it has to fetch from another one.

It fetches only what is missing, and nothing that another task or process of the node fetches already: it waits for
that, but not for ever. Nothing that goes wrong with the tier fails a read.
"""

import errno
import logging
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import trio

from fastfuse.cache.catalog import BLOCK_BYTES, Extent, Index, gaps, identity, identity_begin, pieces
from fastfuse.cache.claims import Claims
from fastfuse.cache.directory import OpenCache
from fastfuse.cache.hanging_disk import OFF_S, Disk, unanswered_reason
from fastfuse.cache.segments import DamagedError, Segments
from fastfuse.cache.settings import FLUSH_S, queue_bytes
from fastfuse.cache.writer import Range, Writer
from fastfuse.errors import DeadlineError, IntegrityError
from fastfuse.metrics import CACHE_FAILURES, Counters
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.repeats import RepeatedFailures
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import BeginGet, RangeReader
from fastfuse.s3.buffers import PartBuffers
from fastfuse.s3.checks import check_range_arguments
from fastfuse.s3.threads import NoThreadError, run_soon
from fastfuse.sizes import format_size

_log = logging.getLogger(__name__)

# The pause between looks whether somebody else's claim is over.
_LOOK_S = 0.01
# The longest wait for somebody else's claim, and for the disk, before S3 is asked. A read that meets both has half of a
# short deadline left for S3: a small read may wait for the disk twice as long.
_PATIENCE_S = 10.0
_PATIENCE_DIVISOR = 6
# Spreads the ranges of an object over 64 bits (2^64 divided by the golden ratio).
_ODD = 0x9E3779B97F4A7C15
# Each takes a few hundred bytes.
_MAX_DAMAGED = 10_000


class Place(NamedTuple):
    """The place of all of a small object: the offset in a segment, its digest, and the seed of that."""

    segment: int
    offset: int
    digest: int
    seed: int


class Missing(NamedTuple):
    """The names of a small object of which nothing is kept, as `identity` gives them."""

    object_id: int
    seed: int


class _Asked(NamedTuple):
    """A range that a reader asks for, with the names of its object's version as `identity` gives them."""

    ref: ObjectRef
    object_id: int
    seed: int
    start: int
    end: int
    # The range takes so long to come back; None if that is not known.
    return_bytes: int | None = None


def cached(
    reader: RangeReader,
    cache: OpenCache | None,
    buffers: PartBuffers,
    counters: Counters,
    session: S3Session,
    memory_target_bytes: int,
) -> RangeReader:
    """Put the tier `cache`, if there is one, before `reader`. Call it in a trio run."""
    if cache is None:
        for name in ("fastfuse_cache_used_bytes", "fastfuse_cache_size_bytes"):  # of the worker before this one
            counters.set(name, 0)
        return reader
    return CachedReader(
        reader, cache, buffers, counters, endpoint_url=session.endpoint_url or "",
        queue_bytes=queue_bytes(memory_target_bytes), deadline_s=session.config.deadline_s,
    )  # fmt: skip


class CachedReader:
    """Reads ranges from the tier `cache`, and from `reader` what it does not have."""

    def __init__(
        self,
        reader: RangeReader,
        cache: OpenCache,
        buffers: PartBuffers,
        counters: Counters,
        *,
        endpoint_url: str,
        queue_bytes: int,
        deadline_s: float,
        takes_places: bool = False,
    ) -> None:
        """Start the thread that writes; `queue_bytes` bounds what waits for it. Construct it in a trio run.

        A read takes `deadline_s` at most, with its waits for others and for the disk.

        With `takes_places` what is fetched takes the place of whatever nobody asked for since.
        """
        self._reader = reader
        self.cache = cache
        self._buffers = buffers
        self._counters = counters
        self._endpoint_url = endpoint_url
        self._where = f"the cache {cache.settings.directory}"
        self._deadline_s = deadline_s
        self._disk = Disk(min(_PATIENCE_S, deadline_s / _PATIENCE_DIVISOR))
        self._index = Index(cache.reading)
        self._segments = Segments(cache.directory_fd)
        self._claims = Claims(cache.claims_fd)
        self._repeats = RepeatedFailures(_log)
        counters.set("fastfuse_cache_size_bytes", cache.settings.size_bytes)
        # Extents that could not be read, until the index forgets them.
        self._damaged: set[Extent] = set()
        # Objects that had not the service's checksum: the tier has forgotten them, and keeps nothing of them.
        self._wrong: set[int] = set()
        self._is_closed = False
        # Called when no `Place` that was told holds any more, also as the tier is not used from then on.
        self.forgets: Callable[[], None] = lambda: None
        token = trio.lowlevel.current_trio_token()
        self.writer = Writer(
            cache, self._segments, self._claims, counters, queue_bytes=queue_bytes,
            tell=partial(run_soon, token, self._tell), takes_places=takes_places,
        )  # fmt: skip

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        """Read a range as `RangeReader.get` does."""
        if not ref.etag:
            return await self._reader.get(ref, start, end)
        check_range_arguments(ref, start, end)
        asked = _Asked(ref, *identity(self._endpoint_url, ref), start, end)
        try:
            return await self._get_kept(asked)
        except IntegrityError:
            self._forget(asked)
            raise

    def begin(
        self, begin: BeginGet, ref: ObjectRef, start: int, end: int, done: Callable[[Buffer | None], None]
    ) -> bool:
        """Begin to get a range by `begin`, as `BeginGet` says, if nothing of it is kept; keep it as `get` does.

        Leave to `get` what somebody else has claimed, and whatever is unusual.
        """
        if not ref.etag or not self.is_used:
            return begin(ref, start, end, done)
        asked = _Asked(ref, *identity(self._endpoint_url, ref), start, end)
        if asked.object_id in self._wrong or not self._claim(asked):
            return False
        is_begun = keeps = False

        def ended(data: Buffer | None) -> None:
            self._end(asked, data, keeps=keeps)
            done(data)

        try:
            # Look with the claim, as nobody puts the range there meanwhile. An error of the index turns the tier off.
            if not self._find(asked.object_id, start, end) and not self._disk.is_off:
                is_begun = begin(ref, start, end, ended)
            if is_begun:  # or `get` asks
                asked = asked._replace(return_bytes=self._ask(asked.seed, start, end))
                keeps = self.writer.takes(asked.return_bytes)
        finally:
            if not keeps:
                self._claims.release(asked.object_id, start, end)
        return is_begun

    async def _get_kept(self, asked: _Asked) -> Buffer:
        ref, object_id, seed, start, end, _ = asked
        if not self.is_used or object_id in self._wrong:
            return await self._reader.get(ref, start, end)
        ends_s = trio.current_time() + self._deadline_s
        asked = asked._replace(return_bytes=self._ask(seed, start, end))
        extents = self._find(object_id, start, end)
        if not gaps(extents, start, end):
            data = await self._read(asked, extents, {})
            if data is not None:
                return data
            # The disk that did not answer is not asked again.
            extents = [] if self._disk.is_off else self._find(object_id, start, end)
        with trio.move_on_at(ends_s):
            return await self._fetch(asked, extents)
        raise DeadlineError.too_slow(ref.key, self._deadline_s)

    def keeps(self, ref: ObjectRef, start: int, end: int) -> bool:
        """Return whether all of a range is kept, without reading it. What is kept counts as asked for."""
        extents = self._find(identity(self._endpoint_url, ref)[0], start, end)
        for one in extents:
            self.writer.hit(one.segment, 0)
        return bool(ref.etag) and not self.writer.is_gone and not gaps(extents, start, end)

    def look(self, ref: ObjectRef) -> Place | Missing | None:
        """Return where a small object is all kept; that nothing of it is, nor will soon be by this process; or None."""
        if not 0 < ref.size_bytes <= BLOCK_BYTES or not ref.etag or not self.is_used:
            return None
        object_id, seed = identity(self._endpoint_url, ref)
        # The claim is looked at first: a range whose claim has ended meanwhile is found then.
        if object_id in self._wrong or self._claims.holds(object_id):
            return None
        found = self._find(object_id, 0, ref.size_bytes)
        for one in found:
            if (one.start, one.end, len(one.digests)) == (0, ref.size_bytes, 8) and one.segment > 0:
                return Place(one.segment, one.offset, int.from_bytes(one.digests), seed)
        return None if found or not self.is_used else Missing(object_id, seed)

    def identity_begin(self, bucket: str, key_prefix: str) -> bytes:
        """Return what `identity` hashes before the rest of a key."""
        return identity_begin(self._endpoint_url, bucket, key_prefix)

    @property
    def is_used(self) -> bool:
        """Return whether the tier is used now: it is not if its disk, or its index, has just failed."""
        return not self.writer.is_gone and not self._disk.is_off

    def keep(self, object_id: int, seed: int, data: Buffer) -> None:
        """Have a small object kept that a thread has claimed and got, if it is worth its room; or give up the claim."""
        self._claims.adopt(object_id, 0, len(data))
        return_bytes = self._ask(seed, 0, len(data))
        keeps = self.writer.takes(return_bytes)
        if not self._offer(Range(object_id, seed, 0, memoryview(data), return_bytes), keeps=keeps):
            self._claims.release(object_id, 0, len(data))

    def note_read(self, segment: int, seed: int, size_bytes: int) -> None:
        """Note that a kept object was read from its `Place`, by a reader who asked for all of it."""
        self._ask(seed, 0, size_bytes)
        self.writer.hit(segment, size_bytes)
        self._counters.count("fastfuse_cache_bytes", size_bytes, "served")

    def note_hang(self, segment: int, waited_s: float) -> None:
        """Leave the tier alone, because its disk has not given an object in this segment for so long."""
        if not self._disk.is_off:
            trio.lowlevel.spawn_system_task(self._probe, segment)
        self._leave_alone("disk", unanswered_reason(waited_s))

    async def _probe(self, segment: int) -> None:
        """Keep the tier off until its disk gives something of this segment, or says that it cannot."""
        with suppress(DamagedError, OSError, trio.TooSlowError):
            await self._disk.ask(partial(self._segments.probe, segment))

    async def aclose(self) -> None:
        """Write what is queued, for `FLUSH_S` at most, and close the tier and the other reader. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            if await trio.to_thread.run_sync(self.writer.close, FLUSH_S):
                self.cache.close()
            else:
                queued, within = format_size(self.writer.queued_bytes), f"{FLUSH_S:g} s"
                self._tell("disk", f"{self._where} does not keep {queued}: its disk has not taken them in {within}")
        await self._reader.aclose()

    async def _fetch(self, asked: _Asked, extents: list[Extent]) -> Buffer:
        """Return a range of which some is missing in `extents`: fetch that, or wait for whoever fetches it."""
        ref, object_id, _, start, end, return_bytes = asked
        keeps = self.writer.takes(return_bytes)
        fetched: dict[int, memoryview] = {}
        waits_until_s = trio.current_time() + self._disk.patience_s

        def missing() -> list[tuple[int, int]]:
            return gaps([*extents, *((at, at + len(data)) for at, data in fetched.items())], start, end)

        while wanted := missing():
            gap = asked._replace(start=wanted[0][0], end=wanted[0][1])
            keeps = keeps and not self._disk.is_off
            if keeps and not self._claim(gap):
                if trio.current_time() < waits_until_s:
                    await trio.sleep(_LOOK_S)
                    extents = self._find(object_id, start, end)
                    continue
                keeps = False  # whoever fetches it is slow, and will keep it
            elif keeps:
                extents = self._find(object_id, start, end)
                if missing() != wanted:  # somebody was faster, and has given up the claim
                    self._claims.release(object_id, gap.start, gap.end)
                    continue
            fetched[gap.start] = await self._get(gap, keeps=keeps)
        if len(fetched.get(start, b"")) == end - start:
            return fetched[start]
        joined = await self._read(asked, extents, fetched)
        return await self._reader.get(ref, start, end) if joined is None else joined

    async def _get(self, asked: _Asked, *, keeps: bool) -> memoryview:
        """Fetch a range; if it is claimed (`keeps`), have it kept, or give up the claim."""
        data: Buffer | None = None
        try:
            data = memoryview(await self._reader.get(asked.ref, asked.start, asked.end))
            return data
        finally:
            self._end(asked, data, keeps=keeps)

    def _end(self, asked: _Asked, data: Buffer | None, *, keeps: bool) -> None:
        """End the fetch of a range, in vain without `data`; if it is claimed, have it kept, or give up the claim."""
        _, object_id, seed, start, end, return_bytes = asked
        is_handed_over = data is not None and self._offer(
            Range(object_id, seed, start, memoryview(data), return_bytes), keeps=keeps
        )
        if keeps and not is_handed_over:
            self._claims.release(object_id, start, end)

    def _offer(self, fetched: Range, *, keeps: bool) -> bool:
        """Have what was fetched written, if the tier `keeps` it; return whether its claim is given up then."""
        if keeps and fetched.object_id not in self._wrong:
            return self.writer.offer(fetched)
        self._counters.count("fastfuse_cache_bytes", len(fetched.data), "declined")
        return False

    def _ask(self, seed: int, start: int, end: int) -> int | None:
        """Note that a range is asked for; return how long it takes to come back, if that is known."""
        return self.writer.ask((seed + start * _ODD) & (1 << 64) - 1, end - start)

    def _claim(self, asked: _Asked) -> bool:
        try:
            return self._claims.take(asked.object_id, asked.start, asked.end)
        except OSError as error:
            self._leave_alone("disk", f"ranges cannot be claimed: {error}")
            return False

    def _find(self, object_id: int, start: int, end: int) -> list[Extent]:
        try:
            found = self._index.find(object_id, start, end)
        except sqlite3.Error as error:
            self._leave_alone("index", f"its index cannot be read: {error}")
            return []
        return [one for one in found if one not in self._damaged] if self._damaged else found

    async def _read(self, asked: _Asked, extents: list[Extent], fetched: dict[int, memoryview]) -> memoryview | None:
        """Return a range of which all is kept or was `fetched`; None if what is kept cannot be read after all."""
        _, object_id, seed, start, end, _ = asked
        if extents and self._disk.is_off:  # since they were found
            return None
        wanted = pieces(extents, start, end)
        failed: list[tuple[Extent, Exception]] = []

        def read() -> None:
            for extent, piece_start, piece_end in wanted:
                try:
                    piece = into[piece_start - start : piece_end - start]
                    self._segments.read(extent, seed + extent.start, piece_start, piece_end, piece)
                except (DamagedError, OSError) as error:
                    failed.append((extent, error))
                    break

        try:
            into = self._buffers.take(end - start)
            await self._disk.ask(read)
        except (trio.TooSlowError, NoThreadError) as error:
            self._leave_alone("disk", str(error) or unanswered_reason(self._disk.patience_s))
            return None
        except MemoryError:  # the client waits for some
            return None
        if failed:
            self._lose(object_id, *failed[0])
            return None
        for extent, piece_start, piece_end in wanted:
            self.writer.hit(extent.segment, piece_end - piece_start)
            self._counters.count("fastfuse_cache_bytes", piece_end - piece_start, "served")
        for at, missing in fetched.items():
            into[at - start : at - start + len(missing)] = missing
        return into.toreadonly()

    def _lose(self, object_id: int, extent: Extent, error: Exception) -> None:
        """Have an extent forgotten that cannot be read; one that was evicted meanwhile is no failure."""
        is_lost = isinstance(error, DamagedError | FileNotFoundError)
        if extent not in self._find(object_id, extent.start, extent.end):
            return
        if is_lost or (isinstance(error, OSError) and error.errno == errno.EIO):
            if len(self._damaged) >= _MAX_DAMAGED:
                self._damaged.clear()
            self._damaged.add(extent)
            self.writer.forget((object_id, extent))
        if is_lost:
            self._tell("corrupt", f"{self._where}: a kept range cannot be used and is fetched again: {error}")
        else:
            self._leave_alone("disk", str(error))

    def _forget(self, asked: _Asked) -> None:
        """Have everything forgotten that is kept of an object that has not the service's checksum.

        What was kept before that showed would be read as right by a later process, which fetches and checks nothing.
        """
        if asked.object_id in self._wrong:
            return
        if len(self._wrong) >= _MAX_DAMAGED:
            self._wrong.clear()
        self._wrong.add(asked.object_id)
        self.writer.forget(asked.object_id)
        self.forgets()
        self._tell("corrupt", f"{self._where}: what it keeps of {asked.ref.key!r} is forgotten: its checksum is wrong")

    def _leave_alone(self, kind: str, why: str) -> None:
        self._disk.leave_alone()
        self.forgets()
        self._tell(kind, f"{self._where} is not used for {OFF_S:g} s: {why}")

    def _tell(self, kind: str, line: str) -> None:
        """Log one line of each kind every 30 s, and count it if it is a failure."""
        if kind in CACHE_FAILURES:
            self._counters.count("fastfuse_cache_failures", value=kind)
        self._repeats.tell(kind, str(self.cache.settings.directory), line)

"""Puts ranges into the tier, behind the readers: one thread, with a bounded queue of what is still to be written.

A range is written first, then made known by a transaction, then its claim is given up, so whoever waited for it finds
it. What does not fit into the queue, because the disk is slower than the network, is not kept. The thread also lets
segments go: for better ranges once the tier is full, and for whoever else fills the disk.
"""

import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import NamedTuple

from fastfuse.cache.catalog import NEVER, Extent, Index, Segment, Victims, is_full
from fastfuse.cache.claims import Claims
from fastfuse.cache.directory import OpenCache
from fastfuse.cache.policy import Returns, is_worth_it
from fastfuse.cache.segments import Filling, Segments, aligned, digests_of, evict, place_of, segment_bytes
from fastfuse.cache.shared import add
from fastfuse.metrics import Counters
from fastfuse.sizes import format_size

# The most that one transaction makes known: whoever waits for a claim waits for one of these.
_BATCH_BYTES, _BATCH_RANGES = 32 << 20, 256
# Small files gather for as long as a GET takes: a transaction and a write cost more than adding a file to them.
_GATHER_BYTES, _GATHER_S = 1 << 20, 0.02
_TICK_S = 1.0
# systemd-tmpfiles removes what is older than 10 days from /tmp.
_TOUCH_EVERY_S = 3600.0
# After an error: a disk that is full or failing is not asked for every range.
_PAUSE_S = 5.0
# Another process may begin with a segment before the one that has added it.
_TRIES = 8
# The return of a segment that any range may replace: longer than any real one.
_ANY_PLACE = 1 << 62
# Segments that others fill are passed over.
_VICTIMS = 16


class Range(NamedTuple):
    """Bytes of an object that were fetched, and are claimed until they are written or dropped."""

    object_id: int
    seed: int
    start: int
    data: memoryview
    # After how many bytes asked for the range came back (`policy`); None if that is not known.
    return_bytes: int | None

    @property
    def end(self) -> int:
        return self.start + len(self.data)


@dataclass(slots=True)
class _Open:
    """The segment that this process fills."""

    segment: Segment
    filling: Filling
    filled_bytes: int


class Writer:
    """The thread and its queue. Methods with a name without underscore belong to the loop, and never wait."""

    def __init__(
        self,
        cache: OpenCache,
        segments: Segments,
        claims: Claims,
        counters: Counters,
        *,
        queue_bytes: int,
        tell: Callable[[str, str], None],
        takes_places: bool = False,
    ) -> None:
        """Start the thread. `tell` logs what happens by its kind, once in a while; the thread calls it, too.

        With `takes_places` a range takes the place of whatever nobody has asked for since this process began.
        """
        self._cache = cache
        self._index = Index(cache.writing, waits=True)
        self._victims = Victims(self._index, cache.settings.size_bytes)
        self._segments = segments
        self._segment_bytes = segment_bytes(cache.settings.size_bytes)
        self._claims = claims
        self._counters = counters
        self._queue_bytes = queue_bytes
        self._tell = tell
        self._queue: queue.SimpleQueue[Range | tuple[int, Extent] | int | None] = queue.SimpleQueue()
        # Objects of which everything is still to be forgotten; those of an index that cannot be written wait here.
        self._unwanted: list[int] = []
        # Each is counted by one thread only.
        self._offered_bytes = self._done_bytes = 0
        self._asked_bytes = self._committed_bytes = 0
        self._hits: dict[int, int] = {}
        self._returns = Returns()
        # The time of the node at the last commit, or at the begin.
        self._now_bytes = 0
        # The time of the node at the begin, if ranges take places; segments that were asked for since stay.
        self._began_bytes: int | None = 0 if takes_places else None
        self._open: _Open | None = None
        # Segments that are full, but not yet in the catalog.
        self._full: list[Filling] = []
        # Once the tier is full: the return that is expected of what would have to go.
        self._victim_bytes: int | None = None
        # The tier is smaller than it may be, because the disk has no more room.
        self._is_short = False
        self._pause = threading.Event()  # never set
        self._paused_until_s = 0.0
        self._ticked_s = 0.0
        self._touched_s = -inf
        # Taken from the queue, and still claimed.
        self._taken: list[Range] = []
        # The directory was removed or replaced, or the thread has ended, or never begun; and only the last two.
        self.is_gone = self._is_over = False
        self.end_reason = ""
        self._thread = threading.Thread(target=self._run, name="cache writer", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self.is_gone = self._is_over = True
            self.end_reason = f"the cache {cache.settings.directory} is not used: {error}; see ulimit -u and pids.max"
            self._tell("disk", self.end_reason)

    def close(self, patience_s: float) -> bool:
        """Write what is queued, and end; return False, and count the rest, if that takes longer than `patience_s`."""
        self._queue.put(None)
        if self._thread.ident is not None:  # it has begun
            self._thread.join(patience_s)
        if is_left := self._thread.is_alive():
            self._count("dropped", self.queued_bytes)
        return not is_left

    def ask(self, name: int, size_bytes: int) -> int | None:
        """Note that the range `name` is asked for; return how long it takes to come back, if that is known."""
        self._asked_bytes += size_bytes
        now_bytes = self._now_bytes + self._asked_bytes - self._committed_bytes
        known = self._returns.ask(name, now_bytes, size_bytes)
        return known if self._began_bytes is None else 0

    def hit(self, segment: int, size_bytes: int) -> None:
        """Note that so many bytes of a segment were served."""
        # One look at `_hits` for the change: the thread may take the dictionary, to walk through it, amid this line.
        self._hits[segment] = self._hits.get(segment, 0) + size_bytes

    def takes(self, return_bytes: int | None) -> bool:
        """Return whether a range with this return is worth keeping, and may be written now."""
        return not self.is_gone and not self.is_paused and self.has_place(return_bytes)

    def has_place(self, return_bytes: int | None) -> bool:
        """Return whether there is room for a range with this return, or something that it is worth more than."""
        victim_bytes, limit_bytes = self._victim_bytes, self._cache.settings.size_bytes
        return victim_bytes is None or is_worth_it(return_bytes, victim_bytes, self._returns.long_bytes, limit_bytes)

    @property
    def is_paused(self) -> bool:
        """Return whether nothing is written for a while, after a failure."""
        return self._paused_until_s > 0 and time.monotonic() < self._paused_until_s

    @property
    def written_bytes(self) -> int:
        """The bytes that were written until now."""
        return self._counters.get("fastfuse_cache_bytes", "written")

    @property
    def queued_bytes(self) -> int:
        """The bytes that wait to be written."""
        return 0 if self._is_over else self._offered_bytes - self._done_bytes

    def offer(self, fetched: Range) -> bool:
        """Queue a range that is claimed; return False if the queue is full."""
        if self.queued_bytes + len(fetched.data) > self._queue_bytes:
            self._count("skipped", len(fetched.data))
            return False
        self._offered_bytes += len(fetched.data)
        self._queue.put(fetched)
        if self._is_over:  # nobody else looks into it any more
            self._give_up_queue()
        return True

    def forget(self, what: tuple[int, Extent] | int) -> None:
        """Have an extent of an object forgotten, or all that is kept of an object or was offered before."""
        self._queue.put(what)

    def _count(self, what: str, size_bytes: int) -> None:
        self._counters.count("fastfuse_cache_bytes", size_bytes, what)

    def _run(self) -> None:
        try:
            self._guarded(self._begin)
            while self._step():
                if time.monotonic() - self._ticked_s >= _TICK_S:
                    self._ticked_s = time.monotonic()
                    self._guarded(self._tick)
        except Exception as error:
            self.end_reason = f"the cache {self._cache.settings.directory} is not used any more: {error!r}"
            self._tell("disk", self.end_reason)
            raise
        finally:
            self.is_gone = self._is_over = True
            self._release_taken()
            self._give_up_queue()
            self._leave()

    def _release_taken(self) -> None:
        while self._taken:
            one = self._taken.pop()
            self._claims.release(one.object_id, one.start, one.end)

    def _give_up_queue(self) -> None:
        """Give up the claims on what nobody will write; the loop may call it, too."""
        with suppress(queue.Empty):
            while True:
                item = self._queue.get_nowait()
                if isinstance(item, Range):
                    self._count("dropped", len(item.data))
                    self._claims.release(item.object_id, item.start, item.end)

    def _guarded(self, work: Callable[[], None]) -> bool:
        """Do `work`, which may use disk and index. After a failure nothing is written for a while."""
        try:
            work()
        except (OSError, sqlite3.Error) as error:
            self._paused_until_s = time.monotonic() + _PAUSE_S
            self._leave()
            kind = "index" if isinstance(error, sqlite3.Error) else "disk"
            self._tell(kind, f"the cache {self._cache.settings.directory} takes nothing for now: {error}")
            return False
        return True

    def _step(self) -> bool:
        """Write what is queued; return False if that was all there will be."""
        ranges = self._taken
        size_bytes, goes_on = 0, True
        try:
            item = self._queue.get(timeout=_TICK_S)
            if self.queued_bytes < _GATHER_BYTES:
                self._pause.wait(_GATHER_S)
            while True:
                if item is None:
                    goes_on = False
                    break
                if isinstance(item, Range):
                    ranges.append(item)
                    size_bytes += len(item.data)
                elif isinstance(item, int):
                    self._unwanted.append(item)
                else:
                    self._guarded(partial(self._index.drop, *item))
                if size_bytes >= _BATCH_BYTES or len(ranges) >= _BATCH_RANGES:
                    break
                item = self._queue.get_nowait()
        except queue.Empty:
            pass
        if ranges:
            self._put(ranges, size_bytes)
        while self._unwanted and self._guarded(partial(self._index.forget, self._unwanted[-1])):
            self._unwanted.pop()
        return goes_on

    def _put(self, ranges: list[Range], size_bytes: int) -> None:
        written: list[tuple[int, Extent]] = []
        takes = not self.is_paused and self._guarded(lambda: self._write(ranges, written))
        if not takes:
            written.clear()
        kept_bytes = sum(extent.end - extent.start for _, extent in written)
        self._count("written", kept_bytes)
        # The writer declines what has no room, and drops what a failure costs.
        self._count("declined" if takes else "dropped", size_bytes - kept_bytes)
        self._release_taken()
        self._done_bytes += size_bytes

    def _write(self, ranges: list[Range], written: list[tuple[int, Extent]]) -> None:
        filled: dict[int, int] = {}
        for one in ranges:
            at, data = one.start, one.data
            while data and (self._has_room() or self._roll(one.return_bytes)):
                assert self._open is not None
                room = self._open
                place = place_of(room.filled_bytes, len(data))
                count = min(len(data), room.segment.size_bytes - place)
                if count > 0:
                    room.filling.put(place, data[:count])
                    digests = digests_of(data[:count], one.seed + at)
                    extent = Extent(at, at + count, room.segment.id, place, digests, one.seed)
                    written.append((one.object_id, extent))
                    at, data = at + count, data[count:]
                room.filled_bytes = filled[room.segment.id] = place + count
        if self._open is not None:
            self._open.filling.flush()
            self._open.filled_bytes = aligned(self._open.filled_bytes)
            filled[self._open.segment.id] = self._open.filled_bytes
        self._commit(written, filled)

    def _commit(self, written: list[tuple[int, Extent]], filled: dict[int, int]) -> None:
        hits, self._hits = self._hits, {}
        asked_bytes = self._asked_bytes
        self._now_bytes = self._index.commit(written, filled, hits, asked_bytes - self._committed_bytes)
        self._committed_bytes = asked_bytes
        add(self._cache.filter_fd, [object_id for object_id, _ in written])
        while self._full:
            self._full.pop().close()

    def _has_room(self) -> bool:
        return self._open is not None and self._open.filled_bytes < self._open.segment.size_bytes

    def _leave(self) -> None:
        """Let go of the segments that were filled: others believe what the catalog says of them."""
        for filling in (*self._full, *([self._open.filling] if self._open is not None else [])):
            filling.close()
        self._full.clear()
        self._open = None

    def _roll(self, return_bytes: int | None) -> bool:
        """Open another segment to fill, if need be in the place of one that is worth less; False if there is none."""
        if self._open is not None:
            self._open.filling.flush()
            self._full.append(self._open.filling)
            self._open = None
        for _ in range(_TRIES):
            if any(map(self._take, self._index.unfilled())):
                return True
            added = self._add()
            if added is None:
                self._look_for_victim()
                if not self.takes(return_bytes) or not self._evict():
                    return False
                added = self._add()
            if added is not None and self._take(added):
                return True
        return False

    def _take(self, segment: Segment) -> bool:
        """Fill `segment` from now on; False if another process does, or if it is gone."""
        filling = self._segments.fill(segment.id)
        if filling is None:
            return False
        now = self._index.segment(segment.id)  # as it is with the lock on it
        if now is None:
            filling.close()
            self._segments.remove(segment.id)
            return False
        self._open = _Open(now, filling, now.filled_bytes)
        return True

    def _add(self) -> Segment | None:
        """Add a segment; None if there is no room for one."""
        if min(self._room_bytes()) < self._segment_bytes:
            return None
        return self._index.add(self._segment_bytes, self._cache.settings.size_bytes - self._cache.index_bytes())

    def _room_bytes(self) -> tuple[int, int]:
        """Return how much more the tier may take, and how much more its disk has for it; both may be less than 0."""
        settings, there = self._cache.settings, os.statvfs(self._cache.directory_fd)
        used_bytes = self._index.room_bytes() + self._cache.index_bytes()
        return settings.size_bytes - used_bytes, there.f_bavail * there.f_frsize - settings.min_free_bytes

    def _tell_short_disk(self) -> None:
        """Tell, once in a spell, that the disk has no room for what the tier may take."""
        settings, was_short = self._cache.settings, self._is_short
        allowed_bytes, disk_bytes = self._room_bytes()
        self._is_short = disk_bytes < self._segment_bytes <= allowed_bytes
        if self._is_short and not was_short:
            kept = f"{format_size(settings.size_bytes - allowed_bytes)} of {format_size(settings.size_bytes)}"
            limit = f"no room beyond --cache-min-free ({format_size(settings.min_free_bytes)})"
            self._tell("disk without room", f"the cache {settings.directory} keeps {kept}: its disk has {limit}")

    def _evict(self) -> bool:
        """Let the segment go that is worth least, of those that no process fills; False if there is none."""
        for _ in range(_VICTIMS):
            if self._return_of_victim() is None:
                break
            number = self._victims.take()
            with self._segments.locked(number) as is_ours:
                evicted_bytes = evict(self._index, self._segments, number, also_pinned=False) if is_ours else None
                if evicted_bytes is not None:
                    self._count("evicted", evicted_bytes)
                    return True
        return False

    def _look_for_victim(self) -> None:
        """Note what would have to go for more; nothing as long as there is room."""
        victim_bytes = None
        if min(self._room_bytes()) < self._segment_bytes:
            if self._hits:
                hits, self._hits = self._hits, {}
                self._index.commit([], {}, hits, 0)
            victim_bytes = self._return_of_victim() or 0
        self._victim_bytes = victim_bytes

    def _return_of_victim(self) -> int | None:
        """Look up how soon the segment that is worth least comes back (`policy`); None if no segment may go."""
        unasked_since = NEVER if self._began_bytes is None else self._began_bytes
        return_bytes = self._victims.least(self._now_bytes, unasked_since)
        return return_bytes if return_bytes is None or self._began_bytes is None else _ANY_PLACE

    def _begin(self) -> None:
        """Remove what processes left that were killed: segments without a row, and rows of segments that are gone."""
        self._now_bytes = self._index.now_bytes()  # or what is asked for first would seem to come back late
        if self._began_bytes is not None:
            self._now_bytes = self._began_bytes = self._index.commit([], {}, {}, 1)
        # Others may go on meanwhile in this order: a segment is known before it is made, and made before it is filled.
        before = set(self._segments.numbers())
        known = self._index.segments()
        after = set(self._segments.numbers())
        for number in before - known.keys():
            with self._segments.locked(number) as is_ours:
                if is_ours:
                    self._segments.remove(number)
        for number in known.keys() - after:
            if known[number]:
                self._index.evict(number)
        self._tick()

    def _tick(self) -> None:
        if not self._cache.is_there():
            if not self.is_gone:
                self.is_gone = True
                for gauge in ("fastfuse_cache_size_bytes", "fastfuse_cache_used_bytes"):
                    self._counters.set(gauge, 0)
                self.end_reason = f"the cache {self._cache.settings.directory} was removed"
                self._tell("directory", f"{self.end_reason}; reads come from S3")
            return
        if time.monotonic() - self._touched_s >= _TOUCH_EVERY_S:
            self._touched_s = time.monotonic()
            self._cache.touch()
        try:
            if self._hits or self._asked_bytes > self._committed_bytes:
                self._commit([], {})
        except sqlite3.Error as error:
            if not is_full(error):  # what is evicted makes room again
                raise
        while min(self._room_bytes()) < 0 and self._evict():
            pass
        self._look_for_victim()
        self._tell_short_disk()
        self._counters.set("fastfuse_cache_used_bytes", self._index.room_bytes())

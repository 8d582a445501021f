"""Memory for the bytes of replies; free memory is used again before new memory is touched.

The first use of a page is what costs: the kernel clears it, and on many virtual machines the host has to find it first.
A thread that receives into new pages also delays every thread that asks the system for memory. Parts therefore come
from one mapping that is made at the start. It has no huge pages: most free memory of that size has never been used.
See docs/MEASUREMENTS.md, "memory of parts".

Small buffers come from the C library, which keeps what they leave, and gives it back where others need the room.
"""

import mmap
import weakref
from collections import deque
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

from fastfuse.malloc import trim_malloc
from fastfuse.s3.blocks import Blocks

# The least that can be taken from the mapping: the smallest part of a large file. Smaller buffers come from malloc.
_UNIT_BYTES = 128 << 10
# This share of the limit may be lost to units that are not filled, and as much again to what the C library keeps of
# small buffers: together about as much as a target of 1 GiB leaves beside the parts.
_LOSS_DIVISOR = 32

_STATM = Path("/proc/self/statm")


def private_bytes() -> int:
    """Return the bytes of resident memory that belong to no file and to no other process; proc(5)."""
    _, resident, shared, *_ = _STATM.read_text().split()
    return (int(resident) - int(shared)) * mmap.PAGESIZE


class PartBuffers:
    """Hands out buffers of any size; a buffer is given back when nobody refers to it any more.

    Buffers of at least a unit and at most `part_bytes` lie in the mapping, up to `limit_bytes`, unless too much of
    their last units would be left over. Free units and free memory of other buffers keep their pages as long as these
    and all buffers in use are not more than `limit_bytes` together.
    """

    def __init__(self, *, part_bytes: int, limit_bytes: int) -> None:
        self._part_bytes = part_bytes
        self._limit_bytes = limit_bytes
        self._most_lost_bytes = limit_bytes // _LOSS_DIVISOR
        # The unused ends of units in use; the buffers from the C library, without and with what it keeps for more.
        self._left_over_bytes = 0
        self._small_bytes = self._small_resident_bytes = 0
        self._names = count()
        # The weak references that report when a buffer is gone, by its name.
        self._watches: dict[int, weakref.ref[object]] = {}
        # Name, size and first unit of the buffers that are gone. The thread that drops the last reference only appends.
        self._gone: deque[tuple[int, int, int | None]] = deque()
        units = limit_bytes // _UNIT_BYTES if part_bytes else 0
        self._arena: mmap.mmap | None = None
        if units:
            with suppress(OSError):  # no room in the address space, or overcommit refuses it
                self._arena = mmap.mmap(-1, units * _UNIT_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._blocks = Blocks(units, _units(part_bytes))
        # The units that have pages, and their number.
        self._has_pages = bytearray(units)
        self._warm_units = 0

    def take(self, size_bytes: int) -> memoryview:
        """Return a buffer to write to. It holds whatever was in it before."""
        self._take_back()
        start = self._blocks.take(_units(size_bytes)) if self._suits_arena(size_bytes) else None
        if start is None:
            # Not cleared, unlike a bytearray.
            buffer = np.empty(size_bytes, np.uint8)
        else:
            assert self._arena is not None
            buffer = np.frombuffer(self._arena, np.uint8, size_bytes, start * _UNIT_BYTES)
            self._warm(start, _units(size_bytes))
        name = next(self._names)
        self._watches[name] = weakref.ref(buffer, partial(self._let_go, name, size_bytes, start))
        self._count(size_bytes, start, 1)
        self._cool()
        return buffer.data

    @property
    def resident_bytes(self) -> int:
        """The bytes of the buffers in use and of the free memory that has its pages."""
        return self._warm_units * _UNIT_BYTES + self._small_resident_bytes

    def _suits_arena(self, size_bytes: int) -> bool:
        if self._arena is None or not _UNIT_BYTES <= size_bytes <= self._part_bytes:
            return False
        return self._left_over_bytes + _left_over_bytes(size_bytes) <= self._most_lost_bytes

    def _count(self, size_bytes: int, start: int | None, step: int) -> None:
        if start is None:
            self._small_bytes += step * size_bytes
            self._small_resident_bytes = max(self._small_resident_bytes, self._small_bytes)
        else:
            self._left_over_bytes += step * _left_over_bytes(size_bytes)

    def _let_go(self, name: int, size_bytes: int, start: int | None, _: object) -> None:
        self._gone.append((name, size_bytes, start))

    def _take_back(self) -> None:
        while self._gone:
            name, size_bytes, start = self._gone.popleft()
            del self._watches[name]
            self._count(size_bytes, start, -1)
            if start is not None:
                self._blocks.give(start, _units(size_bytes))

    def _cool(self) -> None:
        """Give pages back to the system: what the C library keeps, then those of free units."""
        if self._arena is None or self.resident_bytes <= self._limit_bytes:
            return
        if self._small_resident_bytes - self._small_bytes > self._most_lost_bytes:
            trim_malloc()
            self._small_resident_bytes = self._small_bytes
        for start, length in self._blocks.free():
            end = start + length
            while (start := self._has_pages.find(1, start, end)) >= 0:
                excess_bytes = self.resident_bytes - self._limit_bytes
                if excess_bytes <= 0:
                    return
                self._forget_pages(start, min(end - start, _units(excess_bytes)))

    def _warm(self, start: int, length: int) -> None:
        """Note that these units will have pages."""
        self._warm_units += length - self._has_pages.count(1, start, start + length)
        self._has_pages[start : start + length] = b"\1" * length

    def _forget_pages(self, start: int, length: int) -> None:
        assert self._arena is not None
        self._arena.madvise(mmap.MADV_DONTNEED, start * _UNIT_BYTES, length * _UNIT_BYTES)
        self._warm_units -= self._has_pages.count(1, start, start + length)
        self._has_pages[start : start + length] = bytes(length)


def _units(size_bytes: int) -> int:
    return -(-size_bytes // _UNIT_BYTES)


def _left_over_bytes(size_bytes: int) -> int:
    return _units(size_bytes) * _UNIT_BYTES - size_bytes

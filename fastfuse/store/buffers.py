"""Memory for the bytes of replies, used again before more of it is touched.

What a large part costs is not its place but its first use: the kernel clears each page, and on many virtual machines
the host has to find it first. And a thread that receives into new pages holds up whoever asks the system for memory
meanwhile: with 26 GETs of 8 MiB beginning at once, the event loop stood still for 20 to 100 ms in ``malloc``. So large
parts come from one mapping that is made at the start: one reader of 1 GiB took 0.44 CPU seconds per GB with it, and
0.6 to 0.9 without.

Not in huge pages: free memory of that size has mostly not been used before, and the host has to find all of it. One
reader of 1 GiB from cold got 1.62 GB/s without and 1.40 GB/s with them (medians of eight runs in turns).

Whoever lends pages themselves to the kernel, as ``vmsplice`` does, must never write to them again, for nobody tells
how long they are read. That is what `is_written_once` is for: a slot that is given back has no pages any more, its next
use gets new ones, and those that are lent stay as they are. (Huge pages brought nothing here either: Pipe mode had 0.73
of the speed of raw GETs twice without, and 0.69 and 0.76 with them.)
"""

import mmap
import weakref
from collections import deque
from functools import partial
from itertools import count

import numpy as np

from fastfuse.malloc import trim_malloc

__all__ = ["PartBuffers"]

# So much of the limit may be lost to slots that are not filled, and so much again to what the C library keeps of small
# buffers: together as much as a memory target leaves beside the parts, where it is 1 GiB.
_LOSS_DIVISOR = 32


class PartBuffers:
    """Buffers of any size; a buffer is given back when nobody refers to it any more.

    Those of more than half of `slot_bytes` are slots of the mapping, as far as `limit_bytes` go, unless too much of
    the slots would be left over. What is free, slots and the memory of other buffers, keeps its pages as long as these
    and all buffers in use are not more than `limit_bytes` together.
    """

    def __init__(self, *, slot_bytes: int, limit_bytes: int, is_written_once: bool = False) -> None:
        self._is_written_once = is_written_once
        self._slot_bytes = slot_bytes
        self._limit_bytes = limit_bytes
        self._most_lost_bytes = limit_bytes // _LOSS_DIVISOR
        # In use: slots, what is left over of them, and buffers from the C library with what it keeps for more of them.
        self._slots_bytes = self._left_over_bytes = 0
        self._small_bytes = self._small_resident_bytes = 0
        # Free slots: with pages, the warmest last, and without.
        self._warm: deque[int] = deque()
        self._cold: list[int] = []
        self._names = count()
        # By name: what tells when a buffer is gone.
        self._watches: dict[int, weakref.ref[object]] = {}
        # Name, size and slot of those that are gone. Whoever drops the last reference, a thread too, only appends here.
        self._gone: deque[tuple[int, int, int | None]] = deque()
        self._arena = self._map(limit_bytes // slot_bytes if slot_bytes else 0)
        self._arena_address = 0 if self._arena is None else _address(memoryview(self._arena))

    def take(self, size_bytes: int) -> memoryview:
        """A buffer to write to, with whatever was in it before."""
        self._take_back()
        slot = self._free_slot() if self._suits_slot(size_bytes) else None
        if slot is None:
            # Not cleared, unlike a bytearray.
            buffer = np.empty(size_bytes, np.uint8)
        else:
            assert self._arena is not None
            buffer = np.frombuffer(self._arena, np.uint8, size_bytes, slot * self._slot_bytes)
        name = next(self._names)
        self._watches[name] = weakref.ref(buffer, partial(self._let_go, name, size_bytes, slot))
        self._count(size_bytes, slot, 1)
        self._cool()
        return buffer.data

    def lent_from(self, data: memoryview) -> int:
        """The address of `data`, a piece of a buffer taken here; 0 if its pages may be written to again."""
        if not self._is_written_once or self._arena is None:
            return 0
        address = _address(data)
        return address if 0 <= address - self._arena_address < len(self._arena) else 0

    @property
    def resident_bytes(self) -> int:
        """Of buffers in use, and of what is free and has its pages."""
        self._take_back()
        return self._slots_bytes + len(self._warm) * self._slot_bytes + self._small_resident_bytes

    def _map(self, slots: int) -> mmap.mmap | None:
        if not slots:
            return None
        try:
            arena = mmap.mmap(-1, slots * self._slot_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:  # no room for it in the address space, or none that may be promised
            return None
        self._cold = [*reversed(range(slots))]
        return arena

    def _suits_slot(self, size_bytes: int) -> bool:
        # All pages of a slot count: it may have been full before.
        left_over_bytes = self._slot_bytes - size_bytes
        is_large = 0 <= left_over_bytes < self._slot_bytes - self._slot_bytes // 2
        return is_large and self._left_over_bytes + left_over_bytes <= self._most_lost_bytes

    def _count(self, size_bytes: int, slot: int | None, step: int) -> None:
        if slot is None:
            self._small_bytes += step * size_bytes
            self._small_resident_bytes = max(self._small_resident_bytes, self._small_bytes)
        else:
            self._slots_bytes += step * self._slot_bytes
            self._left_over_bytes += step * (self._slot_bytes - size_bytes)

    def _free_slot(self) -> int | None:
        if self._warm:
            return self._warm.pop()
        return self._cold.pop() if self._cold else None

    def _let_go(self, name: int, size_bytes: int, slot: int | None, _: object) -> None:
        self._gone.append((name, size_bytes, slot))

    def _take_back(self) -> None:
        while self._gone:
            name, size_bytes, slot = self._gone.popleft()
            del self._watches[name]
            self._count(size_bytes, slot, -1)
            if slot is not None and self._is_written_once:
                self._forget_pages(slot)
            elif slot is not None:
                self._warm.append(slot)

    def _cool(self) -> None:
        """Give pages back to the system: what the C library keeps, then those of the coldest slots."""
        if self._arena is None or self.resident_bytes <= self._limit_bytes:
            return
        if self._small_resident_bytes - self._small_bytes > self._most_lost_bytes:
            trim_malloc()
            self._small_resident_bytes = self._small_bytes
        while self._warm and self.resident_bytes > self._limit_bytes:
            self._forget_pages(self._warm.popleft())

    def _forget_pages(self, slot: int) -> None:
        assert self._arena is not None
        self._arena.madvise(mmap.MADV_DONTNEED, slot * self._slot_bytes, self._slot_bytes)
        self._cold.append(slot)


def _address(data: memoryview) -> int:
    address: int = np.frombuffer(data, np.uint8).ctypes.data
    return address

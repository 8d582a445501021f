"""Faults of a map at random places, for which the kernel asks for far more than the page that is wanted. Pure."""

from collections.abc import Iterable

from fastfuse.readahead.cursor import Cursor
from fastfuse.readahead.limits import KERNEL_PAGE_BYTES, KERNEL_REQUEST_BYTES

# What the kernel asks for around a fault (filesystem.mounting.mountpoint): its readahead, the page in the middle.
# It asks for twice as much, in two requests at once, after `POSIX_FADV_SEQUENTIAL`, which PyTorch gives for its maps.
_AROUND_BYTES = 1 << 20
# So many faults in a row that were not read on from show that only their pages are wanted.
_SHORT_RUNS = 3


class Faults:
    """The faults of the maps of one file, as far as reads look like such."""

    __slots__ = ("_around", "_fault_bytes", "_is_mapped", "_reads", "_short_runs")

    def __init__(self) -> None:
        # `_around` was put off last, and `_reads` came in it since. Maps are believed in until one shows otherwise.
        self._around, self._reads, self._is_mapped = (0, 0), 1, True
        # The runs before the last jumps, in a row, that may have been one fault each; and what one asks for at most.
        self._short_runs, self._fault_bytes = 0, _AROUND_BYTES

    def puts_off(self, offset: int, end: int, last: Cursor, runs: Iterable[Cursor]) -> bool:
        """Return whether to refuse a request that fills the page cache, so that the kernel asks for one page instead.

        A fault at random asks for all of the kernel's readahead. If that fails, the kernel asks for the page that is
        wanted, and nobody else learns of it. A `pread` looks alike once: it then asks for the first page. `last` is the
        run of the last read.
        """
        is_answered = self._reads > 0
        if end - offset != _AROUND_BYTES or not offset % _AROUND_BYTES:
            return False
        if offset == self._around[1] and not is_answered:
            self._around = (self._around[0], end)
            return True
        # Readers who read on at each place gain nothing.
        if not self._is_mapped or not is_answered or self._short_runs < _SHORT_RUNS - 1 or not self._is_short(last):
            return False
        if any(run.begin - _AROUND_BYTES <= offset <= run.position + _AROUND_BYTES for run in runs):
            return False
        self._around, self._reads = (offset, end), 0
        return True

    def read(self, offset: int, end: int) -> None:
        """Note a read of ``[offset, end)``."""
        if self._has(offset):
            if not self._reads:
                self._is_mapped = offset <= sum(self._around) // 2 < end
            self._reads += 1

    def came_together(self, run: Cursor, size_bytes: int) -> None:
        """Note that the last read of `run`, of `size_bytes`, came while the one before it was under way."""
        if size_bytes == _AROUND_BYTES and run.run_bytes == 2 * size_bytes:
            self._fault_bytes = 2 * _AROUND_BYTES

    def jumped(self, run: Cursor) -> None:
        """Note that a read elsewhere follows on `run`."""
        self._short_runs = self._short_runs + 1 if self._is_short(run) else 0

    def wanted(self, begin: int, start: int, end: int) -> tuple[int, int] | None:
        """Return what to fetch for a read of ``[start, end)``, of a run from `begin` on, if that was put off before."""
        if not self._has(start) or end - start > KERNEL_PAGE_BYTES:
            return None
        # The page may be all that is wanted; whoever asks for the next one reads on, page by page.
        if self._reads == 1:
            return start, start + KERNEL_REQUEST_BYTES
        return (start, self._around[1]) if start > begin else None

    def _has(self, offset: int) -> bool:
        return self._around[0] <= offset < self._around[1]

    def _is_short(self, run: Cursor) -> bool:
        """Return whether a run may have been one fault."""
        return run.run_bytes <= (KERNEL_REQUEST_BYTES if self._has(run.begin) else self._fault_bytes)

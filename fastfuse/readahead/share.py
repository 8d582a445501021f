"""Which files are being read, and so how much readahead each may have. Pure: time is counted in bytes fetched."""

from itertools import takewhile

from fastfuse.readahead.parts import FileParts
from fastfuse.readahead.readahead_config import ReadaheadConfig, Share

__all__ = ["FairShare", "ahead_share"]

_LEAST_FREE_DIVISOR = 8

# Kept for parts that somebody waits for, of each file one or two at a time: a quarter, and no more than four of 8 MiB.
# With twice that four readers in 512 MiB got 2.05 GB/s instead of 2.17 (means of three runs).
_KEPT_DIVISOR = 4
_MAX_KEPT_BYTES = 32 << 20

# Of more connections than this, which small files need to hide the time to the first byte, readers of large files get
# no more parts ahead before there are twice as many: they would only take new memory. Three quarters of so many bring
# 4.4 GB/s, at 20 ms to the first byte and 90 MB/s each; with those of 64 readers waited for half of what they read, at
# 2.3 GB/s.
_ENOUGH_CONNECTIONS = 80


class FairShare:
    """Divides the readahead in `total` between the files that are being read, with some left free for the next one.

    What is free is what a new reader starts with, even if every other file has its share in flight and stalls: a share
    like theirs, or an eighth where there are few of them, for a reader that is alone should not wait for nobody.

    A file is idle when all files together have fetched `idle_after_bytes` since it was last read: by then others have
    had the use of the whole memory, while in a pause of everybody nobody becomes idle.
    """

    __slots__ = ("_idle_after_bytes", "_last_read_at", "_total", "share")

    def __init__(self, total: Share, idle_after_bytes: int) -> None:
        self._total = total
        self._idle_after_bytes = idle_after_bytes
        # By time of the last read, oldest first.
        self._last_read_at: dict[FileParts, int] = {}
        # What each of them may have.
        self.share = total

    @property
    def active(self) -> int:
        """Files being read."""
        return len(self._last_read_at)

    def touch(self, file: FileParts, fetched_bytes: int) -> list[FileParts]:
        """`file` is read at the time `fetched_bytes`: the files that have become idle by now."""
        reads = self._last_read_at
        was_active = len(reads)
        reads.pop(file, None)
        reads[file] = fetched_bytes
        idle = [*takewhile(lambda other: fetched_bytes - reads[other] > self._idle_after_bytes, reads)]
        for other in idle:
            del reads[other]
        if len(reads) != was_active:
            self._divide()
        return idle

    def forget(self, file: FileParts) -> None:
        """`file` is closed."""
        if self._last_read_at.pop(file, None) is not None:
            self._divide()

    def _divide(self) -> None:
        total, active = self._total, self.active
        if not active:
            self.share = total
            return
        shares = max(active + 1, _LEAST_FREE_DIVISOR)
        self.share = Share(
            total.window_bytes * (shares - 1) // (shares * active),
            max(1, total.parts_in_flight * (shares - 1) // (shares * active)),
        )


def ahead_share(config: ReadaheadConfig) -> Share:
    """What may be ahead of readers, all files together."""
    limit_bytes, connections = config.memory_limit_bytes, config.max_parts_in_flight
    ahead_bytes = limit_bytes - min(limit_bytes // _KEPT_DIVISOR, _MAX_KEPT_BYTES)
    most = max(min(connections, _ENOUGH_CONNECTIONS), connections // 2)
    return Share(ahead_bytes, max(1, most - most // 4))

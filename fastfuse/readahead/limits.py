"""The limits of the read engine: altogether (`ReadaheadConfig`), and for each file (`FairShare`).

Pure: time is counted in bytes fetched.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import takewhile
from math import inf
from resource import getpagesize
from typing import Generic, TypeVar

_KIB = 1 << 10
_MIB = 1 << 20

# The kernel reads whole pages, so no range is cut finer (the end of a file apart). A read past the page cache may begin
# at any of these where the kernel's own pages are larger.
PAGE_BYTES = 4 * _KIB
# What the kernel asks for if it wants a single page: 64 KiB on some hosts of aarch64.
KERNEL_PAGE_BYTES = getpagesize()
# What the kernel asks for at once, unless told otherwise.
KERNEL_REQUEST_BYTES = 128 * _KIB

# A memory target also covers the processes themselves, and what the C library keeps of replies.
_CLIENT_OVERHEAD_BYTES = 128 * _MIB
# The window of a reader that is expected to read on; a reader at random pays for it once.
_FIRST_WINDOW_DIVISOR = 8
_MAX_FIRST_WINDOW_BYTES = 256 * _MIB
# Kept for parts that a reader waits for, which each file needs one or two at a time.
_KEPT_DIVISOR = 4
_MAX_KEPT_BYTES = 32 * _MIB
# Small files need more connections, to hide the time to the first byte. Readahead of large files does not gain by more
# than these, or than half of all.
_ENOUGH_CONNECTIONS = 80
# A new reader finds this part free, even if every other file has its share in flight and stalls.
_LEAST_FREE_DIVISOR = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadaheadConfig:
    """Sizes and limits of the read engine, for all files together unless said otherwise."""

    # One GET of a reader at full speed.
    part_size_bytes: int = 8 * _MIB
    # What a reader that starts at 0 gets first. Most small files are one GET; of a large file it comes in four.
    first_part_bytes: int = _MIB
    # How far ahead of one reader at most, if it is alone; `pace` measures what it needs.
    max_window_bytes: int = 512 * _MIB
    # What is fetched ahead when the first large file is begun, as if it were read to its end; 0: the window grows with
    # what is read.
    first_window_bytes: int = 0
    # Every file is read once in each epoch, so files are fetched before they are begun, also in no known order.
    expects_every_file: bool = False
    # Parts held and parts in flight, of all files: one whole window is half of it. One part and a half at least, of
    # which small files that are kept may take a quarter: a reader waits for a part that must fit in the rest.
    memory_limit_bytes: int = 1024 * _MIB
    # GETs at once. A mount sets it to the connections of its S3 client: more would only queue there.
    max_parts_in_flight: int = 64
    # A read that has waited for so long fails: for its turn, or for GETs, each of which may take as long by itself.
    read_deadline_s: float = inf

    @classmethod
    def within(
        cls,
        memory_target_bytes: int,
        *,
        part_size_bytes: int,
        max_parts_in_flight: int,
        expects_whole_files: bool = False,
        expects_every_file: bool = False,
        read_deadline_s: float = inf,
    ) -> "ReadaheadConfig":
        """Return the limits of a process that may have `memory_target_bytes` altogether."""
        first_window_bytes = min(memory_target_bytes // _FIRST_WINDOW_DIVISOR, _MAX_FIRST_WINDOW_BYTES)
        return cls(
            part_size_bytes=part_size_bytes,
            first_part_bytes=min(cls().first_part_bytes, part_size_bytes),
            memory_limit_bytes=max(memory_target_bytes - _CLIENT_OVERHEAD_BYTES, memory_target_bytes // 2),
            first_window_bytes=first_window_bytes if expects_whole_files else 0,
            expects_every_file=expects_every_file,
            max_parts_in_flight=max_parts_in_flight,
            read_deadline_s=read_deadline_s,
        )


@dataclass(frozen=True, slots=True)
class Share:
    """The readahead that one file may have for now: bytes, and parts in flight at the same time."""

    window_bytes: int
    parts_in_flight: int


def ahead_share(config: ReadaheadConfig) -> Share:
    """Return what may be ahead of readers, all files together."""
    limit_bytes, connections = config.memory_limit_bytes, config.max_parts_in_flight
    ahead_bytes = limit_bytes - min(limit_bytes // _KEPT_DIVISOR, _MAX_KEPT_BYTES)
    most = max(min(connections, _ENOUGH_CONNECTIONS), connections // 2)
    return Share(ahead_bytes, max(1, most - most // _KEPT_DIVISOR))


_File = TypeVar("_File", bound=Hashable)


class FairShare(Generic[_File]):
    """Divides the readahead in `total` between the files that are being read, with a share free for the next one.

    A file is idle when all files together have fetched `idle_after_bytes` since it was last read: by then others have
    had the use of the whole memory. In a pause of all readers no file becomes idle.
    """

    def __init__(self, total: Share, idle_after_bytes: int) -> None:
        self._total = total
        self._idle_after_bytes = idle_after_bytes
        # By time of the last read, oldest first.
        self._last_read_at: dict[_File, int] = {}
        # What each of them may have.
        self.share = total

    def touch(self, file: _File, fetched_bytes: int) -> list[_File]:
        """Note that `file` is read at the time `fetched_bytes`. Return the files that have become idle by now."""
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

    def forget(self, file: _File) -> None:
        """Take back the share of `file`, which is closed."""
        if self._last_read_at.pop(file, None) is not None:
            self._divide()

    def _divide(self) -> None:
        total, active = self._total, len(self._last_read_at)
        if not active:
            self.share = total
            return
        shares = max(active + 1, _LEAST_FREE_DIVISOR)
        self.share = Share(
            total.window_bytes * (shares - 1) // (shares * active),
            # Rounded up: half of two is one, and a reader with one part on its way waits for each. The pool bounds all.
            -(-total.parts_in_flight * (shares - 1) // (shares * active)),
        )

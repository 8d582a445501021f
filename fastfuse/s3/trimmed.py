"""Keeps a process within its memory while parts of all sizes come and go.

The C library keeps freed memory, which makes the next part cheap. It keeps more than it uses where sizes change: the
memory of one part of 8 MiB has to serve many of 300 KiB, with a client's own buffers between them. With 64 files and a
target of 128 MiB it kept 94 MiB that nobody used. The trimmer therefore looks at the process's memory as buffers are
taken, and gives free memory back to the system where there is too much, which takes 2 to 20 ms.
"""

import mmap
from collections.abc import Callable
from pathlib import Path

from fastfuse.malloc import trim_malloc

__all__ = ["Trimmer", "private_bytes"]

# A look is four system calls, at each of which the other threads may take the GIL: up to 300 µs of the loop's time
# where they receive and reply at 2 GB/s. 8 MiB take 3,500 µs.
_LEAST_LOOK_EVERY_BYTES = 4 << 20
_MOST_LOOK_EVERY_BYTES = 32 << 20
_LOOKS_PER_LIMIT = 64
# Less than this is not worth a trim: sockets' buffers in Python, or the stack of one more thread.
_SLACK_BYTES = 8 << 20
# The share of the limit to take before the next trim: until then there is little to gain.
_PATIENCE_DIVISOR = 8

_STATM = Path("/proc/self/statm")


def private_bytes() -> int:
    """Return the bytes of resident memory that belong to no file and to no other process; proc(5)."""
    _, resident, shared, *_ = _STATM.read_text().split()
    return (int(resident) - int(shared)) * mmap.PAGESIZE


class Trimmer:
    """Gives free memory back when the process has more than `limit_bytes` beyond its start."""

    def __init__(
        self,
        limit_bytes: int,
        *,
        used_bytes: Callable[[], int] = private_bytes,
        trim: Callable[[], None] = trim_malloc,
    ) -> None:
        self._used_bytes = used_bytes
        self._trim = trim
        self._most_bytes = used_bytes() + limit_bytes + _SLACK_BYTES
        look_every_bytes = max(limit_bytes // _LOOKS_PER_LIMIT, _LEAST_LOOK_EVERY_BYTES)
        self._look_every_bytes = min(look_every_bytes, _MOST_LOOK_EVERY_BYTES)
        self._patience_bytes = max(limit_bytes // _PATIENCE_DIVISOR, self._look_every_bytes)
        # Bytes to take before the next look.
        self._left_bytes = self._look_every_bytes

    def took(self, size_bytes: int) -> None:
        """Note that a buffer of `size_bytes` was taken, and trim if it is time for a look and there is too much."""
        self._left_bytes -= size_bytes
        if self._left_bytes <= 0:
            self._left_bytes = self._look_every_bytes
            if self._used_bytes() > self._most_bytes:
                self._trim()
                self._left_bytes = self._patience_bytes
                # Memory that could not be given back is in use, but not by parts.
                self._most_bytes = max(self._most_bytes, self._used_bytes() + _SLACK_BYTES)

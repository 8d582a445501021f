"""The settings of a tier, for all who pass them on; it imports no library."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

# A disk takes so much within a second. Parts that wait keep their memory, and those in flight take other pages.
_QUEUE_DIVISOR: Final = 4
_MAX_QUEUE_BYTES: Final = 128 << 20
# The time that a process that ends has to write what waits: a disk of 13 MB/s takes the whole queue.
FLUSH_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """The tier that a command uses; `directory` is absolute."""

    directory: Path
    # The most that index and segments may take.
    size_bytes: int
    # The room that stays free in the file system, whoever fills it.
    min_free_bytes: int


def queue_bytes(memory_target_bytes: int) -> int:
    """Return how much of a memory target may wait to be written to the tier."""
    return min(memory_target_bytes // _QUEUE_DIVISOR, _MAX_QUEUE_BYTES)


def data_bytes(memory_target_bytes: int, cache: CacheSettings | None) -> int:
    """Return how much of a memory target parts may have; what waits for the tier, if there is one, has the rest."""
    return memory_target_bytes - (0 if cache is None else queue_bytes(memory_target_bytes))

"""What the read engine tells of itself."""

from dataclasses import dataclass

__all__ = ["PoolStatistics", "ReadCounts", "ReadStatistics"]


@dataclass(slots=True)
class ReadCounts:
    """What all streams of an engine count together."""

    hits: int = 0
    waits: int = 0
    demanded_parts: int = 0
    ahead_parts: int = 0
    prefetched_parts: int = 0
    failed_parts: int = 0


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """`reserved_bytes` are parts in flight or being handed over, `held_bytes` parts that may be evicted."""

    reserved_bytes: int
    held_bytes: int
    spent_bytes: int
    expected_bytes: int
    parts_in_flight: int
    parts_waiting: int
    active_files: int
    fetched_bytes: int
    unread_dropped_bytes: int


@dataclass(frozen=True, slots=True)
class ReadStatistics:
    """A read is a hit when it waited for nothing; of a file that was taken at its open there is none.

    `waits` counts waits for a part, two for a read across two parts.
    """

    open_files: int
    hits: int
    waits: int
    demanded_parts: int
    ahead_parts: int
    prefetched_parts: int
    failed_parts: int
    pool: PoolStatistics

"""How files are cut whose order of reading is known before anybody reads them."""

from collections.abc import Iterator

__all__ = ["part_ranges"]

# The first part of all, which a reader waits for in full; they grow with what lies before them, as those of a window
# do, so that each is there when the reader comes to it.
_FIRST_PART_BYTES = 256 << 10
_PARTS_PER_RUN = 4


def part_ranges(size_bytes: int, part_bytes: int, before_bytes: int) -> Iterator[tuple[int, int]]:
    """The parts of a file, of `part_bytes` at most, that is read after so many bytes of others."""
    start = 0
    while start < size_bytes:
        grown = (before_bytes + start) // _PARTS_PER_RUN
        step = min(part_bytes, max(_FIRST_PART_BYTES, 1 << max(0, grown.bit_length() - 1)))
        left = size_bytes - start
        # A short rest is no GET of its own, unless the part would be larger than any.
        end = size_bytes if left <= part_bytes and left < step + step // 2 else min(start + step, size_bytes)
        yield start, end
        start = end

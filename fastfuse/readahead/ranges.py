"""How files are cut into parts that grow with what was read before them. Pure."""

from collections.abc import Iterator

__all__ = ["grown_part_bytes", "known_part_end", "part_ranges"]

# So no part is more than half of the run.
_LEAST_PARTS_IN_FLIGHT = 4
# Of files whose order of reading is known before anybody reads them: the parts of the first MiB, each of which a reader
# waits for in full; and how much a part grows with what lies before it.
_FIRST_PART_BYTES = 256 << 10
_ALIGNMENT_BYTES = 1 << 20
_GROWTH_DIVISOR = 12


def grown_part_bytes(run_bytes: int, ahead_bytes: int, parts_in_flight: int, first_bytes: int, most_bytes: int) -> int:
    """The part that follows on a run of `run_bytes`, `ahead_bytes` of it still to be read, from `first_bytes` on.

    * What is further ahead is read later, so it may be larger by as much: see `_known_part_bytes`.
    * A window that grows by what was read is a multiple of the run, and as many parts as may be on their way have to
      bring it: who shares the connections with others gets larger parts. More of them would only wait for one another.
    """
    share_bytes = 2 * run_bytes // max(parts_in_flight, _LEAST_PARTS_IN_FLIGHT)
    step_bytes = max(share_bytes, first_bytes + ahead_bytes // _GROWTH_DIVISOR)
    return min(most_bytes, max(first_bytes, 1 << (step_bytes.bit_length() - 1)))


def _known_part_bytes(before_bytes: int, most_bytes: int) -> int:
    """The part to ask for now that a reader comes to after `before_bytes` of others.

    All come side by side, each over a connection of its own, and the reader takes as much as a dozen connections bring:
    what it comes to later may be larger by as much as one of them brings until then. So 128 MiB are 40 parts, and there
    in the order in which they are read. As they grew to 8 MiB within the first 32, what is read second was there last:
    a script had 60 MiB 125 ms after its start, and has them after 90 now (20 ms and 90 MB/s per connection). Growing by
    a sixteenth or a twenty-fourth takes more GETs and brings nothing.
    """
    if before_bytes < _ALIGNMENT_BYTES:
        return min(most_bytes, _FIRST_PART_BYTES)
    step_bytes = _ALIGNMENT_BYTES + before_bytes // _GROWTH_DIVISOR
    return min(most_bytes, step_bytes - step_bytes % _ALIGNMENT_BYTES)


def known_part_end(start: int, size_bytes: int, part_bytes: int, before_bytes: int) -> int:
    """Where the part at `start` ends, of `part_bytes` at most, in a file that is read after so many bytes of others."""
    step = _known_part_bytes(before_bytes + start, part_bytes)
    left = size_bytes - start
    # A short rest is no GET of its own, unless the part would be larger than any.
    if left <= part_bytes and left < step + step // 2:
        return size_bytes
    end = min(start + step, size_bytes)
    # At whole MiB, as the kernel's requests, because what is read from two parts is copied; but no fragments.
    aligned_end = end - end % _ALIGNMENT_BYTES
    return end if step % _ALIGNMENT_BYTES or aligned_end - start < _FIRST_PART_BYTES else aligned_end


def part_ranges(size_bytes: int, part_bytes: int, before_bytes: int) -> Iterator[tuple[int, int]]:
    """All parts of such a file."""
    start = 0
    while start < size_bytes:
        end = known_part_end(start, size_bytes, part_bytes, before_bytes)
        yield start, end
        start = end

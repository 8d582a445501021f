"""Cuts files into parts that grow with what was read before them. Pure."""

from collections.abc import Iterator
from itertools import chain

# GETs of the first MiB of a large file, side by side, as its reader waits for it.
OPENING_PARTS = 4
# No part is more than half of the run.
_LEAST_PARTS_IN_FLIGHT = 4
# Files whose order of reading is known are cut at whole MiB, as the kernel's requests: a read across two parts is
# copied. A reader takes as much as a dozen connections bring, so a part grows by a twelfth of what lies before it.
_ALIGNMENT_BYTES = 1 << 20
_FIRST_PART_BYTES = _ALIGNMENT_BYTES // OPENING_PARTS
_GROWTH_DIVISOR = 12


def grown_part_bytes(run_bytes: int, ahead_bytes: int, parts_in_flight: int, first_bytes: int, most_bytes: int) -> int:
    """Return the size of the part that follows on a run of `run_bytes`, `ahead_bytes` of it still to be read.

    * A part further ahead is read later, so it may be larger: see `known_part_end`.
    * A growing window is a multiple of the run, and as many parts as may be in flight have to bring it. A reader that
      shares the connections with others therefore gets larger parts.
    """
    share_bytes = 2 * run_bytes // max(parts_in_flight, _LEAST_PARTS_IN_FLIGHT)
    step_bytes = max(share_bytes, first_bytes + ahead_bytes // _GROWTH_DIVISOR)
    return min(most_bytes, max(first_bytes, 1 << (step_bytes.bit_length() - 1)))


def opening_ends(first_bytes: int, most_bytes: int, parts_in_flight: int) -> list[int]:
    """Return where the parts end of a large file that is read alone from its begin, until they have `most_bytes`.

    Its window is twice the run, so two thirds of what lies before a part are still to be read when it is fetched. In
    most reads `pace` makes the window a little larger or smaller: the parts are about these.
    """
    ends = [first_bytes * number // OPENING_PARTS for number in range(1, OPENING_PARTS + 1)]
    part_bytes = first_bytes
    while part_bytes < most_bytes:
        part_bytes = grown_part_bytes(ends[-1], ends[-1] * 2 // 3, parts_in_flight, first_bytes, most_bytes)
        end = ends[-1] + part_bytes
        ends.append(end - end % part_bytes)
    return ends


def known_part_end(start: int, size_bytes: int, part_bytes: int, before_bytes: int) -> int:
    """Return where the part at `start` ends, of `part_bytes` at most, in a file read after `before_bytes` of others.

    All parts come side by side, each over a connection of its own. One that is read later may be larger by what one
    connection brings until then, so parts arrive in the order in which they are read.
    """
    step = _FIRST_PART_BYTES
    if before_bytes + start >= _ALIGNMENT_BYTES:
        step = _ALIGNMENT_BYTES + (before_bytes + start) // _GROWTH_DIVISOR
        step -= step % _ALIGNMENT_BYTES
    step = min(step, part_bytes)
    rest_bytes = size_bytes - start
    # A short rest is no GET of its own, unless the part would be larger than any.
    if rest_bytes <= part_bytes and rest_bytes < step + step // 2:
        return size_bytes
    end = min(start + step, size_bytes)
    # No fragments.
    aligned_end = end - end % _ALIGNMENT_BYTES
    return end if step % _ALIGNMENT_BYTES or aligned_end - start < _FIRST_PART_BYTES else aligned_end


def part_ranges(size_bytes: int, part_bytes: int, before_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield all parts of a file that is read after `before_bytes` of others."""
    start = 0
    while start < size_bytes:
        end = known_part_end(start, size_bytes, part_bytes, before_bytes)
        yield start, end
        start = end


def parts_around(
    offset: int, size_bytes: int, part_bytes: int, *, is_down: bool, most_ahead: int | None = None
) -> list[tuple[int, int]]:
    """Return the parts of a file from `offset` on to the end that a reader is heading for.

    They are `most_ahead` at most; without that, all of them, and then the others.
    """
    at, count = offset // part_bytes, -(-size_bytes // part_bytes)
    ahead, others = (range(at, -1, -1), range(at + 1, count)) if is_down else (range(at, count), range(at))
    numbers = chain(ahead, others) if most_ahead is None else ahead[:most_ahead]
    return [(number * part_bytes, min((number + 1) * part_bytes, size_bytes)) for number in numbers]

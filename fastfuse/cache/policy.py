"""Decide which ranges are worth their room once the tier is full. Pure.

Time is counted in bytes asked for. A segment has a *return*: how long its bytes take to be asked for again. Its place
goes to others if that is longer than anything takes to come back (nobody reads it any more), or twice as long as a
range took the last two times. One time is not enough: in epochs of random order a range comes back early by chance, and
replacing what will be read just as soon costs hits. So epochs of more than the tier holds keep a stable share of it.
"""

import numpy as np

# A segment may take so many times the long returns; those decline by an eighth of what is asked for.
_PATIENCE = 1.5
_DECLINE_DIVISOR = 8
# Longer returns are believed after some tens of them.
_BELIEF_DIVISOR = 16
# Before anything has come back: the sizes of the tier that may be asked for before its content makes room.
_FIRST_PATIENCE_SIZES = 2.5
# A range has to return so many times as fast as a segment that is still read.
_MARGIN = 2
# Ranges that are remembered: 16 MiB of memory, touched as it is used. With 39 KB files they cover 80 GB.
_SLOTS = 1 << 21
# A slot has 16 bits to tell ranges apart, 24 for a time and 24 for a return, both in units of 4 MiB.
_UNIT_BITS, _TIME_BITS, _TAG_BITS = 22, 24, 16
_LONGEST = (1 << _TIME_BITS) - 1


def is_worth_it(return_bytes: int | None, victim_bytes: int, long_bytes: int, limit_bytes: int) -> bool:
    """Return whether a range may take the place of a segment with the return `victim_bytes`.

    `return_bytes` is the range's own return (None: unknown), `long_bytes` what long returns take now (0: unknown).
    """
    if victim_bytes > (_PATIENCE * long_bytes or _FIRST_PATIENCE_SIZES * limit_bytes):
        return True
    return return_bytes is not None and victim_bytes > _MARGIN * return_bytes


class Returns:
    """Remembers when ranges were asked for, in a fixed amount of memory; newer ones overwrite older ones."""

    def __init__(self, slots: int = _SLOTS) -> None:
        self._slots = slots
        self._seen = np.zeros(slots, np.uint64).data  # its items are plain ints
        # The length of long returns.
        self.long_bytes = 0

    def ask(self, name: int, now_bytes: int, size_bytes: int) -> int | None:
        """Note that the range `name` (64 hashed bits) is asked for; return the longer of its last two returns."""
        slot, tag, now = name % self._slots, name >> (64 - _TAG_BITS), (now_bytes >> _UNIT_BITS) + 1 & _LONGEST
        seen = self._seen[slot]
        self.long_bytes = max(0, self.long_bytes - size_bytes // _DECLINE_DIVISOR)
        last = before = 0
        if seen and seen >> (2 * _TIME_BITS) == tag:
            before = seen & _LONGEST
            last = max(1, now - (seen >> _TIME_BITS) & _LONGEST)
            longer_bytes = (last << _UNIT_BITS) - self.long_bytes
            self.long_bytes += max(0, longer_bytes // _BELIEF_DIVISOR)
        self._seen[slot] = tag << (2 * _TIME_BITS) | now << _TIME_BITS | last
        return max(last, before) << _UNIT_BITS if before else None

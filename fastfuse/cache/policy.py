"""Which ranges are worth their room once the tier is full. Pure.

Time is counted in bytes asked for. A range that comes back after D bytes is worth 1/D a byte, so the one with the
shorter return is kept. A scan of more than the tier holds finds every return equally long; nothing then takes the place
of anything else, and a stable share of the scan is kept (as LIRS does; Jiang and Zhang, 2002). A range that was never
seen has no known return: it only replaces what nobody has asked for in a long time.
"""

import numpy as np

__all__ = ["Returns", "is_worth_it"]

# A replacement costs a write, and returns are measured roughly: it has to be this much better.
_MARGIN = 1.1
# The patience with a segment that nobody reads, in sizes of the tier. Epochs of so many sizes keep a stable share
# from the first one on, and a data set that nobody reads any more makes room after so much of the next one.
_PATIENCE_SIZES = 2.5
# Ranges that are remembered: 16 MiB of memory, touched as it is used. With 39 KB files they cover 80 GB.
_SLOTS = 1 << 21
_TAG_BITS = 32
_MIB_BITS = 20


def is_worth_it(return_bytes: int | None, victim_bytes: int, limit_bytes: int) -> bool:
    """Return whether a range that returns after `return_bytes` (None: unknown) may replace the victim.

    `victim_bytes` is the return that is expected of the segment that would have to go.
    """
    if return_bytes is None:
        return victim_bytes > _PATIENCE_SIZES * limit_bytes
    return victim_bytes > _MARGIN * return_bytes


class Returns:
    """Remembers when ranges were asked for last, in a fixed amount of memory; newer ones overwrite older ones."""

    def __init__(self, slots: int = _SLOTS) -> None:
        self._slots = slots
        # The upper half tells ranges of one slot apart; the lower is the time in MiB, from 1.
        self._seen = np.zeros(slots, np.uint64)

    def ask(self, name: int, now_bytes: int) -> int | None:
        """Note that the range `name` (64 hashed bits) is asked for; return the bytes asked for since the last time."""
        slot, tag = name % self._slots, name >> (64 - _TAG_BITS)
        now_mib = (now_bytes >> _MIB_BITS) + 1
        seen = int(self._seen[slot])
        self._seen[slot] = tag << _TAG_BITS | now_mib & 0xFFFFFFFF
        if not seen or seen >> _TAG_BITS != tag:
            return None
        return max(0, now_mib - (seen & 0xFFFFFFFF)) << _MIB_BITS

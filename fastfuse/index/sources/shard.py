"""``ShardedByS3Key``: the objects of a channel that one host gets. Pure.

SageMaker promises each host "approximately 1/n" of the objects and says no more. fastfuse deals them out like this:

* By count, part i of n is every n-th object from the i-th on, in the order of keys as UTF-8: ``keys[i::n]``. No part
  has more than one object more than another.
* By bytes, the objects are dealt out from the largest to the smallest (equal ones in the order of keys), each to the
  part that has the fewest bytes by then, of these to the one with the fewest objects, of these to the first. Any two
  parts differ by no more than the largest object, and the largest part is at most 4/3 of what the best division has
  (R. Graham, "Bounds on multiprocessing timing anomalies", 1969).

Objects that are dealt out anew in each epoch (`sagemaker.pipe.content`) come shuffled: then their order is the given
one instead of that of keys, by bytes they are dealt out in it, not from the largest on, and the 4/3 become 2.

In every case the parts have no object in common, have all objects together, and are the same wherever they are made.
"""

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass

from fastfuse.errors import ConfigurationError

# A part's bytes, its objects and its number are one integer, which compares as the three of them do.
_NUMBER_BITS = 32
_COUNT_BITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Part `index` of `count`, counted from 0."""

    index: int
    count: int
    # The parts have about the same number of bytes, not of objects.
    by_bytes: bool = False

    @classmethod
    def parse(cls, text: str, *, by_bytes: bool = False) -> "Shard":
        """Parse ``I/N``: part I of N, counted from 1.

        Raises:
            ConfigurationError: `text` has another form, or names a part that does not exist.
        """
        numbers = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip(), re.ASCII)
        index, count = map(int, numbers.groups()) if numbers else (0, 0)
        if not 1 <= index <= count:
            raise ConfigurationError(
                f"{text!r} is not a part of several", hint="write it as I/N: all of four are 1/4, 2/4, 3/4 and 4/4"
            )
        return cls(index=index - 1, count=count, by_bytes=by_bytes)

    def __str__(self) -> str:
        return f"part {self.index + 1}/{self.count} by {'bytes' if self.by_bytes else 'count'}"

    def positions(self, sizes_bytes: Sequence[int], *, are_shuffled: bool = False) -> Sequence[int]:
        """Return the ascending positions of the part's objects; `sizes_bytes` are in the order of keys, or shuffled."""
        if not self.by_bytes:
            return range(self.index, len(sizes_bytes), self.count)
        parts = [0] * len(sizes_bytes)
        loads = list(range(self.count))
        order: Sequence[int] = range(len(sizes_bytes))
        if not are_shuffled:
            # The sort is stable also in reverse: equal sizes stay in the order of keys.
            order = sorted(order, key=sizes_bytes.__getitem__, reverse=True)
        for position in order:
            lightest = loads[0]
            parts[position] = lightest & _NUMBER_MASK
            heapq.heapreplace(loads, lightest + (sizes_bytes[position] << _BYTES_SHIFT) + _ONE_OBJECT)
        return [position for position, part in enumerate(parts) if part == self.index]


_NUMBER_MASK = (1 << _NUMBER_BITS) - 1
_ONE_OBJECT = 1 << _NUMBER_BITS
_BYTES_SHIFT = _NUMBER_BITS + _COUNT_BITS

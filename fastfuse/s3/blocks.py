"""Allocates pieces of any length in a row of equal units by the buddy method (Knuth, TAOCP 1, 2.5). Pure.

A free block has a power of two of units and lies at a multiple of its length; it is halved until a piece fits, and
joined with its other half as soon as that is free, too. What a piece leaves of its block is free for others.
"""

from collections.abc import Iterator


class Blocks:
    """`[0, count)` in pieces of `most` units at most. Invariant: free blocks are joined as far as they can be."""

    def __init__(self, count: int, most: int) -> None:
        # The free blocks by order, the logarithm of their length. The block that became free last is at the end.
        self._free: list[dict[int, None]] = [{} for _ in range(_order(most) + 1)]
        longest = 1 << _order(most)
        for start in range((count - 1) // longest * longest, -1, -longest):
            self.give(start, min(longest, count - start))

    def take(self, length: int) -> int | None:
        """Take `length` units from the smallest block that holds them; return their start, or None if none does."""
        order = _order(length)
        found = next((larger for larger in range(order, len(self._free)) if self._free[larger]), None)
        if found is None:
            return None
        start, _ = self._free[found].popitem()
        self.give(start + length, (1 << found) - length)
        return start

    def give(self, start: int, length: int) -> None:
        """Free these units."""
        end = start + length
        while start < end:
            # The longest block that may begin here.
            order = min(
                (start & -start).bit_length() - 1 if start else end.bit_length(), (end - start).bit_length() - 1
            )
            order = min(order, len(self._free) - 1)
            self._give_block(start, order)
            start += 1 << order

    def free(self) -> Iterator[tuple[int, int]]:
        """Yield ``(start, length)`` of the free blocks: the longest first, among equals the first to become free."""
        for order in reversed(range(len(self._free))):
            for start in self._free[order]:
                yield start, 1 << order

    def _give_block(self, start: int, order: int) -> None:
        while order < len(self._free) - 1 and (start ^ 1 << order) in self._free[order]:
            del self._free[order][start ^ 1 << order]
            start &= ~(1 << order)
            order += 1
        self._free[order][start] = None


def _order(length: int) -> int:
    return (length - 1).bit_length()

"""The parts that readahead may take the place of: read in full, or fetched for a reader that has jumped away.

* spent: the kernel's page cache has it, or nobody reads its file. At most an eighth of the limit and 64 MiB, and as
  many as may be expected: a late or repeated request still finds it. Goes first.
* left: nobody has read it, and no reader is about to come to it. It stays while memory is not short, for the reader may
  come back; when one does, the part is fresh again. It gives way to whatever other files need, but to no readahead of
  its own file: a reader that jumps from place to place would fetch many times what it reads.
"""

from fastfuse.readahead.parts import Part, Shelf

__all__ = ["Spare"]

# Two parts behind for a reader with a full window, and no more than eight parts of 8 MiB. Memory that was used before
# is cheaper than new one, which has to be cleared: with half a GiB kept here, one reader took twice the CPU (0.8 and
# 1.8 to 2.6 seconds per GB).
_SPENT_DIVISOR = 8
_MAX_SPENT_BYTES = 64 << 20


class _Left(Shelf):
    """Parts that were left, counted by file."""

    __slots__ = ()

    def put(self, part: Part) -> None:
        super().put(part)
        part.file.left_bytes += part.size_bytes

    def remove(self, part: Part) -> None:
        super().remove(part)
        part.file.left_bytes -= part.size_bytes

    def check_invariants(self) -> None:
        super().check_invariants()
        for file in {part.file for part in self}:
            assert file.left_bytes == sum(part.size_bytes for part in self if part.file is file)


class Spare:
    """The books of these parts; `PartPool` alone changes them."""

    def __init__(self, limit_bytes: int, max_spent_parts: int) -> None:
        self._max_spent_bytes = min(limit_bytes // _SPENT_DIVISOR, _MAX_SPENT_BYTES)
        self._max_spent_parts = max_spent_parts
        self.spent, self.left = self.shelves = Shelf(), _Left()

    @property
    def size_bytes(self) -> int:
        """The bytes of both kinds."""
        return self.spent.size_bytes + self.left.size_bytes

    def __bool__(self) -> bool:
        return bool(self.spent or self.left)

    def pop(self) -> Part:
        """Take the next one down whose memory is wanted."""
        return (self.spent or self.left).pop()

    def put_spent(self, part: Part) -> list[Part]:
        """Put `part` among the spent ones. Return those that have to go for it, or `part` itself if it is too large."""
        allowed_bytes = self._max_spent_bytes - part.size_bytes
        gone = []
        while self.spent and (self.spent.size_bytes > allowed_bytes or len(self.spent) >= self._max_spent_parts):
            gone.append(self.spent.pop())
        if allowed_bytes < 0:
            return [*gone, part]
        self.spent.put(part)
        return gone

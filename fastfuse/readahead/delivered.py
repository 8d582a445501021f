"""What the kernel's page cache most likely has: pure, one bit per inode.

Files are opened with ``keep_cache``: what was read of one is read again without a request, for as long as the kernel
has the memory. So a file that was opened before is not fetched before a read asks for it, and an epoch that comes from
the page cache costs no GET.

The kernel does not tell what it drops; reads do, so that a file that was opened before is left to be asked for. Where
the kernel asks again for what it was given, for more files than it does not ask for, the bits mean nothing: a data set
larger than the memory, or readers past the page cache.
"""

__all__ = ["Delivered"]

# Some files later it does not matter what was before; and a few reads again, in an epoch that the page cache
# serves otherwise, are no sign.
_MAX_MISSES = 16
_MANY_MISSES = 8


class Delivered:
    """The files that were opened before. A swap of tables needs no word: inode numbers are never used again."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self._misses = 0

    def add(self, inode: int) -> bool:
        """`inode` is opened; whether it was before."""
        at, bit = inode >> 3, 1 << (inode & 7)
        bits = self._bits
        if at >= len(bits):
            bits.extend(bytes(at + 1 - len(bits) + len(bits) // 8))
        was = bits[at] & bit
        bits[at] |= bit
        return bool(was)

    def has(self, inode: int) -> bool:
        """Whether the kernel most likely has what readers want of `inode`."""
        at = inode >> 3
        return at < len(self._bits) and bool(self._bits[at] & (1 << (inode & 7))) and self._misses < _MANY_MISSES

    def missed(self) -> None:
        """The kernel asked for the beginning of a file that had been opened before."""
        self._misses = min(self._misses + 1, _MAX_MISSES)

    def kept(self) -> None:
        """A file that had been opened before was opened and closed, and the kernel asked for nothing."""
        self._misses = max(self._misses - 1, 0)

"""Small files that threads fetch ahead and answer by themselves, as far as the engine has to know of them."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """Calls to whoever fetches small files ahead, and answers their reads; by default there is nobody.

    `ReadEngine.was_read_ahead` hears of the reads, `got_ahead` and `lost_ahead` of what was fetched or could not be.
    """

    # Returns the size in bytes of a file that could be fetched now, or 0.
    size_of: Callable[[int], int] = lambda _inode: 0
    # Returns whether such a file is kept on a local disk, from which its reader has it as fast without being fetched.
    is_near: Callable[[int], bool] = lambda _inode: False
    # Begins to fetch a file of that size, for which there is memory, and keeps it until it is read; returns whether.
    fetch: Callable[[int, int], bool] = lambda _inode, _size_bytes: False
    # Keeps nothing of a file; returns whether it was kept. Nothing of any is kept after a refresh.
    drop: Callable[[int], bool] = lambda _inode: False
    # Keeps at most so many bytes of files that are begun: nobody may want the rest.
    bound_begun: Callable[[int], None] = lambda _size_bytes: None
    # Returns how many files are kept or on their way, and the bytes of memory that they take.
    held: Callable[[], tuple[int, int]] = lambda: (0, 0)


class SmallFiles:
    """Keeps the books of what threads fetch ahead. Files that no order names are guesses, as in the pool."""

    def __init__(self) -> None:
        self.threads = Threads()
        # The sizes of the guesses, oldest first, and all of them.
        self._guesses: dict[int, int] = {}
        self._guessed_bytes = 0

    def fetch(self, inode: int, size_bytes: int, *, is_guess: bool) -> bool:
        """Begin to fetch a file, for which there is memory; return whether that is so."""
        is_begun = False
        with suppress(MemoryError):
            is_begun = self.threads.fetch(inode, size_bytes)
        if is_begun and is_guess:
            self._guesses[inode] = size_bytes
            self._guessed_bytes += size_bytes
        return is_begun

    def adopt(self, inode: int) -> int:
        """Turn a guess into a file that an order expects. Return its bytes, 0 if it was no guess."""
        size_bytes = self._guesses.pop(inode, 0)
        self._guessed_bytes -= size_bytes
        return size_bytes

    def drop(self, inode: int) -> bool:
        """Keep nothing of a file. Return whether it was kept."""
        self.adopt(inode)
        return self.threads.drop(inode)

    def drop_guess(self) -> bool:
        """Drop the newest guess. Return whether there was one."""
        while self._guesses:
            if self.drop(next(reversed(self._guesses))):
                return True
        return False

    def refreshed(self) -> None:
        """Note that threads have dropped all, because there is another table."""
        self._guesses.clear()
        self._guessed_bytes = 0

    @property
    def guesses(self) -> list[int]:
        """The guesses, oldest first."""
        return list(self._guesses)

    def held(self, *, with_guesses: bool = True) -> tuple[int, int]:
        """Return how many files are kept or on their way, and their bytes."""
        files, size_bytes = self.threads.held()
        return (files, size_bytes) if with_guesses else (files - len(self._guesses), size_bytes - self._guessed_bytes)

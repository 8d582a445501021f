"""Parts that may be evicted, by what they are worth. `PartPool` alone changes these books.

* spent: read in full, so that the kernel's page cache has it, or what else came with a read at random, or of a file
  that nobody reads. Goes first; a late or repeated request still finds it.
* left: read ahead for a reader that has jumped away or goes backwards, or the rest of a file that is read at random. It
  stays while memory is not short, and is fresh again if a reader is about to come to it. It gives way to other files,
  but not to readahead of its own file: a reader that jumps from place to place would fetch many times what it reads.
  The parts that readers have passed, in strides or with small gaps, are spent once memory is short (`Stream`).
* guessed: of a file that is begun some time, as every file is. It takes only free room, and once it has landed gives
  it to known files. An order that comes to it adopts it. After a refresh of the table all expected files are guesses.
* known: of a file that an order names, kept until it is begun or the order drops it.

The pool has a shelf for each of the first two, and one for the fresh parts; `Expected` has the others.
INVARIANT: known, guessed, what is in flight for them, and what threads keep (`SmallFiles`) take at most a quarter of
the limit, and `max_parts` parts.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from fastfuse.readahead.parts import FileParts, Part, Shelf

# A quarter of the limit; and so few parts that what a file and its part take as Python objects (2 kB) does not count.
_EXPECTED_DIVISOR = 4
_MAX_PARTS = 16 << 10
_BYTES_PER_PART = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """Calls to whoever reads small files and fetches them ahead; by default there is nobody.

    `ReadEngine.note_read_ahead` hears of the reads, `got_ahead` and `lost_ahead` of what was fetched or could not be.
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
    # Leaves a file to the engine.
    claim: Callable[[int], None] = lambda _inode: None
    # Lets threads read it again.
    release: Callable[[int], None] = lambda _inode: None
    # Returns whether threads read it, or have read it and not told yet.
    is_read: Callable[[int], bool] = lambda _inode: False
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


class Expected:
    """The parts of files that are not begun yet, but will be."""

    def __init__(self, limit_bytes: int) -> None:
        self.max_bytes = limit_bytes // _EXPECTED_DIVISOR
        self.max_parts = min(_MAX_PARTS, limit_bytes // _BYTES_PER_PART)
        self.known, self.guessed = self.shelves = Shelf(), Shelf()
        # Both ranks: a GET that runs cannot give way.
        self.in_flight = self.in_flight_bytes = 0
        # Those that threads keep.
        self.small_files = SmallFiles()

    def __len__(self) -> int:
        return len(self.known) + len(self.guessed)

    @property
    def size_bytes(self) -> int:
        """The bytes held, of both ranks."""
        return self.known.size_bytes + self.guessed.size_bytes

    @property
    def has_place(self) -> bool:
        """True if one more file may be expected, if need be in the place of a guess that has landed."""
        return len(self.known) + self.in_flight < self.max_parts

    def has_room(self, size_bytes: int, *, is_guess: bool) -> bool:
        """Return whether `size_bytes` fit: a guess beside all others, a known file if need be in place of guesses."""
        files, held_bytes = self.held(with_guesses=is_guess)
        is_place = files + self.in_flight < self.max_parts
        return is_place and held_bytes + self.in_flight_bytes + size_bytes <= self.max_bytes

    def held(self, *, with_guesses: bool = True) -> tuple[int, int]:
        """Return how many files are held, and their bytes, with those that threads keep."""
        held, (files, small_bytes) = (
            self if with_guesses else self.known,
            self.small_files.held(with_guesses=with_guesses),
        )
        return len(held) + files, held.size_bytes + small_bytes

    def pop(self) -> Part:
        """Take down the part that goes first, for a reader that waits for the memory."""
        return (self.guessed or self.known).pop()

    def put(self, part: Part) -> None:
        """Hold `part`, which has landed before its file was begun."""
        (self.guessed if part.file.is_guess else self.known).put(part)

    def take(self, file: FileParts) -> list[Part]:
        """Take down what is held of `file`, which is no longer expected."""
        file.is_expected = file.is_guess = False
        parts = [part for part in file if part.shelf in self.shelves]
        for part in parts:
            if part.shelf is not None:
                part.shelf.remove(part)
        return parts

    def rank(self, file: FileParts, *, is_guess: bool) -> None:
        """Move `file` to the other rank."""
        parts = self.take(file)
        file.is_expected, file.is_guess = True, is_guess
        for part in parts:
            self.put(part)


class LeftShelf(Shelf):
    """Parts that were left, counted by file."""

    def put(self, part: Part) -> None:
        super().put(part)
        part.file.left_bytes += part.size_bytes

    def remove(self, part: Part) -> None:
        super().remove(part)
        part.file.left_bytes -= part.size_bytes

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

from fastfuse.readahead.parts import FileParts, Part, Shelf
from fastfuse.readahead.small_files import SmallFiles

# A quarter of the limit; and so few parts that what a file and its part take as Python objects (2 kB) does not count.
_EXPECTED_DIVISOR = 4
_MAX_PARTS = 16 << 10
_BYTES_PER_PART = 64 << 10


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

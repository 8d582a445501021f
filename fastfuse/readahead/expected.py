"""The files that are not open yet, but will be: within a quarter of the memory, and of two ranks.

* known: an order says that the file comes. It is kept until it is opened, or the order gives it up.
* guessed: it is opened some time, as every file is. A guess takes only room that is free, and from when it has landed
  gives it to files of known orders; an order that comes to it adopts it. After a swap of tables all are guesses.

INVARIANT: known + guessed + in flight are at most a quarter of the limit, and at most `max_parts`.
"""

from fastfuse.readahead.parts import FileParts, Part, Shelf

__all__ = ["Expected"]

# A quarter of the limit, 64 files of 4 MiB; and so many parts, as each takes 2 kB, its file's books included, that the
# limit does not count.
_DIVISOR = 4
_MAX_PARTS = 16 << 10
_BYTES_PER_PART = 64 << 10


class Expected:
    """The books of these files; `PartPool` alone changes them."""

    def __init__(self, limit_bytes: int) -> None:
        self.max_bytes = limit_bytes // _DIVISOR
        # One for each 64 KiB of the limit at most: the uncounted 2 kB are 3 % of it.
        self.max_parts = min(_MAX_PARTS, limit_bytes // _BYTES_PER_PART)
        self.known, self.guessed = self.shelves = Shelf(), Shelf()
        # Of both ranks: a GET that runs cannot give way.
        self.in_flight = self.in_flight_bytes = 0

    def __len__(self) -> int:
        return len(self.known) + len(self.guessed)

    @property
    def size_bytes(self) -> int:
        """What is held, of both ranks."""
        return self.known.size_bytes + self.guessed.size_bytes

    @property
    def has_place(self) -> bool:
        """Whether there are fewer files than may be, the guesses that have landed not counted."""
        return len(self.known) + self.in_flight < self.max_parts

    def has_room(self, size_bytes: int, *, is_guess: bool) -> bool:
        """Whether so much fits: of a guess beside all others, of a known file if need be in the place of guesses."""
        held = self if is_guess else self.known
        is_place = len(held) + self.in_flight < self.max_parts
        return is_place and held.size_bytes + self.in_flight_bytes + size_bytes <= self.max_bytes

    def count_flight(self, part: Part, step: int) -> None:
        """One fetch more or less (`step` 1 or -1)."""
        self.in_flight += step
        self.in_flight_bytes += step * part.size_bytes

    def pop(self) -> Part:
        """Take one down for who waits for the memory."""
        return (self.guessed or self.known).pop()

    def put(self, part: Part) -> None:
        """`part` has landed, and nobody has opened its file."""
        (self.guessed if part.file.is_guess else self.known).put(part)

    def take(self, file: FileParts) -> list[Part]:
        """Take down what is held of `file`."""
        parts = [part for part in file if part.shelf is self.known or part.shelf is self.guessed]
        for part in parts:
            if part.shelf is not None:
                part.shelf.remove(part)
        return parts

    def rank(self, file: FileParts, *, is_guess: bool) -> None:
        """`file` is of the other rank from now on."""
        parts = self.take(file)
        file.is_guess = is_guess
        for part in parts:
            self.put(part)

    def check_invariants(self) -> None:
        """For tests."""
        assert self.size_bytes + self.in_flight_bytes <= self.max_bytes
        assert len(self) + self.in_flight <= self.max_parts
        for shelf, is_guess in ((self.known, False), (self.guessed, True)):
            assert all(part.file.is_expected and not part.file.is_open for part in shelf)
            assert all(part.file.is_guess == is_guess for part in shelf)

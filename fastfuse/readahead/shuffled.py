"""Which files to fetch for readers in an order that nobody knows, where every file is read: pure decisions, no clock.

An epoch over shuffled files gives no sign of which comes next; but all come, and so a file that is fetched now is
opened sooner or later. What is held is found there the more often the less is left: of files that fit in the memory for
these, the latter half of an epoch waits for next to none.

`ShuffledEpoch.opened` takes the events, `next` gives the commands: both are rows of the table. The rows are passed
through from the first to the last, a few for each file that a reader had to wait for or found here. So a script that
reads a hundred files of a channel has caused a few hundred GETs, and one that reads them in an order that is known
(`listed`, `announced`) causes none.

How many are held is the pool's to say: it gives them up for everything else. Where fewer than half of those that were
fetched in a pass were found in it, not every file is read, or there is no memory to spare: that was the last one.
"""

__all__ = ["ShuffledEpoch"]

# Rows looked at per open. Of readers that wait 30 ms for a file, 16 open 500 a second; four times that, beside their
# own GETs, are about what one mount can fetch. So much is the most that can be wasted, too.
_LOOKS_PER_OPEN = 4
# Of more files than so many times those that can be held, too few would be found: it is not begun.
_WORTH_TIMES_HELD = 8
# The first files of an epoch are taken to be in the page cache still, and are not counted then: a file that is read
# again when all but so few have been is of the next epoch.
_UNCOUNTED_DIVISOR = 16


class ShuffledEpoch:
    """The files of a table of `row_count` rows, of which the pool holds `max_held_files` at most."""

    def __init__(self, row_count: int, max_held_files: int) -> None:
        self._row_count = row_count if row_count <= _WORTH_TIMES_HELD * max_held_files else 0
        self._max_looks = max_held_files
        self._begin_pass()

    def _begin_pass(self) -> None:
        # The next row to look at, and how many may be looked at now.
        self._row = self._looks = 0
        # Which rows were opened in this pass, and the opens that tell when it is over.
        self._opened = bytearray(self._row_count)
        self._opens = 0
        self._taken = self._found = 0

    def opened(self, row: int, *, is_found: bool, is_missed: bool) -> bool:
        """A small file was opened; whether this ends all guesses: what is held of them is for nobody.

        `is_found`: it was guessed. `is_missed`: it is neither here nor in the page cache, as far as anybody knows.
        """
        if not self._row_count:
            return False
        is_read = is_found or is_missed
        if is_read and self._is_over(row) and self._end_pass():
            return True
        # What the page cache serves again is a file that is opened twice, not another epoch.
        self._opens += is_read or not self._opened[row]
        self._opened[row] = True
        self._found += is_found
        if is_read:
            self._looks = min(self._looks + _LOOKS_PER_OPEN, self._max_looks)
        return False

    def adopted(self) -> None:
        """A file that was guessed is one that an order has come to."""
        self._found += 1

    def next(self) -> int | None:
        """The next row to fetch, the same until `taken` or `passed_over`; None while enough is ahead."""
        while self._looks and self._row < self._row_count:
            if not self._opened[self._row]:
                return self._row
            self.passed_over()
        return None

    def taken(self) -> None:
        """The row that `next` gave is on its way."""
        self._taken += 1
        self.passed_over()

    def passed_over(self) -> None:
        """The row that `next` gave is held, was read, or is not worth fetching."""
        self._row += 1
        self._looks -= 1

    def _is_over(self, row: int) -> bool:
        """Whether who reads `row` is in another epoch."""
        uncounted = self._row_count // _UNCOUNTED_DIVISOR if self._opened[row] else 0
        return self._opens + uncounted >= self._row_count

    def _end_pass(self) -> bool:
        """Another epoch begins, and the page cache has not kept what was read in this one; whether it is the last."""
        is_wrong = 2 * self._found < self._taken
        if is_wrong:
            self._row_count = 0
        self._begin_pass()
        return is_wrong

"""Which files to fetch for readers in an order that nobody knows, where every file is read: pure decisions, no clock.

An epoch over shuffled files gives no sign of which comes next; but all come, and so a file that is fetched now is
opened sooner or later. What is held is found there the more often the less is left: of files that fit in the memory for
these, the latter half of an epoch waits for next to none.

`ShuffledEpoch.opened` takes the events, `next` gives the commands: both are rows of the table. The rows are passed
through from the first to the last, a few for each file that a reader had to wait for or found here. So a script that
reads a hundred files of a channel has caused a few hundred GETs, and one that reads them in an order that is known
(`listed`, `announced`) causes none.
"""

from collections.abc import Sequence

__all__ = ["ShuffledEpoch"]

# Rows looked at per open. Of readers that wait 30 ms for a file, 16 open 500 a second; four times that, beside their
# own GETs, are about what one mount can fetch. So much is the most that can be wasted, too.
_LOOKS_PER_OPEN = 4
# Of more files than so many times those that can be held, too few would be found: it is not begun.
_WORTH_TIMES_HELD = 8


class ShuffledEpoch:
    """The files of a table of `row_count` rows, of which `max_ahead_files` are held at most."""

    def __init__(self, row_count: int, max_ahead_files: int) -> None:
        self._row_count = row_count if row_count <= _WORTH_TIMES_HELD * max_ahead_files else 0
        self._max_ahead_files = max_ahead_files
        # The next row to look at, and the looks and opens of this pass.
        self._row = 0
        self._looks = 0
        self._opens = 0
        # Fetched for readers who have not come yet, oldest first.
        self._ahead: dict[int, None] = {}

    def opened(self, row: int, *, is_missed: bool) -> None:
        """A small file was opened; `is_missed`: it is neither here nor in the page cache, as far as anybody knows."""
        self._opens += 1
        is_found = row in self._ahead
        if is_found:
            del self._ahead[row]
        if is_found or is_missed:
            if self._row == self._row_count and self._opens > self._row_count:
                # Another epoch, and the page cache has not kept what was read in this one.
                self._row = self._opens = self._looks = 0
            self._looks += _LOOKS_PER_OPEN

    def next(self) -> int | None:
        """The next row to fetch, the same until `taken` or `passed_over`; None while enough is ahead."""
        is_enough = not self._looks or len(self._ahead) >= self._max_ahead_files or self._row == self._row_count
        return None if is_enough else self._row

    def taken(self) -> None:
        """The row that `next` gave is on its way."""
        self._ahead[self._row] = None
        self.passed_over()

    def passed_over(self) -> None:
        """The row that `next` gave is held, was read, or is not worth fetching."""
        self._row += 1
        self._looks -= 1

    def give_way(self) -> Sequence[int]:
        """An order that is known lacks memory: a row that was taken, none if nothing is held."""
        row = next(iter(self._ahead), None)
        if row is None:
            return ()
        del self._ahead[row]
        return (row,)

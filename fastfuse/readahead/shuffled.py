"""Decides which files to fetch for readers in an unknown order, where every file is read: pure, no clock.

Nothing shows which file of a shuffled epoch comes next, but all come, so a file that is fetched now is begun sooner or
later. The rows of the table are passed through from the first to the last, a few for each file that a reader waited
for or found here. A script that reads a hundred files has thus caused a few hundred GETs, and one that reads in a
known order (`listed`, `announced`) none.

The pool says how many files are held, and gives them up for everything else. If fewer than half of those fetched in a
pass were found, not every file is read or no memory is spare: there is no other pass.
"""

# Rows looked at for each file begun: what 16 readers cause with their own GETs and these is what one mount can fetch.
_LOOKS_PER_FILE = 4
# No pass begins over more than this many times the files that can be held: too few would be found.
_WORTH_TIMES_HELD = 8
# The page cache may still have the first files of an epoch, which are not counted then. A file that is read again when
# all but this part were read is therefore in the next epoch.
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
        # The rows that were begun in this pass, and the number of files begun that tells when it is over.
        self._begun_rows = bytearray(self._row_count)
        self._begun_files = 0
        self._fetched = self._found = 0

    def begun(self, row: int, *, is_found: bool, is_missed: bool) -> bool:
        """Note that a small file was begun. Return whether this ends the last pass; what is held then is for nobody.

        `is_found`: it was guessed. `is_missed`: it is neither here nor, as far as known, in the page cache.
        """
        if not self._row_count:
            return False
        is_read = is_found or is_missed
        if is_read and self._is_over(row) and self._end_pass():
            return True
        # A file begun again that was here, and so neither found nor missed, is no sign of another epoch.
        self._begun_files += is_read or not self._begun_rows[row]
        self._begun_rows[row] = True
        self._found += is_found
        if is_read:
            self._looks = min(self._looks + _LOOKS_PER_FILE, self._max_looks)
        return False

    def adopted(self) -> None:
        """Count a guess as found, because an order has come to it."""
        self._found += 1

    def next(self) -> int | None:
        """Return the next row to fetch, the same until `advance`; None while enough is ahead."""
        while self._looks and self._row < self._row_count:
            if not self._begun_rows[self._row]:
                return self._row
            self.advance(0)
        return None

    def advance(self, fetched_bytes: int) -> None:
        """Go on behind the row that `next` gave: `fetched_bytes` are on their way, or 0 if it was passed over."""
        self._fetched += fetched_bytes > 0
        self._row += 1
        self._looks -= 1

    def _is_over(self, row: int) -> bool:
        """Return whether the reader of `row` is in another epoch."""
        uncounted = self._row_count // _UNCOUNTED_DIVISOR if self._begun_rows[row] else 0
        return self._begun_files + uncounted >= self._row_count

    def _end_pass(self) -> bool:
        """Begin another pass: the page cache has not kept what was read in this one. Return whether there is none."""
        is_last = 2 * self._found < self._fetched
        if is_last:
            self._row_count = 0
        self._begin_pass()
        return is_last

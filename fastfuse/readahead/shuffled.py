"""Decides which files are fetched for readers in no known order. Pure: no clock, no I/O."""

from math import inf
from posixpath import splitext

# Rows looked at for each file begun: what 16 readers cause with their own GETs and these is what one mount can fetch.
_LOOKS_PER_FILE = 4
# No pass begins over more than this many times the files that can be held: too few would be found.
_WORTH_TIMES_HELD = 8
# The page cache may still have the first files of an epoch, which are not counted then. A file that is read again when
# all but this part were read is therefore in the next epoch.
_UNCOUNTED_DIVISOR = 16
# Where nobody has said that every file is read, so many files of a set have to be begun far behind its last one, and
# this part of it: whoever reads a tenth at random causes nothing. See MEASUREMENTS.md.
_LEAST_SCATTERED_FILES = 16
_SCATTERED_DIVISOR = 10
# Readers in order that are this part of the set apart are taken for random ones.
_NEAR_DIVISOR = 4
_DIGITS = b"0123456789"


class ShuffledEpoch:
    """The files of a table of `row_count` rows that are read in an unknown order: all, or a set of neighbours.

    Nothing shows which file of a shuffled epoch comes next, but all come, so a file that is fetched now is begun sooner
    or later. The rows are passed through from the first to the last, a few for each file that a reader waited for or
    found here. A script that reads a hundred files has thus caused a few hundred GETs, and one that reads in a known
    order none. Files of whose suffix none was begun are left out: who reads pictures may not want the texts beside.

    If this `is_expected`, the set is the table. Otherwise it is what lies between the first and the last row that were
    begun, once readers have begun some of it at random. They may stop, so no more bytes are fetched and not found than
    were begun.

    The pool holds `max_held_files` at most, and gives them up for everything else. If fewer than half of those fetched
    in a pass were found, not every file is read or no memory is spare: there is no other pass.
    """

    def __init__(self, row_count: int, max_held_files: int, *, is_expected: bool) -> None:
        self._row_count = row_count if row_count <= _WORTH_TIMES_HELD * max_held_files else 0
        self._max_looks = max_held_files
        self._is_expected = is_expected
        self._begin_pass()

    def _begin_pass(self) -> None:
        # The next row to look at, and how many may be looked at now.
        self._row = self._looks = 0
        # The rows that were begun in this pass, and the number of files begun that tells when it is over.
        self._begun_rows = bytearray(self._row_count)
        self._begun_files = 0
        self._fetched = self._found = 0
        # The first and the last row of the set, and how many of it were begun far behind its last one.
        last_row = self._row_count - 1
        self._first_row, self._last_row = (0, last_row) if self._is_expected else (last_row, 0)
        self._scattered_files = 0
        # The suffixes of files that were begun.
        self._suffixes = set[bytes]()
        # This many bytes may be fetched now.
        self._spare_bytes: float = inf if self._is_expected else 0

    @property
    def is_over(self) -> bool:
        """True if nothing is fetched any more: there are too many files, or most were fetched in vain."""
        return not self._row_count

    def begun(self, row: int, file: tuple[bytes, int] | None, *, is_found: bool, is_missed: bool) -> bool:
        """Note that a small file was begun. Return whether this ends the last pass; what is held then is for nobody.

        `is_found`: it was guessed. `is_missed`: it is neither here nor, as far as known, in the page cache. `file` is
        its name and size in bytes, if what was begun is to cause something.
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
        if is_read and file is not None:
            name, size_bytes = file
            self._suffixes.add(_suffix(name))
            self._spare_bytes += size_bytes * (1 + is_found)
            if self._is_set_read(row):
                self._row = max(self._row, self._first_row)
                self._looks = min(self._looks + _LOOKS_PER_FILE, self._max_looks)
        return False

    def expects(self, name: bytes) -> bool:
        """Return whether the file that `next` gave is read as well, as far as its name tells."""
        return _suffix(name) in self._suffixes

    def adopted(self, size_bytes: int) -> None:
        """Count a guess as found, because an order has come to it."""
        self._found += 1
        self._spare_bytes += size_bytes

    def next(self) -> int | None:
        """Return the next row to fetch, the same until `advance`; None while enough is ahead."""
        while self._looks and self._row <= self._last_row and self._spare_bytes > 0:
            if not self._begun_rows[self._row]:
                return self._row
            self.advance(0)
        return None

    def advance(self, fetched_bytes: int) -> None:
        """Go on behind the row that `next` gave: `fetched_bytes` are on their way, or 0 if it was passed over."""
        self._fetched += fetched_bytes > 0
        self._spare_bytes -= fetched_bytes
        self._row += 1
        self._looks -= 1

    def _is_set_read(self, row: int) -> bool:
        """Note that `row` belongs to the set. Return whether all of it is most likely read."""
        self._first_row, self._last_row = min(self._first_row, row), max(self._last_row, row)
        rows = self._last_row - self._first_row + 1
        self._scattered_files += row < self._last_row - rows // _NEAR_DIVISOR
        least_files = max(_LEAST_SCATTERED_FILES, rows // _SCATTERED_DIVISOR)
        return self._is_expected or self._scattered_files >= least_files

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


def _suffix(name: bytes) -> bytes:
    """Return the suffix of a name, without digits: they may count files."""
    return splitext(name)[1].translate(None, _DIGITS)

"""Decides which files come next for readers in the order of the listing: pure, no clock, no I/O.

Files are rows of the table, where the files of a directory follow one another by name, and the files of the next
directory follow on.

A *run* is rows that were begun without a gap, ``[begin, position)``, in whatever order. A file begun

* at some run's position extends that run, and joins it with the run that begins where it now ends;
* anywhere else begins a new run.

Several readers that share an order and begin files in batches, or a little out of turn, thus make runs that grow
together. A run of a few rows is an order, not chance, and a window is kept ahead of it that grows with the run. Random
readers make runs of one row.
"""

from collections import deque
from collections.abc import Sequence

# Files that belong together (a picture and its label) are read in turn by random readers too, and three by chance.
_RUN_FILES = 4
# Few large files are read ahead. A reader that begins the first of all before any other most likely goes on with the
# second.
_FOLLOWED_FILES = 2
# Files ahead per file begun: a reader that stops early has wasted at most twice what it read.
_GROWTH = 2
# Files ahead of a run at most: 16 workers, each in a batch of 32 files, are so far apart. The pool bounds the bytes.
_MAX_AHEAD_FILES = 512
# Runs that are told apart: workers, or as many files that random readers began last. There are more than the least in a
# large table only, where rows that were begun at random hardly ever join.
_LEAST_RUNS, _MAX_RUNS = 64, 256  # see MEASUREMENTS.md
_MAX_LEFT_RUNS = 64
# Files begun elsewhere before a run has ended, or is slow enough to give way to others.
_PATIENCE_FILES = _MAX_AHEAD_FILES // 2


class _Run:
    """Invariants: ``begin < position``; every row of ``[begin, position)`` was begun."""

    __slots__ = ("ahead_until", "begin", "position", "touched_at")

    def __init__(self, row: int) -> None:
        self.begin = row
        self.position = row + 1
        # Rows from `position` on and below were commanded, or begun.
        self.ahead_until = row + 1
        # The number of files begun when it was extended last.
        self.touched_at = 0

    @property
    def files(self) -> int:
        return self.position - self.begin

    @property
    def ahead(self) -> range:
        """Rows that were commanded and are not begun yet."""
        return range(self.position, self.ahead_until)


class ListingOrder:
    """The runs in a table of `row_count` rows. Bounded, however many files are begun."""

    def __init__(self, row_count: int, first_file_row: int = 0) -> None:
        """Begin with no runs; `first_file_row` is behind the directories that the table begins with."""
        self._row_count = row_count
        self._first_file_row = first_file_row
        self._max_runs = min(max(row_count // _MAX_AHEAD_FILES, _LEAST_RUNS), _MAX_RUNS)
        # By position, least recently extended first.
        self._runs: dict[int, _Run] = {}
        self._begins: dict[int, _Run] = {}
        # Runs that may want more ahead, in their turn.
        self._hungry: dict[_Run, None] = {}
        self._begun_files = 0
        # The rows ahead of runs that ended: they may still be begun, above all where there are few files.
        self._left: deque[range] = deque()
        # How long the last run was that ended: the next may be as long, as with samples of six files each.
        self._usual_files = 0

    def begun(self, row: int) -> Sequence[int]:
        """Note that a file was begun. Return rows that were commanded and are no longer expected."""
        self._begun_files += 1
        run = self._runs.pop(row, None)
        dropped: Sequence[int] = ()
        if run is None:
            if len(self._runs) >= self._max_runs:
                dropped = self._leave(self._forget(next(iter(self._runs.values()))))
            run = self._begins[row] = _Run(row)
        else:
            run.position = row + 1
        run = self._join(run)
        run.touched_at = self._begun_files
        self._runs[run.position] = run
        if run.files >= _RUN_FILES:
            self._hungry[run] = None
        return dropped

    def followers(self, row: int) -> range:
        """Return the rows that follow on the run that ends with `row`; none if there is no such run."""
        run = self._runs.get(row + 1)
        if run is None:
            return range(0)
        is_beginning = run.begin == self._first_file_row and run.files == self._begun_files
        return range(row + 1, self._row_count) if is_beginning or run.files >= _FOLLOWED_FILES else range(0)

    def next(self) -> int | None:
        """Return the next row to fetch, the runs in turn; the same until `advance` or `begun`.

        A run that gives way gets no more, so `give_way` in between takes no run whose row this is.
        """
        while self._hungry:
            run = next(iter(self._hungry))
            row = max(run.position, run.ahead_until)
            while (other := self._begins.get(row)) is not None:
                row = other.position
            if row < self._end_ahead(run) and not self._gives_way(run):
                run.ahead_until = row
                return row
            del self._hungry[run]
        return None

    def advance(self, _fetched_bytes: int) -> None:
        """Go on behind the row that `next` gave, which is held, on its way, or not worth fetching."""
        run = next(iter(self._hungry))
        run.ahead_until += 1
        if len(self._hungry) > 1:
            del self._hungry[run]
            self._hungry[run] = None

    def give_way(self) -> Sequence[int]:
        """Return rows that were commanded for a run that has ended, for another order that lacks memory."""
        if self._left:
            return self._left.popleft()
        while self._runs:
            run = next(iter(self._runs.values()))
            if not self._gives_way(run):
                break
            del self._runs[run.position]
            dropped = self._forget(run)
            if dropped:
                return dropped
        return ()

    def _gives_way(self, run: _Run) -> bool:
        return self._begun_files - run.touched_at >= _PATIENCE_FILES

    def _end_ahead(self, run: _Run) -> int:
        end = run.position + min(_GROWTH * run.files, _MAX_AHEAD_FILES)
        if run.files <= self._usual_files:
            end = min(end, run.begin + self._usual_files)
        return min(end, self._row_count)

    def _join(self, run: _Run) -> _Run:
        """Join `run`, which was extended, with the runs that begin or end there. Return the one that stays."""
        while (other := self._begins.get(run.position)) is not None:
            run.position = other.position
            self._take_in(run, other)
        twin = self._runs.get(run.position)
        if twin is None:
            return run
        longer, shorter = (run, twin) if run.files > twin.files else (twin, run)
        self._take_in(longer, shorter)
        return longer

    def _take_in(self, run: _Run, other: _Run) -> None:
        run.ahead_until = max(run.ahead_until, other.ahead_until)
        self._remove(other)

    def _leave(self, ahead: range) -> Sequence[int]:
        """Remember what is ahead of a run that has ended. Return what is forgotten for it."""
        if not ahead:
            return ()
        self._left.append(ahead)
        return self._left.popleft() if len(self._left) > _MAX_LEFT_RUNS else ()

    def _forget(self, run: _Run) -> range:
        self._remove(run)
        if run.files >= _RUN_FILES:
            self._usual_files = run.files
        return run.ahead

    def _remove(self, run: _Run) -> None:
        if self._runs.get(run.position) is run:
            del self._runs[run.position]
        if self._begins.get(run.begin) is run:
            del self._begins[run.begin]
        self._hungry.pop(run, None)

"""Which files come next for readers that open them in the order of the listing: pure decisions, no clock, no I/O.

`ListingOrder.opened` takes the events, `next` gives the commands: both are rows of the table, where the files of a
directory follow one another by name, and the files of the next directory follow on.

A *run* is rows that were opened without a gap, ``[begin, position)``, in whatever order. An open

* at some run's position extends that run, and joins it with the run that begins where it now ends;
* anywhere else begins a new run.

So several readers that share an order, and open files in batches or a little out of turn, make runs that grow together.
A run of a few rows is an order, not chance, and then a window is kept ahead of it that grows with the run. Readers at
random make runs of one row: one in a thousand of their files follows another one only where there are few files.
"""

from collections import deque
from collections.abc import Sequence

__all__ = ["ListingOrder"]

# Two files that belong together (a picture and its label) are read in turn by readers at random as well, and three by
# chance in a directory of a hundred.
_RUN_FILES = 4
# Of large files there are few, and no more than one is read ahead: of shards in any order, one in as many as there are.
_FOLLOWED_FILES = 2
# Files ahead per file opened, as in `window`: four round trips from a window of hundreds, and who stops early has
# wasted at most twice what it read.
_GROWTH = 2
# At most so many files ahead of a run: beyond what the batches of 16 workers, of 32 files each, are apart. In bytes the
# pool bounds them.
_MAX_AHEAD_FILES = 512
# Runs that are told apart: 64 workers, or as many files that random readers have opened last.
_MAX_RUNS = 64
# A run that is not extended while so many files are opened has ended, or is slow enough to give way to others.
_PATIENCE_OPENS = 256


class _Run:
    """Invariants: ``begin < position``; every row of ``[begin, position)`` was opened."""

    __slots__ = ("ahead_until", "begin", "position", "touched_at")

    def __init__(self, row: int) -> None:
        self.begin = row
        self.position = row + 1
        # Rows from `position` on and below were commanded, or opened.
        self.ahead_until = row + 1
        # On the clock of opens.
        self.touched_at = 0

    @property
    def files(self) -> int:
        return self.position - self.begin

    @property
    def ahead(self) -> range:
        """Rows that were commanded and are not opened yet."""
        return range(self.position, self.ahead_until)


class ListingOrder:
    """The runs in a table of `row_count` rows. Bounded, however many files are opened."""

    def __init__(self, row_count: int) -> None:
        self._row_count = row_count
        # By position, least recently extended first.
        self._runs: dict[int, _Run] = {}
        self._begins: dict[int, _Run] = {}
        # Runs that may want more ahead, in their turn.
        self._hungry: dict[_Run, None] = {}
        self._opens = 0
        # What was ahead of runs that ended: it may be opened yet, above all where there are few files.
        self._left: deque[range] = deque()
        # How long the last run was that ended: the next may be as long (samples of six files each, in any order).
        self._usual_files = 0

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """``[begin, position)`` of each run, least recently extended first."""
        return tuple((run.begin, run.position) for run in self._runs.values())

    def opened(self, row: int) -> Sequence[int]:
        """A file was opened. Rows that were commanded and are not expected any more, mostly none."""
        self._opens += 1
        run = self._runs.pop(row, None)
        dropped: Sequence[int] = ()
        if run is None:
            if len(self._runs) >= _MAX_RUNS:
                dropped = self._leave(self._forget(next(iter(self._runs.values()))))
            run = self._begins[row] = _Run(row)
        else:
            run.position = row + 1
        run = self._join(run)
        run.touched_at = self._opens
        self._runs[run.position] = run
        if run.files >= _RUN_FILES:
            self._hungry[run] = None
        return dropped

    def followers(self, row: int) -> range:
        """The rows that are opened next by who has opened `row` and those before it, one by one; none if nobody has."""
        run = self._runs.get(row + 1)
        is_run = run is not None and run.files >= _FOLLOWED_FILES
        return range(row + 1, self._row_count if is_run else row + 1)

    def next(self) -> int | None:
        """The next row to fetch, the runs in turn; the same until `commanded`, or another open."""
        while self._hungry:
            run = next(iter(self._hungry))
            row = max(run.position, run.ahead_until)
            while (other := self._begins.get(row)) is not None:
                row = other.position
            if row < self._end_ahead(run):
                run.ahead_until = row
                return row
            del self._hungry[run]
        return None

    def commanded(self) -> None:
        """The row that `next` gave is held, on its way, or not worth fetching."""
        run = next(iter(self._hungry))
        run.ahead_until += 1
        if len(self._hungry) > 1:
            del self._hungry[run]
            self._hungry[run] = None

    def give_way(self) -> Sequence[int]:
        """Another order lacks memory: rows that were commanded for a run that has ended, none if all go on."""
        if self._left:
            return self._left.popleft()
        while self._runs:
            run = next(iter(self._runs.values()))
            if self._opens - run.touched_at < _PATIENCE_OPENS:
                break
            del self._runs[run.position]
            dropped = self._forget(run)
            if dropped:
                return dropped
        return ()

    def _end_ahead(self, run: _Run) -> int:
        end = run.position + min(_GROWTH * run.files, _MAX_AHEAD_FILES)
        if run.files <= self._usual_files:
            end = min(end, run.begin + self._usual_files)
        return min(end, self._row_count)

    def _join(self, run: _Run) -> _Run:
        """`run` was extended: it takes in the one that begins there, and of two that end there the longer one stays."""
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
        """Keep in mind what is ahead of a run that has ended; what it takes the place of."""
        if not ahead:
            return ()
        self._left.append(ahead)
        return self._left.popleft() if len(self._left) > _MAX_RUNS else ()

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

"""Decides which files come next: in an announced order, in that of the listing, or in none. Pure: no clock, no I/O.

An announced order has the inodes of its files, the others the rows of the table. `next` gives the next file to fetch
and `advance` goes on behind it; `begun` and `give_way` return what is fetched and no longer expected.
"""

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

# Files begun elsewhere before an announced order, or a run of the listing, gives way to others.
_PATIENCE_FILES = 256

# Places of the files begun last: 2 of each of 128 workers. They are looked at once for so many files.
_RECENT_FILES = 256
_LOOK_EVERY = 16
# 16 workers, each in a batch of 32 files, are so far apart.
_LEAST_SPREAD_FILES = 512
# Announced and not fetched: 8 MB, for batches of 256 of 64 workers, three each. A script that announces more waits. So
# many that the page cache has are remembered beside them, and what is announced then waits in batches: 8 MB, a million.
_MAX_QUEUED_FILES = 65_536
_BATCH_FILES = 1024
_MAX_WAITING_BATCHES = 1024
# A worker that is slower than the last files begun tell still finds what is this part of the spread behind.
_SLOW_DIVISOR = 8
# The most files that an order costs that nobody follows, and those ahead of one that has readers. The pool has bounds.
_FIRST_CREDIT_FILES = 256
_AHEAD_SPREADS = 2
_CREDIT_PER_FILE = 2
# So many more files lost than kept show that the page cache has lost most of an order. Where it has kept half, readers
# are soon ahead of what is fetched: see MEASUREMENTS.md.
_MANY_LOSSES = 16

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
_MAX_ENDED_RUNS = 64


class AnnouncedOrder:
    """An order of inodes that a training script has announced. Invariant: no file is both queued and ahead.

    It has to prove itself. It begins with credit for a few files; a file fetched costs one, and a file begun brings
    two. A list that nobody follows costs the first credit, once. A list that is half wrong costs as much again as it
    saves. A right one soon has as many files ahead as readers of any spread need.

    Readers follow an order roughly: each of several workers is somewhere in a batch of its own. The last files begun
    tell how far apart they are (the *spread*), and the least place of them is the one that all have reached. Files
    before it that are not fetched are skipped, and fetched ones some way behind it are dropped.

    Files that the page cache most likely has are passed over. Once it has lost most of them, they are fetched, too.
    """

    def __init__(self, first_bytes: int) -> None:
        """Allow `first_bytes` ahead before readers have shown that they follow the order."""
        self._first_bytes = first_bytes
        # The place in the order by inode, lowest first, and with what is ahead its size.
        self._queued: OrderedDict[int, int] = OrderedDict()
        self._ahead: OrderedDict[int, tuple[int, int]] = OrderedDict()
        # The page cache has these files, in the form of `_queued`. It is trusted until it has lost most of them.
        self._cached: OrderedDict[int, int] = OrderedDict()
        self.trusts_page_cache = True
        # Inodes that were announced when enough was remembered.
        self._waiting: deque[array[int]] = deque()
        # It has lost so many files more than it kept, of late.
        self._losses = 0
        self._ahead_bytes = 0
        self._announced_files = 0
        self._credit_files = _FIRST_CREDIT_FILES
        self._recent: deque[int] = deque(maxlen=_RECENT_FILES)
        self._begun_files = self._begun_elsewhere = 0
        self._spread_files = _LEAST_SPREAD_FILES

    @property
    def is_full(self) -> bool:
        """True while enough is announced."""
        return len(self._queued) >= _MAX_QUEUED_FILES or len(self._waiting) >= _MAX_WAITING_BATCHES

    @property
    def is_spent(self) -> bool:
        """True if everything that was announced is fetched or passed over."""
        return not self._queued

    @property
    def ahead(self) -> Sequence[int]:
        """The files that were fetched and are not begun yet, in order."""
        return tuple(self._ahead)

    def announce(self, inodes: Sequence[int]) -> None:
        """Add `inodes` behind what was announced before. A file announced twice is fetched once."""
        if not self._waiting and self._remembers_more:
            self._queue(inodes)
            return
        if not self._waiting or len(self._waiting[-1]) >= _BATCH_FILES:
            self._waiting.append(array("Q"))
        self._waiting[-1].extend(inodes)

    @property
    def _remembers_more(self) -> bool:
        """True while few files are left to the page cache, or readers are most likely behind them."""
        return len(self._cached) < _MAX_QUEUED_FILES or self._begun_elsewhere >= _PATIENCE_FILES

    def _queue(self, inodes: Iterable[int]) -> None:
        for inode in inodes:
            if inode not in self._ahead:
                self._cached.pop(inode, None)
                self._queued.setdefault(inode, self._announced_files)
            self._announced_files += 1

    def begun(self, inode: int) -> Sequence[int]:
        """Note that a file was begun, in this order or not. Return files that are no longer expected."""
        if self._waiting and len(self._queued) < _MAX_QUEUED_FILES and self._remembers_more:
            self._queue(self._waiting.popleft())
        place, is_near = self._queued.pop(inode, None), True
        if place is None and (place := self._cached.pop(inode, None)) is not None:
            # An order of several epochs has each file far behind its readers, too.
            is_near = place > max(self._recent, default=0) - _LEAST_SPREAD_FILES
            self._lose(place)
        if place is None:
            if inode not in self._ahead:
                self._begun_elsewhere += 1
                return ()
            place = self._remove_ahead(inode)
        self._begun_elsewhere = 0 if is_near else self._begun_elsewhere + 1
        self._credit_files = min(self._credit_files + _CREDIT_PER_FILE, _AHEAD_SPREADS * self._spread_files)
        self._recent.append(place)
        self._begun_files += 1
        return () if self._begun_files % _LOOK_EVERY else self._drop_behind(min(self._recent), max(self._recent))

    def next(self) -> int | None:
        """Return the next file to fetch, the same until `advance`; None while enough is ahead."""
        if not self._queued or not self._credit_files or len(self._ahead) >= _AHEAD_SPREADS * self._spread_files:
            return None
        if self._begun_files < _LOOK_EVERY and self._ahead_bytes >= self._first_bytes:
            return None
        return next(iter(self._queued))

    def advance(self, fetched_bytes: int) -> None:
        """Go on behind the file that `next` gave: `fetched_bytes` are on their way, or 0 if it was passed over."""
        inode, place = self._queued.popitem(last=False)
        if fetched_bytes:
            self._ahead[inode] = (place, fetched_bytes)
            self._ahead_bytes += fetched_bytes
            self._credit_files -= 1

    def pass_over(self) -> None:
        """Go on behind the file that `next` gave, which the page cache most likely has."""
        inode, place = self._queued.popitem(last=False)
        self._cached[inode] = place
        while len(self._cached) > _MAX_QUEUED_FILES and self._begun_elsewhere >= _PATIENCE_FILES:
            self._cached.popitem(last=False)  # readers are most likely further on

    def give_way(self) -> Sequence[int]:
        """Return what is ahead of readers that seem to have gone, for another order that lacks memory."""
        return self._drop_ahead() if self._begun_elsewhere >= _PATIENCE_FILES else ()

    def withdraw(self) -> Sequence[int]:
        """End the order. Return what was fetched and not begun."""
        self._queued.clear()
        self._cached.clear()
        self._waiting.clear()
        return self._drop_ahead()

    def _lose(self, place: int) -> None:
        """Note that the page cache has lost the file at `place`. If it was one too many, queue those behind it."""
        begun_before = max((other for other in self._recent if other < place), default=-1)  # by the same worker
        self._losses = max(0, self._losses - (place - begun_before - 1)) + 1
        if self._losses >= _MANY_LOSSES:
            self.trusts_page_cache = False
            while len(self._recent) >= _MANY_LOSSES:
                self._recent.popleft()  # they may be far behind
            front = min(self._recent)
            passed = (*self._cached.items(), *self._queued.items())
            self._queued = OrderedDict((inode, other) for inode, other in passed if other > front)
            self._cached.clear()

    def _drop_behind(self, front: int, foremost: int) -> Sequence[int]:
        ahead = self._ahead
        self._spread_files = max(_LEAST_SPREAD_FILES, foremost - front)
        for passed in (self._queued, self._cached):
            while passed and next(iter(passed.values())) < front:
                passed.popitem(last=False)
        late = []
        while ahead and next(iter(ahead.values()))[0] < front - self._spread_files // _SLOW_DIVISOR:
            inode = next(iter(ahead))
            self._remove_ahead(inode)
            late.append(inode)
        return late

    def _remove_ahead(self, inode: int) -> int:
        place, size_bytes = self._ahead.pop(inode)
        self._ahead_bytes -= size_bytes
        return place

    def _drop_ahead(self) -> Sequence[int]:
        dropped = list(self._ahead)
        self._ahead.clear()
        self._ahead_bytes = 0
        return dropped


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
    """The runs in a table of `row_count` rows, where files follow one another by name, and directories, too. Bounded.

    A *run* is rows that were begun without a gap, ``[begin, position)``, in whatever order. A file begun at some run's
    position extends that run, and joins it with the run that begins where it now ends; anywhere else it begins a new
    one.

    Several readers that share an order and begin files in batches, or a little out of turn, thus make runs that grow
    together. A run of a few rows is an order, not chance, and a window is kept ahead of it that grows with the run.
    Random readers make runs of one row.
    """

    def __init__(self, row_count: int, first_file_row: int = 0) -> None:
        """Begin with no runs; `first_file_row` is behind the directories that the table begins with."""
        self._row_count = row_count
        self._first_file_row = first_file_row
        self._max_runs = min(max(row_count // _MAX_AHEAD_FILES, _LEAST_RUNS), _MAX_RUNS)
        # The runs by position, least recently extended first, and by begin.
        self._runs: dict[int, _Run] = {}
        self._begins: dict[int, _Run] = {}
        # Runs that may want more ahead, in their turn.
        self._hungry: dict[_Run, None] = {}
        self._begun_files = 0
        # The rows ahead of runs that ended: they may still be begun, above all where there are few files.
        self._ahead_of_ended: deque[range] = deque()
        # The length of the run that ended last: the next may be as long, as with samples of six files each.
        self._usual_files = 0

    def begun(self, row: int) -> Sequence[int]:
        """Note that a file was begun. Return rows that were commanded and are no longer expected."""
        self._begun_files += 1
        run = self._runs.pop(row, None)
        dropped: Sequence[int] = ()
        if run is None:
            if len(self._runs) >= self._max_runs:
                dropped = self._remember_ahead(self._forget(next(iter(self._runs.values()))))
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
        if self._ahead_of_ended:
            return self._ahead_of_ended.popleft()
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
            run.ahead_until = max(run.ahead_until, other.ahead_until)
            self._remove(other)
        twin = self._runs.get(run.position)
        if twin is None:
            return run
        longer, shorter = (run, twin) if run.files > twin.files else (twin, run)
        longer.ahead_until = max(longer.ahead_until, shorter.ahead_until)
        self._remove(shorter)
        return longer

    def _remember_ahead(self, ahead: range) -> Sequence[int]:
        """Remember what is ahead of a run that has ended. Return what is forgotten for it."""
        if not ahead:
            return ()
        self._ahead_of_ended.append(ahead)
        return self._ahead_of_ended.popleft() if len(self._ahead_of_ended) > _MAX_ENDED_RUNS else ()

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

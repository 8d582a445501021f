"""Runs of reads in one file: what follows on (`Cursor`), distances (`Stride`, `Latest`), and `RunLengths`. Pure.

`Faults` of a map at random places are such runs, too: the kernel asks for far more than the page that is wanted.
"""

from collections import deque

from fastfuse.readahead.limits import KERNEL_PAGE_BYTES, KERNEL_REQUEST_BYTES, PAGE_BYTES
from fastfuse.readahead.pace import ReaderPace

# Equal steps between pieces before the next piece is foreseen. Random reads do not make four such pieces.
_STRIDES = 3
# The next step is the mean of those between so many pieces.
_PIECES = 8
# A step is about equal if it differs by no more than this part of a piece, or a page, as requests are whole pages.
_SLACK_DIVISOR = 4
# A run this much longer than the runs before a jump is sequential. Random runs of one size vary by less.
_LONGER = 1.5
# Where runs differ, one is so before that, if those that came as far were this much longer on average: then it is worth
# to fetch as much ahead as it has read.
_WENT_ON = 2
# The next run is foretold by this many, where all but the two shortest and the two longest are alike.
_RUNS = 12
_ALIKE = 1.1
# So many runs that became longer than one is by now tell how long that one will be at least.
_LONGER_RUNS = 3
# Runs of a few pages count as alike: a map that is read at random is faulted page by page, and a GET of so much takes
# hardly longer than one of a page.
_SHORT_BYTES = 32 << 10
# So many runs in a row, less than this apart on average, are dense. A connection brings more than that during the time
# to the first byte (20 ms, 90 MB/s).
_NEAR_RUNS = 12
_NEAR_BYTES = 1 << 20
# What the kernel asks for around a fault (filesystem.mounting.mountpoint): its readahead, the page in the middle.
# It asks for twice as much, in two requests at once, after `POSIX_FADV_SEQUENTIAL`, which PyTorch gives for its maps.
_AROUND_BYTES = 1 << 20
# So many faults in a row that were not read on from show that only their pages are wanted.
_SHORT_RUNS = 3
# Faults that are less than so many times as far apart as what is put off leave little of the file: who looks at each
# tensor of a small model reads all of them later, and page by page what was fetched with a page that was looked at.
_FAR = 4


class Cursor:
    """One run of reads. Invariants: ``begin < position``; no gap in ``[begin, position)`` is as long as a request."""

    __slots__ = (
        *("_hole", "ahead_until", "began_at", "begin", "below", "credit_bytes", "descending", "descents"),
        *("is_shared", "is_tail", "pace", "position", "read_at", "reads", "sequential", "stride"),
    )

    def __init__(self, begin: int, end: int, number: int = 0) -> None:
        """Begin a run with a read of ``[begin, end)``, the read `number` of the file."""
        # The numbers of the first and the last read of this run.
        self.began_at = self.read_at = number
        self.begin = begin
        self.position = end
        self.reads = 1
        self.sequential = begin == 0
        # The reads in a row that ended where the run began, and the range that was wanted for them last.
        self.descents = 0
        self.below = (begin, begin)
        self.descending = False
        # The run is a look at the file's end, as formats with a footer begin; it foretells nothing.
        self.is_tail = False
        # Another run was read on after a read of this one: readers take turns. False again once its end is noted.
        self.is_shared = False
        # Everything below was commanded, as demand or ahead.
        self.ahead_until = begin
        # What the run counts for in addition, when it continues another one.
        self.credit_bytes = 0
        # None while nothing is known that limits the window.
        self.pace: ReaderPace | None = None
        # What was jumped over last: a late request may still ask for it.
        self._hole = (0, 0)
        # This run is a piece of it, if it follows on another one at a distance. A run that nobody continues has none.
        self.stride: Stride | None = None

    @property
    def run_bytes(self) -> int:
        """The length of the run."""
        return self.position - self.begin

    @property
    def is_interleaved(self) -> bool:
        """True if more than a quarter of the reads from its first to its last were others'."""
        return 4 * self.reads < 3 * (1 + self.read_at - self.began_at)

    @property
    def is_strided(self) -> bool:
        """True if this run is one of several pieces at equal distances."""
        return self.stride is not None and self.stride.steps >= _STRIDES and not self.sequential

    @property
    def is_foreseen(self) -> bool:
        """True if something tells what this run reads next."""
        return self.sequential or self.descending or self.is_strided

    def ascend(self, end: int) -> None:
        """Take a request that begins where the run ends, and ends at `end`."""
        self.reads += 1
        self.position = end
        self.descents, self.descending = 0, False

    def descend(self, offset: int) -> None:
        """Take a request that begins at `offset` and ends where the run begins."""
        self.reads += 1
        self.descents += 1
        self.begin = offset

    def absorb(self, other: "Cursor") -> None:
        """Take over what `other`, which begins where this run ends, has read."""
        # A reader that came down to this run has read all that it wants, or shows by its next reads that it goes on.
        self.reads = 0 if other.descending else self.reads + other.reads
        self.position = other.position
        other.stride = None

    def next_below(self, window_bytes: int) -> tuple[int, int]:
        """Return what to want below this run. Once half of it was read, that is more, `window_bytes` below at most."""
        start, end = self.below
        if self.ahead_until >= end and self.begin <= (start + end) // 2:
            end = min(start, self.begin)
            start = max(0, min(end, self.begin - window_bytes))
            self.ahead_until = start = start - start % PAGE_BYTES
            self.below = start, end
        return self.below

    def skips_to(self, offset: int, end: int) -> bool:
        """Return whether a request for ``[offset, end)`` belongs to this run.

        It does if it jumps over less than it asks for, or comes late for what was jumped over.
        """
        return 0 < offset - self.position < end - offset or self._hole[0] <= offset < end <= self._hole[1]

    def skip(self, offset: int, end: int) -> None:
        """Take a request that `skips_to` accepts."""
        self.reads += 1
        if offset > self.position:
            self._hole = (self.position, offset)
            self.position = end

    def steps_to(self, offset: int) -> bool:
        """Return whether the next piece of this stride is at `offset`."""
        stride = self.stride
        return stride is not None and abs(offset - stride.expected) <= stride.tolerance_bytes

    def follow(self, before: "Cursor") -> None:
        """Note that this run began behind `before`: as the next piece of its stride, or else as the second of one."""
        if before.stride is not None and before.steps_to(self.begin):
            before.stride.go_on(self)
        elif self.begin - before.begin > before.run_bytes:
            self.stride = Stride(before)
            self.stride.go_on(self)


class Stride:
    """Runs at about equal distances, here called pieces, by however many threads in turns.

    The next one is expected a mean step behind the latest, give or take `_slack_bytes`.
    """

    __slots__ = ("_pieces", "_runs", "_slack_bytes", "_wanted", "expected", "steps", "tolerance_bytes")

    def __init__(self, first: Cursor) -> None:
        # The latest pieces. One may be read on when others have begun.
        self._runs = deque([first], maxlen=_PIECES)
        # The next piece begins there, or so far elsewhere at most. Such guesses were wrong by `_slack_bytes` lately.
        self.expected = self.tolerance_bytes = self._slack_bytes = self.steps = 0
        # This range of this piece is wanted. Pieces are counted from the latest one, which is 0.
        self._pieces = -1
        self._wanted = (0, 0)

    @property
    def piece_bytes(self) -> int:
        """The length of the longest of the latest pieces, as far as they were read; a look at the beginning is none."""
        # All may have gone down to the beginning by now.
        return max((run.run_bytes for run in self._runs if run.begin), default=0)

    def go_on(self, run: Cursor) -> None:
        """Take `run` for the next piece."""
        if self.steps:
            faded_bytes = self._slack_bytes * 3 // 4
            self._slack_bytes = max(abs(run.begin - self.expected), faded_bytes - faded_bytes % PAGE_BYTES)
        self._runs.append(run)
        self.expected = run.begin + (run.begin - self._runs[0].begin) // (len(self._runs) - 1)
        self.tolerance_bytes = max(PAGE_BYTES, self.piece_bytes // _SLACK_DIVISOR)
        self.steps += 1
        self._pieces = max(-1, self._pieces - 1)
        run.stride = self

    def has_longer(self, run: Cursor, most_bytes: int) -> bool:
        """Return whether a piece that is over, of at most `most_bytes`, was about as long as `run` is by now."""
        ended = max((other.run_bytes for other in self._runs if other.read_at < run.began_at), default=0)
        return run.run_bytes <= _LONGER * ended <= _LONGER * most_bytes

    def next_piece(self, most_pieces: int, most_bytes: int) -> tuple[int, int] | None:
        """Return what is wanted next and was not commanded, or None if enough pieces are ahead.

        The rest of the latest piece comes first. As many pieces are ahead as there were steps, no more than
        `most_pieces`, none whose place is too uncertain, and none of more than `most_bytes`.
        """
        latest, piece_bytes = self._runs[-1], self.piece_bytes
        most_pieces = min(self.steps, most_pieces) if piece_bytes <= most_bytes else -1
        while (start := max(self._wanted[0], latest.position)) >= self._wanted[1]:
            number = self._pieces + 1
            slack_bytes = number * self._slack_bytes
            if number > most_pieces or slack_bytes > piece_bytes // _SLACK_DIVISOR:
                return None
            begin = latest.begin + number * (self.expected - latest.begin)
            self._pieces, self._wanted = number, (begin - slack_bytes, begin + piece_bytes + slack_bytes)
        return start, self._wanted[1]

    def commanded(self, until: int) -> None:
        """Note that everything wanted up to `until` is held, in flight, or in the page cache."""
        # A part may end amid a page, where another begins. Pages are wanted whole, so it would be wanted for ever.
        self._wanted = (until + -until % PAGE_BYTES, self._wanted[1])


class Latest(deque[Cursor]):
    """The runs that began last. `dense_bytes` is how far they went near to one another, 0 while they do not."""

    def __init__(self) -> None:
        super().__init__(maxlen=_NEAR_RUNS)
        self.dense_bytes = self._dense_from = 0

    @property
    def are_falling(self) -> bool:
        """True if they went towards the beginning of the file."""
        return bool(self) and self[-1].begin < self[0].begin

    def append(self, run: Cursor) -> None:
        """Note that `run` has begun."""
        super().append(run)
        begins = {run.begin for run in self}
        if len(begins) < _NEAR_RUNS or max(begins) - min(begins) > _NEAR_RUNS * _NEAR_BYTES:
            self.dense_bytes = 0
            return
        if not self.dense_bytes:
            self._dense_from = self[0].begin  # the run that is out now may have been anywhere
        self.dense_bytes = abs(run.begin - self._dense_from)


class RunLengths:
    """The lengths of one file's runs: they tell random reads from sequential ones, and foretell the next run.

    A jump ends a run if nobody else reads meanwhile; the run of one of several readers ends when nothing has continued
    it for long. Both kinds of ends are looked at, each for itself.
    """

    __slots__ = ("_ended", "_jumped", "_jumped_bytes", "_part_bytes")

    def __init__(self, part_bytes: int) -> None:
        """Begin without runs. After one of more than `part_bytes`, which was worth readahead, a jump says nothing."""
        self._part_bytes = part_bytes
        self._jumped: deque[int] = deque(maxlen=_RUNS)
        self._ended: deque[int] = deque(maxlen=2 * _RUNS)
        self._jumped_bytes = 0

    @property
    def usual_bytes(self) -> int:
        """The length that the next run will have, or 0 if runs differ."""
        return _usual(self._jumped)

    def likely_bytes(self, run_bytes: int) -> int:
        """Return the length of the shortest run that was longer than `run_bytes`, 0 if unknown."""
        lengths = self._ended if self.knows_ends else self._jumped
        longer = [length for length in lengths if length > run_bytes]
        return min(longer) if len(lengths) >= _RUNS and len(longer) >= _LONGER_RUNS else 0

    @property
    def knows_ends(self) -> bool:
        """True if several readers have taken turns, so that their runs are told by what has ended."""
        return len(self._ended) >= _RUNS

    def jumped(self, run_bytes: int) -> None:
        """Note that a read elsewhere follows on a run of `run_bytes`."""
        self._jumped.append(run_bytes)
        self._jumped_bytes = run_bytes if run_bytes <= self._part_bytes else 0

    def ended(self, run: Cursor) -> None:
        """Note that nothing will continue `run`, because it is long ago."""
        if run.is_shared:
            self._ended.append(run.run_bytes)
            run.is_shared = False

    def are_exceeded_by(self, run: Cursor) -> bool:
        """Return whether `run` is longer than random runs are, or will most likely be much longer."""
        run_bytes = run.run_bytes
        if run.is_interleaved and self.knows_ends:
            return run_bytes > _LONGER * max(self._ended)
        if run_bytes > _LONGER * self._jumped_bytes:
            return True
        reached = [length for length in self._jumped if length >= run_bytes]
        if len(self._jumped) < _RUNS or self.usual_bytes:
            return False
        return sum(reached) > _WENT_ON * run_bytes * len(reached)


def _usual(runs: deque[int]) -> int:
    if len(runs) < _RUNS:
        return 0
    _, _, shortest, *_, longest, _, _ = sorted(runs)
    return longest if longest <= max(_ALIKE * shortest, _SHORT_BYTES) else 0


class Faults:
    """The faults of the maps of one file, as far as reads look like such."""

    __slots__ = ("_around", "_fault_bytes", "_is_mapped", "_reads", "_short_runs", "unwanted")

    def __init__(self) -> None:
        # `_around` was put off last, and `_reads` came in it since. Maps are believed in until one shows otherwise.
        self._around, self._reads, self._is_mapped = (0, 0), 1, True
        # The runs before the last jumps, in a row, that may have been one fault each; and what one asks for at most.
        self._short_runs, self._fault_bytes = 0, _AROUND_BYTES
        # The kernel is to forget these ranges, or it would ask for each page of them alone. They were put off, and hold
        # neither the page that is wanted nor what is fetched with it.
        self.unwanted: list[tuple[int, int]] = []

    def put_off(self, offset: int, end: int, last: Cursor) -> bool:
        """Return whether to refuse a request that fills the page cache, so that the kernel asks for one page instead.

        A fault at random asks for all of the kernel's readahead. If that fails, the kernel asks for the page that is
        wanted, and nobody else learns of it. A `pread` looks alike once: it then asks for the first page. `last` is the
        run of the last read.
        """
        is_answered = self._reads > 0
        if end - offset != _AROUND_BYTES or not offset % _AROUND_BYTES:
            return False
        if offset == self._around[1] and not is_answered:
            self._around = (self._around[0], end)
            return True
        # Readers who read on at each place gain nothing.
        if not self._is_mapped or not is_answered or self._short_runs < _SHORT_RUNS - 1 or not self._is_short(last):
            return False
        if abs(offset - last.begin) < _FAR * self._fault_bytes:
            return False
        self._around, self._reads = (offset, end), 0
        return True

    def read(self, offset: int, end: int) -> None:
        """Note a read of ``[offset, end)``."""
        if self._has(offset):
            if not self._reads:
                self._is_mapped = offset <= sum(self._around) // 2 < end
                rest = (self._around[0], offset), (max(end, offset + KERNEL_REQUEST_BYTES), self._around[1])
                self.unwanted += [(start, end) for start, end in rest if start < end]
            self._reads += 1

    def came_together(self, run: Cursor, size_bytes: int) -> None:
        """Note that the last read of `run`, of `size_bytes`, came while the one before it was under way."""
        if size_bytes == _AROUND_BYTES and run.run_bytes == 2 * size_bytes:
            self._fault_bytes = 2 * _AROUND_BYTES

    def jumped(self, run: Cursor) -> None:
        """Note that a read elsewhere follows on `run`."""
        self._short_runs = self._short_runs + 1 if self._is_short(run) else 0

    def wanted(self, begin: int, start: int, end: int) -> tuple[int, int] | None:
        """Return what to fetch for a read of ``[start, end)``, of a run from `begin` on, if that was put off before."""
        if not self._has(start) or end - start > KERNEL_PAGE_BYTES:
            return None
        # The page may be all that is wanted; whoever asks for the next one reads on, page by page.
        if self._reads == 1:
            return start, start + KERNEL_REQUEST_BYTES
        return (start, self._around[1]) if start > begin else None

    def _has(self, offset: int) -> bool:
        return self._around[0] <= offset < self._around[1]

    def _is_short(self, run: Cursor) -> bool:
        """Return whether a run may have been one fault."""
        return run.run_bytes <= (KERNEL_REQUEST_BYTES if self._has(run.begin) else self._fault_bytes)

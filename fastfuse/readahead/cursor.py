"""One reader's place in a file, and how its next read may follow on. Pure."""

from fastfuse.readahead.pace import ReaderPace

__all__ = ["Cursor"]

# Equal steps between equal pieces before the next piece is foreseen: four pieces of random reads are not spaced alike.
_STRIDES = 3


class Cursor:
    """One run of reads. Invariants: ``begin < position``; of ``[begin, position)`` no gap is as long as a request."""

    __slots__ = (
        *("_hole", "ahead_until", "began_at", "begin", "credit_bytes", "is_tail", "pace", "piece_bytes", "position"),
        *("read_at", "reads", "sequential", "step_bytes", "steps"),
    )

    def __init__(self, begin: int, end: int, number: int = 0) -> None:
        """`number` counts the reads of the file."""
        # Which of them was the first of this run, and which the last.
        self.began_at = self.read_at = number
        self.begin = begin
        self.position = end
        self.reads = 1
        self.sequential = begin == 0
        # A look at the end of the file, as formats with a footer begin; it says nothing about what comes.
        self.is_tail = False
        # Everything below was commanded, as demand or ahead.
        self.ahead_until = begin
        # What the run counts for beside itself, when it takes up another one.
        self.credit_bytes = 0
        # None while nothing is known that limits the window.
        self.pace: ReaderPace | None = None
        # What was jumped over last: a request that comes late may still ask for it.
        self._hole = (0, 0)
        # Between this run and the one before, and how many times in a row it was that.
        self.step_bytes = self.steps = 0
        # The run before, if all of these were alike.
        self.piece_bytes = 0

    @property
    def run_bytes(self) -> int:
        return self.position - self.begin

    @property
    def is_strided(self) -> bool:
        """Equal pieces at equal distances; this run is the latest of them."""
        return self.steps >= _STRIDES and not self.sequential

    def skips_to(self, offset: int, end: int) -> bool:
        """Whether a request for ``[offset, end)`` belongs to this run: it jumps over less than it asks for, or comes
        late for what was jumped over."""
        return 0 < offset - self.position < end - offset or self._hole[0] <= offset < end <= self._hole[1]

    def skip(self, offset: int, end: int) -> None:
        """Take a request that `skips_to` accepts."""
        self.reads += 1
        if offset > self.position:
            self._hole = (self.position, offset)
            self.position = end

    def steps_to(self, offset: int) -> bool:
        """Whether the next piece of this stride is at `offset`."""
        return self.steps > 0 and self.begin + self.step_bytes == offset

    def follow(self, before: "Cursor") -> None:
        """This run began when `before` was over: see if it is a step as the one before."""
        step_bytes = self.begin - before.begin
        if step_bytes <= before.run_bytes:
            return
        is_alike = before.steps > 0 and (step_bytes, before.run_bytes) == (before.step_bytes, before.piece_bytes)
        self.steps = before.steps + 1 if is_alike else 1
        self.step_bytes = step_bytes
        self.piece_bytes = before.run_bytes
        if is_alike:
            self.ahead_until = max(self.begin, before.ahead_until)

    def next_piece(self, most_pieces: int) -> tuple[int, int] | None:
        """The rest of the next piece that was not commanded; as many pieces ahead as there were steps, or fewer."""
        start = max(self.ahead_until, self.begin + self.step_bytes)
        index, within = divmod(start - self.begin, self.step_bytes)
        if within >= self.piece_bytes:
            index, within = index + 1, 0
        if index > min(self.steps, most_pieces):
            return None
        piece = self.begin + index * self.step_bytes
        return piece + within, piece + self.piece_bytes

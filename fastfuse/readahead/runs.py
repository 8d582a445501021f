"""How long runs of reads are before the reader jumps elsewhere: what tells random reads from sequential ones. Pure."""

from collections import deque

__all__ = ["RunLengths"]

# A run is sequential if it is longer than the others by half: those of random reads of one size differ, as the kernel
# cuts them by its pages and adds readahead of its own.
_LONGER = 1.5
# Of so many runs all but the two shortest and the two longest must be alike to foretell the next: where a page of it is
# cached already the kernel asks for less, one time in ten in a busy file (measured). A wrong guess for one in six costs
# an eighth of the bytes at most.
_RUNS = 12
_ALIKE = 1.1


class RunLengths:
    """The runs of one file's readers, in bytes. Runs of more than `part_bytes` were worth readahead and count as that.

    When a reader jumps its run is over, if nobody else reads meanwhile; and it is in any case when nothing has
    continued it for long. So both are looked at, each for itself.
    """

    __slots__ = ("_ended", "_jumped", "_jumped_bytes", "_longest_bytes", "_part_bytes")

    def __init__(self, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self._jumped: deque[int] = deque(maxlen=_RUNS)
        self._ended: deque[int] = deque(maxlen=_RUNS)
        self._jumped_bytes = self._longest_bytes = 0

    @property
    def usual_bytes(self) -> int:
        """How long the next run will be, or 0: they differ. An early jump is no harm, it makes this too short."""
        return max(_usual(self._jumped), _usual(self._ended))

    def jumped(self, run_bytes: int) -> None:
        """A read elsewhere follows on a run of `run_bytes`."""
        self._jumped.append(run_bytes)
        # A run of more than a part says nothing about the next.
        self._jumped_bytes = run_bytes if run_bytes <= self._part_bytes else 0

    def ended(self, run_bytes: int) -> None:
        """A run of `run_bytes` is so long ago that nothing will continue it."""
        self._ended.append(run_bytes)
        run_bytes = min(run_bytes, self._part_bytes)
        self._longest_bytes = max(run_bytes, (3 * self._longest_bytes + run_bytes) // 4)

    def is_exceeded_by(self, run_bytes: int) -> bool:
        """Whether a run of `run_bytes` is longer than a jump would make it expect."""
        return run_bytes > _LONGER * max(self._jumped_bytes, self._longest_bytes)


def _usual(runs: deque[int]) -> int:
    if len(runs) < _RUNS:
        return 0
    _, _, shortest, *_, longest, _, _ = sorted(runs)
    return longest if longest <= _ALIKE * shortest else 0

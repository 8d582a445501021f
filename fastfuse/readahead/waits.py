"""Counts the time that reads wait (`Waits`), and decides by it when the rest of a file is fetched (`Rest`). Pure.

Reads at random places foretell nothing, so each waits for a GET of its own. All of the file in memory ends that, but
takes time and memory for bytes that maybe nobody reads. This is the ski-rental problem: waiting is the rent, fetching
the rest is the price. The rest is fetched as soon as reads have waited for as long as it takes.

INVARIANT: waits and price together are at most twice the best that could have been done in hindsight, and one wait. The
price may fall meanwhile, as it does with every part that is read. It is the caller's: `stream` sets it higher than the
time that the fetch takes, because bytes that nobody asked for take the network from others.
"""

__all__ = ["Rest", "Waits"]


class Waits:
    """The time in which at least one of several reads waits for its bytes; `began_s` counts only while one does."""

    __slots__ = ("_reads", "began_s", "lost_s")

    def __init__(self) -> None:
        self._reads = 0
        self.began_s = self.lost_s = 0.0

    def __bool__(self) -> bool:
        return self._reads > 0

    def waits(self, now_s: float) -> None:
        """Note that a read waits for its bytes."""
        if not self._reads:
            self.began_s = now_s
        self._reads += 1

    def goes_on(self, now_s: float) -> None:
        """Note that a read that waited does so no more."""
        self._reads -= 1
        self.lost_s += now_s - self.began_s
        self.began_s = now_s


class Rest(Waits):
    """The waits of reads at random places of one file. What is before `asked_until` is not wanted, or asked for."""

    __slots__ = ("asked_until", "times_due")

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self.asked_until = size_bytes
        self.times_due = 0

    def is_due(self, fetch_s: float) -> bool:
        """Return whether to fetch the rest now, which takes `fetch_s`. If so, the count begins anew.

        A rest that is due again was evicted. Each time costs twice as much as the time before: otherwise files that do
        not fit into the memory together would evict one another without end.
        """
        if self.lost_s < fetch_s * (1 << self.times_due):
            return False
        self.lost_s = 0.0
        self.asked_until, self.times_due = 0, self.times_due + 1
        return True

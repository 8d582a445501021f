"""Decides whether readers of small files are faster by themselves than files can be fetched ahead. Pure.

A file that is fetched ahead takes the interpreter's time twice, for its GET and for its read. One that is not is read
by a thread without it (`filesystem.kernel.direct_reads`), and as many at once as there are readers. So fetching ahead
pays where a GET takes long, as from S3, and costs where the service is near and many readers wait for it at once. While
the local tier has all that is read, there is nothing to fetch.
"""

from collections import deque
from math import inf

# The most small files a second that were fetched ahead: docs/MEASUREMENTS.md.
_AHEAD_PER_S = 4000.0
# One of so many files is left to its reader, which tells how long a GET takes now; more often in the beginning.
_FIRST_SAMPLE_FILES, _SAMPLE_FILES = 16, 1024
# Few readers need what is ahead even where a GET takes less than a millisecond.
_FEW_READERS = 4
# The least time of late, for a busy machine makes single GETs take any time. A greater one is believed within 50.
_GROWTH = 1.02
# Where no GET takes less, what is not sure to be read is worth the interpreter's time: docs/MEASUREMENTS.md. A shorter
# one is forgotten by half in 700: it came from the local tier, or by chance.
_FAR_S = 0.005
_SLOW_GROWTH = 1.001
# Readers that mostly wait begin their next file within this time, even on a busy machine: GETs of more than 64 ms make
# 256 readers few. Others compute for longer, or are processes that read a file each and end.
_NEXT_FILE_S = 0.1
# Whoever began one of so many files is a reader. If the local tier had all of them, it has those that follow, too.
_RECENT_FILES = 256
_COUNT_EVERY = 16


class OwnPace:
    """The GETs that readers of small files waited for, and how many readers there are."""

    def __init__(self) -> None:
        # The least time of late, and the one that is forgotten more slowly.
        self._get_s = self._least_s = inf
        self._next_file_s = 0.0
        self._recent: deque[tuple[int, float]] = deque(maxlen=_RECENT_FILES)
        self._readers = self._uncounted = self._kept_files = 0
        self._sample_files = self._until_sample = _FIRST_SAMPLE_FILES

    def begun(self, reader_id: int, now_s: float, *, is_kept: bool = False) -> None:
        """Note that the thread or process with this number began a file; `is_kept`: the local tier had it."""
        self._recent.append((reader_id, now_s))
        self._kept_files = self._kept_files + 1 if is_kept else 0
        self._uncounted += 1
        if self._uncounted >= _COUNT_EVERY:
            self._readers, self._uncounted = len({one for one, _ in self._recent}), 0
            took_s = now_s - self._recent[0][1]
            self._next_file_s = took_s * self._readers / len(self._recent)

    def waited(self, get_s: float) -> None:
        """Note that a reader waited `get_s` for a small file."""
        self._get_s = min(get_s, self._get_s * _GROWTH)
        self._least_s = min(get_s, self._least_s * _SLOW_GROWTH)

    @property
    def is_far(self) -> bool:
        """True if the service is so far away that readers gain even by files that are merely likely to be read."""
        return self._least_s >= _FAR_S

    @property
    def is_faster(self) -> bool:
        """True if files that are read come faster if none is fetched ahead."""
        are_many = self._readers > max(_FEW_READERS, _AHEAD_PER_S * self._get_s)
        return self._kept_files >= _RECENT_FILES or (are_many and self._next_file_s <= _NEXT_FILE_S)

    def take_sample(self) -> bool:
        """Return whether to leave the next file to its reader."""
        self._until_sample -= 1
        if self._until_sample > 0 or self._readers <= _FEW_READERS:
            return False
        self._until_sample = self._sample_files = min(2 * self._sample_files, _SAMPLE_FILES)
        return True

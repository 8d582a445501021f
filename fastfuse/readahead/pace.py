"""Measures how long GETs take, and how fast a reader reads. Pure: times are arguments.

A part is asked for when the reader is one window before it, and is there one GET's time later. A window that holds what
the reader takes during one GET's time keeps it fed, and a larger one brings nothing: it is the product of bandwidth and
delay, with the reader's own bandwidth.

* `ServicePace` is the service as all files of a mount see it: the time of a GET by its size, with its jitter.
* `ReaderPace` is one reader: the most it took lately in one GET's time, on a clock that stands still while it waits for
  bytes. A reader that pauses and then reads in bursts is therefore known by its bursts.
* `Rest` is reads at random places of one file. They foretell nothing, so each waits for a GET of its own. All of the
  file in memory ends that, but takes time and memory for bytes that maybe nobody reads. This is the ski-rental problem:
  waiting is the rent, fetching the rest is the price. The rest is fetched as soon as reads have waited for as long as
  it takes.

INVARIANT of `Rest`: waits and price together are at most twice the best that could have been done in hindsight, and one
wait. The price may fall meanwhile, as it does with every part that is read. It is the caller's: `stream` sets it higher
than the time that the fetch takes, because bytes that nobody asked for take the network from others.
"""

from collections import deque
from itertools import takewhile

# Sixteen GETs are about one window of one reader: the estimate follows within a round trip or two.
_WEIGHT = 1 / 16
# A reader waits for its parts in order, so a window is made for the latest GET, which is forgotten by half in 90.
_LATE_WEIGHT = 1 / 128
# Only two sizes far apart tell the rate.
_DISTANT_OCTAVES = 3
# One GET that was retried says little about the next, but a service that became slower is believed step by step. The
# first few may differ by more.
_LARGEST_STEP = 4
_FIRST_SAMPLES = 4
# The usual time is the median of so many.
_LATEST = 15

# The reader's own margin: a quarter more than it took at most. After a wait for bytes it is twice that, and then less
# with every part, by half in half a GiB.
_MARGIN = 1.25
_WAITED_MARGIN = 2.0
_MARGIN_WEIGHT = 1 / 64
# The rate of all bytes is believed within a few GETs: an outage is soon over.
_DELIVERY_WEIGHT = 1 / 4
# More than any window.
_ENDLESS_BYTES = 1 << 40
# So many files in a row that were read to their end make it likely that the next one is too.
_WHOLE_FILES = 4
# So many in a row that were left before their middle make it likely that the next one is left where they were. A file
# is taken for left once so many others were begun after its last read, and one more begins. If it is read on after
# all, as where one process takes turns between many files, as many as were begun meanwhile say nothing, up to the most.
_LEFT_FILES = 3
_QUIET_FILES, _MOST_QUIET_FILES = 1, 32
# A smaller GET takes hardly less time.
_LEFT_STEP_BYTES = 128 << 10

# No more GETs are begun ahead than deliver within this time at the rate of the last ones. On a slow link a part that a
# reader waits for takes as long as all that is on its way beside it, and fails if that is longer than a read may take.
_LONGEST_S = 5.0
# This many GETs cost little, and their times vary too much to judge by.
_FEW_GETS = 4


class _Time:
    """The time that GETs of about one size take: on average, usually, and the late ones."""

    __slots__ = ("_latest_s", "late_s", "mean_s", "samples")

    def __init__(self) -> None:
        self.samples = 0
        self._latest_s: deque[float] = deque(maxlen=_LATEST)
        self.mean_s = self.late_s = 0.0

    def add(self, took_s: float) -> None:
        self.samples += 1
        self._latest_s.append(took_s)
        if self.samples > _FIRST_SAMPLES:
            took_s = min(took_s, _LARGEST_STEP * self.mean_s)
        self.mean_s += max(_WEIGHT, 1 / self.samples) * (took_s - self.mean_s)
        self.late_s = max(took_s, self.late_s + _LATE_WEIGHT * (self.mean_s - self.late_s))

    @property
    def usual_s(self) -> float:
        """The median of the latest times, so that one unlucky GET changes little."""
        return sorted(self._latest_s)[(len(self._latest_s) - 1) // 2]


class ServicePace:
    """The GETs of one mount, of whatever file."""

    def __init__(self, first_window_bytes: int = 0) -> None:
        """Begin with the window of a reader that begins a file before anything is known; 0: none is foreseen."""
        # By octave of the size.
        self._times: dict[int, _Time] = {}
        # The time to the first byte, as the shortest GET of all tells it.
        self._least_s = float("inf")
        # The bytes that GETs brought together lately, and how long that took once they began to deliver.
        self._delivered_bytes = self._delivered_s = 0.0
        # What readers needed lately, and how many files in a row they read to the end.
        self._usual_window_bytes = first_window_bytes
        self._whole_files = _WHOLE_FILES if first_window_bytes else 0
        # The readers of large files that began at 0 and are before the middle, least recently read first.
        self._begun: dict[ReaderPace, None] = {}
        # The number of large files that were begun.
        self._begun_files = 0
        # It may be that so many of them are begun between two reads of one.
        self._quiet_files = _QUIET_FILES
        # The latest files in a row were left at these places, before their middle.
        self._left_at: deque[int] = deque(maxlen=_LEFT_FILES)
        # The reader of the next file will likely read so much; 0 if that is not known.
        self.left_bytes = 0

    @property
    def ramp_bytes(self) -> int:
        """The window of a reader that begins a file now, if it will likely read to the end, or else 0."""
        return self._usual_window_bytes if self._whole_files >= _WHOLE_FILES else 0

    @property
    def was_left_early(self) -> bool:
        """True if a large file was left before its middle, and none was read that far since."""
        return bool(self._left_at)

    def closed(self, *, was_whole: bool) -> None:
        """Note that a file of more than a part was closed, read from its first to its last byte or not."""
        self._whole_files = self._whole_files + 1 if was_whole else 0

    def came_to(self, pace: "ReaderPace", position: int, size_bytes: int) -> None:
        """Note that the reader of a large file from its beginning has come to `position` of `size_bytes`."""
        if not pace.position:
            self._begun_files += 1
            quiet = takewhile(lambda other: other.read_at < self._begun_files - self._quiet_files, self._begun)
            for other in [other for other in quiet if not other.is_waiting]:
                self.left(other)
        was_taken_for_left = 0 < 2 * pace.position < size_bytes and pace not in self._begun
        if was_taken_for_left:
            quiet_files = min(self._begun_files - pace.read_at, _MOST_QUIET_FILES)
            self._quiet_files = max(self._quiet_files, quiet_files)
        self._begun.pop(pace, None)
        pace.position, pace.read_at = position, self._begun_files
        is_before_middle = 2 * position < size_bytes
        if is_before_middle:
            self._begun[pace] = None
        if was_taken_for_left or not is_before_middle:
            self._left_at.clear()
            self.left_bytes = 0

    def left(self, pace: "ReaderPace") -> None:
        """Note that the reader of `pace` reads no more, which tells something if it is before the middle."""
        if pace in self._begun:
            del self._begun[pace]
            self._left_at.append(pace.position + -pace.position % _LEFT_STEP_BYTES)
            self.left_bytes = max(self._left_at) if len(self._left_at) == _LEFT_FILES else 0

    def forget(self, pace: "ReaderPace") -> None:
        """Forget the reader of `pace`, which was not left: another one goes on for it."""
        self._begun.pop(pace, None)

    def needed(self, window_bytes: int, *, or_more: bool = False) -> None:
        """Note that `window_bytes` keep a reader fed."""
        usual = self._usual_window_bytes
        if not usual or (or_more and usual < window_bytes):
            self._usual_window_bytes = window_bytes
        elif not or_more:
            self._usual_window_bytes = usual + int(_WEIGHT * (window_bytes - usual))

    def landed(self, size_bytes: int, took_s: float, in_flight: int) -> None:
        """Note that a GET brought `size_bytes` in `took_s`, among `in_flight` on average, itself included."""
        self._times.setdefault(size_bytes.bit_length(), _Time()).add(took_s)
        self._least_s = min(self._least_s, took_s)
        self._delivered_bytes += in_flight * size_bytes - _DELIVERY_WEIGHT * self._delivered_bytes
        self._delivered_s += took_s - self._least_s - _DELIVERY_WEIGHT * self._delivered_s

    def get_s(self, size_bytes: int, *, is_late: bool = True) -> float | None:
        """Return how long a GET of `size_bytes` takes when it `is_late`, or usually; None before any GET.

        It is an upper bound if there was none of this size. A larger one took longer; if all were smaller, it takes as
        much more as two of them tell, or else more in proportion.
        """
        size = size_bytes.bit_length()
        times = self._times
        if not times:
            return None
        nearest = min((other for other in times if other >= size), default=max(times))
        took_s = times[nearest].late_s if is_late else times[nearest].usual_s
        if nearest >= size:
            return took_s
        distant = max((other for other in times if other <= nearest - _DISTANT_OCTAVES), default=None)
        if distant is None:
            return took_s * (1 << size - nearest)
        return took_s + _more_s(size, (distant, times[distant].usual_s), (nearest, times[nearest].usual_s))

    def knows(self, size_bytes: int) -> bool:
        """Return whether a GET of about `size_bytes`, or of more, was measured."""
        return max(self._times, default=0) >= size_bytes.bit_length()

    def fetch_s(self, size_bytes: int, part_bytes: int, in_flight: int) -> float:
        """Return how long `size_bytes` take in parts of at most `part_bytes`, so many of them on their way at once.

        It is an upper bound: what GETs of the best size did that was measured. It is infinite before the first one.
        """
        sizes = {part_bytes, *(1 << size - 1 for size in self._times if size <= part_bytes.bit_length())}
        times_s = ((self.get_s(size, is_late=False), size) for size in sizes)
        rounds = [get_s * max(1.0, size_bytes / (size * in_flight)) for get_s, size in times_s if get_s is not None]
        return min(rounds, default=float("inf"))

    def is_full(self, in_flight: int, size_bytes: int) -> bool:
        """Return whether a GET of so many bytes more than these would come too late."""
        bytes_ahead = (in_flight + 1) * size_bytes
        return in_flight >= _FEW_GETS and bytes_ahead * self._delivered_s > _LONGEST_S * self._delivered_bytes


def _more_s(size: int, first: tuple[int, float], second: tuple[int, float]) -> float:
    """Return how much longer a GET of the octave `size` takes than the second of two, each octave and seconds."""
    (small, small_s), (large, large_s) = first, second
    per_byte_s = max(0.0, large_s - small_s) / ((1 << large) - (1 << small))
    return per_byte_s * ((1 << size) - (1 << large))


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


class ReaderPace:
    """One sequential reader. `limit_bytes` is the window that keeps it fed, None while that is not known."""

    __slots__ = (
        *("_margin", "_peak_bytes", "_service", "_trail", "_waits", "expected_bytes", "limit_bytes", "position"),
        *("ramp_bytes", "read_at"),
    )

    def __init__(self, service: ServicePace, ramp_bytes: int = 0) -> None:
        self._service = service
        # When on its own clock the reader was where, for as long as one GET takes.
        self._trail: deque[tuple[float, int]] = deque()
        self._peak_bytes = 0.0
        self._margin = _WAITED_MARGIN
        self._waits = Waits()
        self.limit_bytes: int | None = None
        # What the limit will be if the reader goes on as it has begun.
        self.expected_bytes = 0
        # The window to begin with; without it, it grows with what is read.
        self.ramp_bytes = ramp_bytes
        # The service notes where a reader from the beginning is, and how many files had been begun at its last read.
        self.position = self.read_at = 0

    @property
    def is_waiting(self) -> bool:
        """True while a read of this reader waits for its bytes."""
        return bool(self._waits)

    def successor(self) -> "ReaderPace":
        """Return the same reader at another place of the file."""
        other = ReaderPace(self._service, self.ramp_bytes)
        other._peak_bytes, other._margin = self._peak_bytes, self._margin
        other.limit_bytes = self.limit_bytes
        return other

    def joined_another(self) -> None:
        """Note that another reader of the file has come to the same place, and goes on for both."""
        self._service.forget(self)

    def came_to_end(self, most_bytes: int) -> None:
        """Note that the file was read to its end. If a GET takes longer, its reader needs what it would have taken."""
        if self.limit_bytes is None and self.expected_bytes:
            self._service.needed(min(int(_MARGIN * self.expected_bytes), most_bytes), or_more=True)

    def waits(self, now_s: float) -> None:
        """Note that a read of this reader waits for its bytes."""
        self._waits.waits(now_s)
        self._margin = _WAITED_MARGIN

    def goes_on(self, now_s: float) -> None:
        """Note that a read that waited does so no more."""
        self._waits.goes_on(now_s)

    def came(self, position: int, part_bytes: int, now_s: float) -> None:
        """Note that the reader has come to another part of `part_bytes`, and has taken all before `position`."""
        get_s = self._service.get_s(part_bytes)
        if get_s is None:
            return
        clock_s = (self._waits.began_s if self._waits else now_s) - self._waits.lost_s
        trail = self._trail
        trail.append((clock_s, position))
        while len(trail) > 2 and trail[1][0] <= clock_s - get_s:
            trail.popleft()
        self._margin += _MARGIN_WEIGHT * (_MARGIN - self._margin)
        span_s = clock_s - trail[0][0]
        if span_s < get_s or not span_s:
            taken = position - trail[0][1]
            self._service.needed(part_bytes + int(self._margin * taken), or_more=True)
            if span_s:
                # What is taken in next to no time may be any number, infinity included.
                self.expected_bytes = part_bytes + int(min(taken * get_s / span_s, _ENDLESS_BYTES))
            return
        # In steps of parts: what was taken since the first step within the time, or else at the rate of the last.
        most = max(position - trail[1][1], (position - trail[0][1]) * get_s / span_s)
        self._peak_bytes += (most - self._peak_bytes) * (1 if most > self._peak_bytes else _WEIGHT)
        self.limit_bytes = part_bytes + int(self._margin * self._peak_bytes)
        self._service.needed(self.limit_bytes)


class Rest(Waits):
    """The waits of reads at random places of one file."""

    times_due = 0

    def begin_if_due(self, fetch_s: float) -> bool:
        """Return whether to fetch the rest now, which takes `fetch_s`; if so, begin the count anew.

        A rest that is due again was evicted. Each time costs twice as much as the time before: otherwise files that do
        not fit into the memory together would evict one another without end.
        """
        if self.lost_s < fetch_s * (1 << self.times_due):
            return False
        self.lost_s = 0.0
        self.times_due += 1
        return True

"""How long GETs take and how fast a reader reads: what a window is made of. Pure: every time is an argument.

A part is asked for when the reader is one window before it, and is there one GET's time later. So a window that holds
what the reader takes during one GET's time at most keeps it fed, and a larger one brings nothing: the product of
bandwidth and delay, with the reader's own bandwidth.

* `ServicePace` is the service as all files of a mount see it: the time of a GET by its size, with its jitter, and how
  many at once are worth having (`load`).
* `ReaderPace` is one reader: the most it has taken lately in one GET's time, on a clock that stands still while the
  reader waits for bytes. A reader that pauses and then reads in bursts is therefore known by its bursts.
"""

from collections import deque
from itertools import product

from fastfuse.readahead.load import Load

__all__ = ["ReaderPace", "ServicePace"]

# Sixteen GETs are about one window of one reader: the estimate follows within a round trip or two. (TCP takes an
# eighth, with fewer samples per round trip; RFC 6298.)
_WEIGHT = 1 / 16
# A reader waits for each of its parts in order, and with twenty on their way one in fifty that is late is always among
# them: so a window is made for the latest, which is forgotten by half in 90 GETs.
_LATE_WEIGHT = 1 / 128
# The least time is that of so many GETs, and forgotten in about a thousand.
_LEAST_SAMPLES = 4
_LEAST_WEIGHT = 1 / 1024
# What smaller GETs take tells of a larger one (256 KiB of 8 MiB), but not that of a few pages; and only two sizes far
# apart tell the rate, or else what is left of a few late ones does.
_SIMILAR_OCTAVES = 5
_DISTANT_OCTAVES = 3
# One GET that was retried says little about the next, but a service that became slower is believed step by step.
_LARGEST_STEP = 4

# The reader's own margin: what it took at most, and a quarter; twice that after it had to wait for bytes, and then
# less with every part, by half in half a GiB.
_MARGIN = 1.25
_WAITED_MARGIN = 2.0
_MARGIN_WEIGHT = 1 / 64
# More than any window.
_ENDLESS_BYTES = 1 << 40
# So many files in a row that were read to their end make it likely that the next one is too.
_WHOLE_FILES = 4


class _Time:
    """How long GETs of about one size take: on average, the late ones, and when there were few of them."""

    __slots__ = ("late_s", "least_s", "mean_s", "samples")

    def __init__(self) -> None:
        self.samples = 0
        self.mean_s = self.late_s = 0.0
        self.least_s = float("inf")

    def add(self, took_s: float) -> None:
        self.samples += 1
        if self.samples > _LEAST_SAMPLES:
            took_s = min(took_s, _LARGEST_STEP * self.mean_s)
        self.mean_s += max(_WEIGHT, 1 / self.samples) * (took_s - self.mean_s)
        self.late_s = max(took_s, self.late_s + _LATE_WEIGHT * (self.mean_s - self.late_s))
        if self.samples >= _LEAST_SAMPLES:
            self.least_s = min(self.least_s, self.mean_s)
            self.least_s += _LEAST_WEIGHT * (self.mean_s - self.least_s)


class ServicePace:
    """The GETs of one mount, of whatever file."""

    __slots__ = ("_has_waited", "_load", "_times", "_usual_window_bytes", "_whole_files", "was_left_early")

    def __init__(self, first_window_bytes: int = 0) -> None:
        """`first_window_bytes`: the window of who opens a file before anything is known; 0: none is foreseen."""
        # By octave of the size.
        self._times: dict[int, _Time] = {}
        self._load = Load()
        # Whether a reader has waited since a GET landed last.
        self._has_waited = False
        # What readers needed lately, and how many files in a row they read to the end.
        self._usual_window_bytes = first_window_bytes
        self._whole_files = _WHOLE_FILES if first_window_bytes else 0
        # Whether the file closed last was not read to its end.
        self.was_left_early = False

    @property
    def ramp_bytes(self) -> int:
        """The window of who opens a file now, if it is likely that it is read to the end; or else 0."""
        return self._usual_window_bytes if self._whole_files >= _WHOLE_FILES else 0

    def waited(self) -> None:
        """A reader had to wait for bytes."""
        self._has_waited = True

    def closed(self, *, was_whole: bool) -> None:
        """A file of more than a part was closed, read from its first to its last byte or not."""
        self._whole_files = self._whole_files + 1 if was_whole else 0
        self.was_left_early = not was_whole

    def needed(self, window_bytes: int, *, or_more: bool = False) -> None:
        """A reader is kept fed by `window_bytes`."""
        usual = self._usual_window_bytes
        if not usual or (or_more and usual < window_bytes):
            self._usual_window_bytes = window_bytes
        elif not or_more:
            self._usual_window_bytes = usual + int(_WEIGHT * (window_bytes - usual))

    def landed(self, size_bytes: int, took_s: float, in_flight: int) -> None:
        """A GET brought `size_bytes` in `took_s`, among `in_flight` on average, itself included."""
        size = size_bytes.bit_length()
        self._times.setdefault(size, _Time()).add(took_s)
        slowness = took_s / min(took_s, self._alone_s(size)) if took_s > 0 else 1.0
        self._load.landed(size_bytes, took_s, in_flight, slowness, is_awaited=self._has_waited)
        self._has_waited = False

    def get_s(self, size_bytes: int) -> float | None:
        """How long a GET of `size_bytes` takes when it is late; None before the first one of any size.

        An upper bound where there was none of this size: a larger one took longer; and if all were smaller, it is by
        as much more as they tell, or else in proportion.
        """
        size = size_bytes.bit_length()
        times = self._times
        if not times:
            return None
        nearest = min((other for other in times if other >= size), default=max(times))
        late_s = times[nearest].late_s
        if nearest >= size:
            return late_s
        distant = max((other for other in times if other <= nearest - _DISTANT_OCTAVES), default=None)
        if distant is None:
            return late_s * (1 << size - nearest)
        return late_s + _more_s(size, (distant, times[distant].mean_s), (nearest, times[nearest].mean_s))

    def _alone_s(self, size: int) -> float:
        """How long a GET of the octave `size` takes at least; large ones may have been seen among many others only."""
        times = self._times
        least_s = times[size].least_s
        similar = range(size - _SIMILAR_OCTAVES, size)
        smaller = [other for other in times if other in similar and times[other].samples >= _LEAST_SAMPLES]
        for first, second in product(smaller, smaller):
            if second - first >= _DISTANT_OCTAVES:
                first_s, second_s = times[first].least_s, times[second].least_s
                least_s = min(least_s, second_s + _more_s(size, (first, first_s), (second, second_s)))
        return least_s

    def is_full(self, in_flight: int) -> bool:
        """Whether one more GET than these would only make the others take longer."""
        limit = self._load.limit
        return limit is not None and in_flight >= limit


def _more_s(size: int, first: tuple[int, float], second: tuple[int, float]) -> float:
    """How much longer than the second of two GETs, octave and seconds of each, one of the octave `size` takes."""
    (small, small_s), (large, large_s) = first, second
    per_byte_s = max(0.0, large_s - small_s) / ((1 << large) - (1 << small))
    return per_byte_s * ((1 << size) - (1 << large))


class ReaderPace:
    """One sequential reader. `limit_bytes` is the window that keeps it fed; `None` while that is not known."""

    __slots__ = (
        *("_margin", "_peak_bytes", "_service", "_trail", "_wait_began_s", "_waited_s", "_waiting"),
        *("expected_bytes", "limit_bytes", "ramp_bytes"),
    )

    def __init__(self, service: ServicePace, ramp_bytes: int = 0) -> None:
        self._service = service
        # Where the reader was when on its own clock, for as long as one GET takes: the oldest is about that old.
        self._trail: deque[tuple[float, int]] = deque()
        self._peak_bytes = 0.0
        self._margin = _WAITED_MARGIN
        self._waiting = 0
        self._waited_s = self._wait_began_s = 0.0
        self.limit_bytes: int | None = None
        # What the limit will be if the reader goes on as it has begun.
        self.expected_bytes = 0
        # The window to begin with; without it, it grows with what is read.
        self.ramp_bytes = ramp_bytes

    def successor(self) -> "ReaderPace":
        """The same reader at another place of the file."""
        other = ReaderPace(self._service, self.ramp_bytes)
        other._peak_bytes, other._margin = self._peak_bytes, self._margin
        other.limit_bytes = self.limit_bytes
        return other

    def came_to_end(self, most_bytes: int) -> None:
        """The file was read to its end; if in less time than a GET takes, its reader needs what it would have taken."""
        if self.limit_bytes is None and self.expected_bytes:
            self._service.needed(min(int(_MARGIN * self.expected_bytes), most_bytes), or_more=True)

    def waits(self, now_s: float) -> None:
        """A read of this reader finds that its bytes are not there."""
        if not self._waiting:
            self._wait_began_s = now_s
        self._waiting += 1
        self._margin = _WAITED_MARGIN
        self._service.waited()

    def goes_on(self, now_s: float) -> None:
        """A read that waited does so no more."""
        self._waiting -= 1
        if not self._waiting:
            self._waited_s += now_s - self._wait_began_s

    def came(self, position: int, part_bytes: int, now_s: float) -> None:
        """The reader has taken bytes of another part, and all before `position`; its parts are of `part_bytes`."""
        get_s = self._service.get_s(part_bytes)
        if get_s is None:
            return
        clock_s = (self._wait_began_s if self._waiting else now_s) - self._waited_s
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

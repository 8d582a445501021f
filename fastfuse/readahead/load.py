"""How many GETs at once are worth having. Pure: it counts GETs, and their times are arguments.

Where a link or the service is at its limit, more GETs only take longer, each of them: the same bytes per second, for
more memory and for longer waits of whoever else reads. A longer time alone says nothing (the service may have become
slower), so it is tried: half as many, and if they bring as much together, it stays at that, and from time to time
twice as many are tried. If not, the next trial is twice as far away.
"""

__all__ = ["Load"]

# The mean of so many GETs is good to a few per cent, with times that vary by a quarter.
_TRIAL = 16
# A verdict holds for so many; where one trial after the other changes nothing, for up to so many times that.
_VERDICT = 128
_LONGEST_QUIET = 8
# Worth a trial: GETs that take half as long again as they do alone.
_SUSPECT_RATIO = 1.5
# ... while readers wait for every second of them: a reader that is kept fed has no more than it needs.
_SUSPECT_AWAITED = 0.5
# As good: but for a twentieth.
_AS_GOOD = 0.95
# A limit that would have to be doubled for this many more is none.
_NEEDED_RATIO = 1.25
# No fewer than these: they cost little, and their times vary too much to judge by.
_LEAST = 4


class Load:
    """The GETs of a mount. `limit` is how many at once are enough, or None where nothing says so."""

    __slots__ = (
        "_awaited",
        "_count",
        "_in_flight",
        "_quiet",
        "_rate",
        "_size",
        "_slowness",
        "_strange",
        "_trial",
        "limit",
    )

    def __init__(self) -> None:
        self.limit: int | None = None
        # Only GETs of one size, by octave, can be compared: those of full parts.
        self._size = self._strange = 0
        # The trial of another limit: the limit before, and the bytes per second then.
        self._trial: tuple[int | None, float] | None = None
        # Of the GETs that tell something of this limit (below zero: those still to be left out): means over the last.
        self._count = 0
        self._slowness = self._awaited = self._rate = self._in_flight = 0.0
        self._quiet = 1

    def landed(
        self, size_bytes: int, took_s: float, in_flight: int, slowness: float, *, is_awaited: bool = True
    ) -> None:
        """A GET brought `size_bytes` in `took_s`, among `in_flight` on average.

        `slowness` is how many times as long that is as it would have taken alone; `is_awaited` says if a reader has
        waited since the last one.
        """
        if not self._is_comparable(size_bytes) or took_s <= 0:
            return
        self._count += 1
        if self._count <= 0:
            return  # it began before the limit was changed, or when its neighbours had
        weight = 1 / min(self._count, _TRIAL)
        self._slowness += weight * (slowness - self._slowness)
        self._awaited += weight * (is_awaited - self._awaited)
        self._rate += weight * (in_flight * size_bytes / took_s - self._rate)
        self._in_flight += weight * (in_flight - self._in_flight)
        if self._count >= _TRIAL:
            self._judge()

    def _is_comparable(self, size_bytes: int) -> bool:
        size = size_bytes.bit_length()
        if size == self._size:
            self._strange = 0
            return True
        self._strange += 1
        if size < self._size and self._strange < _VERDICT:
            return False
        # Parts are larger now, or have been smaller for long.
        self.__init__()  # type: ignore[misc]
        self._size = size
        return True

    @property
    def _is_suspect(self) -> bool:
        is_slow = self._slowness > _SUSPECT_RATIO
        return is_slow and self._awaited > _SUSPECT_AWAITED and self._in_flight >= 2 * _LEAST

    def _judge(self) -> None:
        if self._trial is None:
            if self.limit is not None:
                if self._count >= self._quiet * _VERDICT:
                    self._try(2 * self.limit)
            # By then all began in this state, so that their times and their number go together.
            elif self._is_suspect and self._count >= _TRIAL + 2 * self._in_flight:
                self._try(round(self._in_flight) // 2)
            return
        before, rate = self._trial
        self._trial = None
        assert self.limit is not None
        if before is None or self.limit < before:
            if self._rate < _AS_GOOD * rate:
                self._quiet = min(2 * self._quiet, _LONGEST_QUIET)
                self._settle(before)
            elif self._is_suspect:
                self._rate = max(self._rate, rate)  # so that small losses do not add up
                self._try(self.limit // 2)
            else:
                self._quiet = 1
                self._settle(self.limit)
        elif self._in_flight < _NEEDED_RATIO * before:
            self._settle(None)  # nobody wants more
        elif _AS_GOOD * self._rate < rate:
            self._quiet = min(2 * self._quiet, _LONGEST_QUIET)
            self._settle(before)
        else:
            self._try(2 * self.limit)

    def _try(self, limit: int) -> None:
        self._trial = self.limit, self._rate
        self.limit = limit
        # Those that began before, and those that then began beside them.
        self._start(round(self._in_flight) + limit)

    def _settle(self, limit: int | None) -> None:
        self.limit = limit
        self._start(2 * round(self._in_flight) if limit is not None else self._quiet * _VERDICT)

    def _start(self, left_out: int) -> None:
        self._count = -left_out
        self._slowness = self._awaited = self._rate = self._in_flight = 0.0

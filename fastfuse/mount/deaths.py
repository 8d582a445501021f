"""When to start another worker after a death, and when there is no point in it. Pure: it is told the time."""

from collections import deque

from fastfuse.errors import ServiceError

__all__ = ["DeathRecord"]

# Crash loop: this many deaths within this time, and no request answered between the first and the last.
_MAX_DEATHS = 5
_DEATHS_WITHIN_S = 60.0
# A worker that dies at once is not started again at once: 0, then 50 ms doubling, per death in the last minute.
_FIRST_PAUSE_S = 0.05
_MAX_PAUSE_S = 2.0


class DeathRecord:
    """The deaths of the last minute."""

    def __init__(self) -> None:
        # (when, requests answered until then)
        self._deaths: deque[tuple[float, int]] = deque()

    def note(self, how: str, *, now_s: float, answered: int) -> float:
        """Count a death; the seconds to wait before another worker is started. `how` it died is for the error.

        Raises:
            ServiceError: the workers die one after the other, and nothing gets served.
        """
        self._deaths.append((now_s, answered))
        while self._deaths[0][0] < now_s - _DEATHS_WITHIN_S:
            self._deaths.popleft()
        if len(self._deaths) >= _MAX_DEATHS and answered == self._deaths[-_MAX_DEATHS][1]:
            raise ServiceError(
                f"the worker died {_MAX_DEATHS} times in a minute without serving anything; last, {how}",
                hint="the log has the reason; the mount is taken down",
            )
        if len(self._deaths) == 1:
            return 0.0
        # The exponent is bounded by the deaths of a minute, each of which took its pause.
        return min(_FIRST_PAUSE_S * 2.0 ** (len(self._deaths) - 2), _MAX_PAUSE_S)

"""Decide when to start another worker after a death, and when to give up. Pure: the caller passes the time."""

from collections import deque

from fastfuse.errors import ServiceError

__all__ = ["DeathRecord"]

# Crash loop: this many deaths within this time, and no request answered between the first and the last.
_MAX_DEATHS = 5
_DEATHS_WITHIN_S = 60.0
# The pause after each further death in the last minute: none after the first, then 50 ms, doubling.
_FIRST_PAUSE_S = 0.05
_MAX_PAUSE_S = 2.0


class DeathRecord:
    """The deaths of the last minute."""

    def __init__(self) -> None:
        # (when, requests answered until then)
        self._deaths: deque[tuple[float, int]] = deque()

    def note(self, how: str, *, now_s: float, answered: int) -> float:
        """Count a death and return the seconds to wait before the next start; `how` goes into the error.

        Raises:
            ServiceError: one worker dies after the other, and no request is served.
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

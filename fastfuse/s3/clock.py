"""The time by which requests are signed.

S3 refuses a signature that is a quarter of an hour off (``RequestTimeTooSkewed``). A host whose clock was set wrong, or
that was suspended, could read nothing. S3's replies carry the right time (``Date``), which counts from then on.
"""

import logging
import time
from collections.abc import Callable
from math import inf

from fastfuse.s3.checks import parse_date

_log = logging.getLogger(__name__)

# No service refuses less, and `Date` has whole seconds.
_AGREES_S = 60.0
# What the clock of a service may show. S3 began in 2006; a clock that is a century ahead is broken.
_YEARS = range(2006, 2106)
# For so long after a correction, what is refused was signed before it.
_LATE_S = 10.0


class ServiceClock:
    """This machine's clock, until the service refuses what was signed by it, and the service's clock then."""

    def __init__(self, machine_s: Callable[[], float] = time.time) -> None:
        self._machine_s = machine_s
        self._ahead_s = 0.0
        self._corrected_s = -inf

    def now_s(self) -> float:
        """Return the Unix time with which the next request is signed."""
        return self._machine_s() + self._ahead_s

    def correct(self, date: str) -> bool:
        """Take over the `Date` of a reply that refused the time of a request; return whether others may succeed now.

        The reply may have refused something else: a time that agrees changes nothing.
        """
        at = parse_date(date)
        if at is None or at.year not in _YEARS:
            return False
        ahead_s = at.timestamp() - self._machine_s()
        if abs(ahead_s - self._ahead_s) >= _AGREES_S:
            self._ahead_s = ahead_s if abs(ahead_s) >= _AGREES_S else 0.0
            self._corrected_s = time.monotonic()
            if self._ahead_s:
                _log.warning(
                    "this machine's clock is %.0f s %s the service's, which refuses requests for that: they are signed "
                    "by the service's clock from now on; set this machine's",
                    *(abs(self._ahead_s), "behind" if self._ahead_s > 0 else "ahead of"),
                )
            else:
                _log.info("this machine's clock is right again: requests are signed by it")
        return time.monotonic() - self._corrected_s < _LATE_S

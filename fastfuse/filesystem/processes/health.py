"""Decide whether a worker hangs, whether and when another follows a dead one, and whether reads fail. Pure."""

from collections.abc import Mapping
from math import inf

from fastfuse.errors import ServiceError

# The worker's loop counts a beat so often.
BEAT_EVERY_S = 1.0
# A worker without a beat for so long is replaced, and a reader waits for less than 10 s. The longest that a loop was
# seen to stand still is the swap of a table of a million files: 0.1 s.
HANGS_AFTER_S = 6.0
# A longer time between two looks was not the worker's: the machine slept, or this process did not run.
LONGEST_LOOK_S = 2.0

# Crash loop: this many deaths within this time, and no request answered between the first and the last. Kills from
# outside count only once nothing was answered for as long: on a busy machine, a worker may be killed before it serves.
_MAX_DEATHS = 5
DEATHS_WITHIN_S = 60.0
# The pause after each further death in the last minute: none after the first, then 50 ms, doubling. Readers wait
# meanwhile, so it is at most this, and this share of a read's deadline.
_FIRST_PAUSE_S = 0.05
_MAX_PAUSE_S = 5.0
_MAX_PAUSE_SHARE = 0.25

# A request that is tried again is mostly answered sooner, and whoever probes a mount asks more than once.
_LOOK_BACK_S = 10.0


class Heartbeat:
    """Watches one worker after the other."""

    def __init__(self) -> None:
        self._cpu_s = 0.0
        self.restart(0.0)

    def restart(self, now_s: float) -> None:
        """Watch a worker that has just begun to start, or to serve."""
        self._beats = -1
        self._looked_s = now_s
        self.silent_s = 0.0

    def is_hung(self, *, beats: int, cpu_s: float, state: str, now_s: float) -> bool:
        """Return whether the worker has to be replaced.

        `beats` and the CPU time `cpu_s` are its own since it began; `state` is that of its first thread. One that is
        ready to run (R) but got hardly any of the time does not hang: the machine is busy.
        """
        if beats != self._beats:
            self._beats, self._cpu_s, self._looked_s, self.silent_s = beats, cpu_s, now_s, 0.0
            return False
        self.silent_s += min(now_s - self._looked_s, LONGEST_LOOK_S)
        self._looked_s = now_s
        is_starved = state == "R" and cpu_s - self._cpu_s < self.silent_s / 4
        return self.silent_s >= HANGS_AFTER_S and not is_starved


class DeathRecord:
    """The deaths of the last minute, and those before it since which somebody waits for an answer."""

    def __init__(self, read_deadline_s: float = inf) -> None:
        self._max_pause_s = min(_MAX_PAUSE_S, _MAX_PAUSE_SHARE * read_deadline_s)
        # (when, requests answered until then, whether the worker was blameless)
        self._deaths: list[tuple[float, int, bool]] = []
        # When the first one died after the last answer, or after nobody waited for one.
        self._unserved_since_s = 0.0

    def note(self, how: str, *, now_s: float, answered: int, is_blameless: bool, is_waited_for: bool) -> float:
        """Count a death and return the seconds to wait before the next start; `how` goes into the error.

        An answer `is_waited_for` if a request waits, or if the worker did not come to serve.

        Raises:
            ServiceError: one worker dies after the other, and no request is served.
        """
        if not is_waited_for or not self._deaths or answered != self._deaths[-1][1]:
            self._unserved_since_s = now_s
        from_s = now_s - DEATHS_WITHIN_S
        self._deaths = [
            death for death in self._deaths if death[0] >= from_s or (is_waited_for and death[1] == answered)
        ]
        self._deaths.append((now_s, answered, is_blameless))
        unserved = [is_blameless for _, until_then, is_blameless in self._deaths if until_then == answered]
        is_long = now_s - self._unserved_since_s >= DEATHS_WITHIN_S
        if (len(unserved) if is_long else unserved.count(False)) >= _MAX_DEATHS:
            raise ServiceError(
                f"the worker died {len(unserved)} times without serving anything; last, {how}",
                hint="the log has the reason; the mount is taken down",
            )
        if len(self._deaths) == 1:
            return 0.0
        # The exponent is bounded by the deaths of a minute, each of which took its pause.
        return min(_FIRST_PAUSE_S * 2.0 ** (len(self._deaths) - 2), self._max_pause_s)


class FailingReads:
    """The reads of the last seconds, looked at once a second. docs/OPERATIONS.md states the rule, for ``/healthz``."""

    def __init__(self, delivered: int, failed: Mapping[str, int]) -> None:
        """Begin with what was delivered before, and with the reads that had failed, by errno."""
        self.delivered, self._failed = delivered, failed
        self._delivered_at_s = self._failed_at_s = -inf
        # The first failure after the last delivery, and what had failed before it.
        self._since_s: float | None = None
        self._failed_before = failed

    def look(self, now_s: float, delivered: int, failed: Mapping[str, int], *, trouble_s: float) -> bool:
        """Return whether nothing was delivered in the last 10 s, though a read failed or requests are tried that long.

        `delivered` grows with each GET and each read that succeeds; requests have been tried again for `trouble_s`.
        """
        if delivered > self.delivered:
            self._delivered_at_s, self._since_s = now_s, None
        if failed != self._failed:
            self._failed_at_s = now_s
            if self._since_s is None:
                self._since_s, self._failed_before = now_s, self._failed
        self.delivered, self._failed = delivered, failed
        if now_s - self._delivered_at_s <= _LOOK_BACK_S:
            return False
        return now_s - self._failed_at_s <= _LOOK_BACK_S or trouble_s > _LOOK_BACK_S

    def failures(self, now_s: float) -> tuple[float, dict[str, int]]:
        """Return for how many seconds reads have failed without a delivery between, and how many by errno."""
        if self._since_s is None:
            return 0.0, {}
        grown = {name: count - self._failed_before[name] for name, count in self._failed.items()}
        return now_s - self._since_s, {name: count for name, count in grown.items() if count}

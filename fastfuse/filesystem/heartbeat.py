"""Decides that a worker hangs. Pure: the caller passes the time and what it sees of the worker."""

__all__ = ["BEAT_EVERY_S", "HANGS_AFTER_S", "Heartbeat"]

# The worker's loop counts a beat so often.
BEAT_EVERY_S = 1.0
# A worker without a beat for so long is replaced, and a reader waits for less than 10 s. The longest that a loop was
# seen to stand still is the swap of a table of a million files: 0.1 s.
HANGS_AFTER_S = 6.0
# A longer time between two looks was not the worker's: the machine slept, or this process did not run.
_LONGEST_LOOK_S = 2.0


class Heartbeat:
    """Watches one worker after the other."""

    def __init__(self, hangs_after_s: float = HANGS_AFTER_S) -> None:
        self._hangs_after_s = hangs_after_s
        self._beats = -1
        self._cpu_s = 0.0
        self._looked_s = 0.0
        self.silent_s = 0.0

    def restart(self, now_s: float) -> None:
        """Watch a worker that has just begun to serve."""
        self._beats = -1
        self._looked_s = now_s
        self.silent_s = 0.0

    def is_hung(self, *, beats: int, cpu_s: float, wants_cpu: bool, now_s: float) -> bool:
        """Return whether the worker has to be replaced.

        `beats` and the CPU time `cpu_s` are its own since it began. One that `wants_cpu`, is ready to run but got
        hardly any of the time, does not hang: the machine is busy.
        """
        if beats != self._beats:
            self._beats, self._cpu_s, self._looked_s, self.silent_s = beats, cpu_s, now_s, 0.0
            return False
        self.silent_s += min(now_s - self._looked_s, _LONGEST_LOOK_S)
        self._looked_s = now_s
        is_starved = wants_cpu and cpu_s - self._cpu_s < self.silent_s / 4
        return self.silent_s >= self._hangs_after_s and not is_starved

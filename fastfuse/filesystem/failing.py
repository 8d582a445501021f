"""Do reads fail now? Pure: the worker looks once a second. docs/OPERATIONS.md states the rule, for ``/healthz``."""

from collections.abc import Mapping
from math import inf

__all__ = ["FailingReads"]

# A request that is tried again is mostly answered sooner, and whoever probes a mount asks more than once.
_LOOK_BACK_S = 10.0


class FailingReads:
    """The reads of the last seconds: was anything delivered, and did any fail?"""

    def __init__(self, delivered: int, failed: Mapping[str, int]) -> None:
        """Begin with what was delivered before, and with the reads that had failed, by errno."""
        self._delivered, self._failed = delivered, failed
        self._delivered_at_s = self._failed_at_s = -inf
        # The first failure after the last delivery, and what had failed before it.
        self._since_s: float | None = None
        self._failed_before = failed

    def look(self, now_s: float, delivered: int, failed: Mapping[str, int], *, trouble_s: float) -> bool:
        """Return whether nothing was delivered in the last 10 s, though a read failed or requests are tried that long.

        `delivered` grows with each GET and each read that succeeds; requests have been tried again for `trouble_s`.
        """
        if delivered > self._delivered:
            self._delivered_at_s, self._since_s = now_s, None
        if failed != self._failed:
            self._failed_at_s = now_s
            if self._since_s is None:
                self._since_s, self._failed_before = now_s, self._failed
        self._delivered, self._failed = delivered, failed
        if now_s - self._delivered_at_s <= _LOOK_BACK_S:
            return False
        return now_s - self._failed_at_s <= _LOOK_BACK_S or trouble_s > _LOOK_BACK_S

    def failures(self, now_s: float) -> tuple[float, dict[str, int]]:
        """Return for how many seconds reads have failed without a delivery between, and how many by errno."""
        if self._since_s is None:
            return 0.0, {}
        grown = {name: count - self._failed_before[name] for name, count in self._failed.items()}
        return now_s - self._since_s, {name: count for name, count in grown.items() if count}

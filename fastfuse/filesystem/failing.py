"""Do reads fail now? Pure: the worker looks once a second. docs/OPERATIONS.md states the rule, for ``/healthz``."""

from math import inf

__all__ = ["FailingReads"]

# A request that is tried again is mostly answered sooner, and whoever probes a mount asks more than once.
_LOOK_BACK_S = 10.0


class FailingReads:
    """The GETs of the last seconds: did any deliver, and did any fail?"""

    def __init__(self, delivered: int, failed: int) -> None:
        """Begin with the GETs that had delivered and failed before."""
        self._delivered, self._failed = delivered, failed
        self._delivered_at_s = self._failed_at_s = -inf

    def look(self, now_s: float, delivered: int, failed: int, *, trouble_s: float) -> bool:
        """Return whether no GET delivered in the last 10 s, though one failed in that time or is tried for as long.

        `delivered` and `failed` count GETs; requests have been tried again for `trouble_s`.
        """
        if delivered > self._delivered:
            self._delivered_at_s = now_s
        if failed > self._failed:
            self._failed_at_s = now_s
        self._delivered, self._failed = delivered, failed
        if now_s - self._delivered_at_s <= _LOOK_BACK_S:
            return False
        return now_s - self._failed_at_s <= _LOOK_BACK_S or trouble_s > _LOOK_BACK_S

"""Decide which failures of readers are findings. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from bench.soak.data import MOVING
from bench.soak.disturbances import DISTURBANCES, Window
from bench.soak.readers import SHORT, WRONG, Failure

__all__ = ["causes", "unexpected", "unsettled"]

# What is left of a disturbance when it is over: retries under way, and readahead that failed and is asked for again.
_AFTER_S = 1.5
# Without FUSE_RESEND a mount is made anew after a death; its readers get whatever the kernel says (L3).
_WITHOUT_RESEND = frozenset({"EIO", "ENOTCONN", "ECONNABORTED", "ENODEV", "ESTALE"})


def causes(failure: Failure, windows: Iterable[Window]) -> list[str]:
    """Return the disturbances that a failure may be due to, quiet times left out."""
    if _is_of_a_change(failure):
        return ["the object has changed"]
    return [
        window.name
        for window in windows
        if window.name != "quiet"
        if window.started_s <= failure.ended_s and failure.started_s <= window.ended_s + _AFTER_S
    ]


def _is_of_a_change(failure: Failure) -> bool:
    """Return whether a moving object was replaced or is gone, as it may be at any time (D2, L6)."""
    return failure.key.startswith(MOVING) and failure.name in ("ESTALE", "ENOENT", SHORT)


def _is_allowed(failure: Failure, windows: Sequence[Window], *, can_resend: bool) -> bool:
    if failure.name == WRONG:
        return False
    if _is_of_a_change(failure):
        return True
    around = causes(failure, windows)
    # A directory that is listed while the view is swapped (N6).
    if failure.manner == "found" and "refresh" in around and failure.name == "ESTALE":
        return True
    if not can_resend and "worker killed" in around and failure.name in _WITHOUT_RESEND:
        return True
    allowed = frozenset[str]().union(*(DISTURBANCES[name].allowed for name in around))
    # A short read is the kernel's way to say that the next one fails.
    return bool(allowed) if failure.name == SHORT else failure.name in allowed


def unexpected(
    failures: Iterable[Failure], windows: Sequence[Window], *, can_resend: bool
) -> list[tuple[Failure, list[str]]]:
    """Return the failures that no clause allows, each with what was going on."""
    return [
        (failure, causes(failure, windows))
        for failure in failures
        if not _is_allowed(failure, windows, can_resend=can_resend)
    ]


def unsettled(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """Return what the mount holds more of than before."""
    return [
        f"{name}: {before.get(name, 0):g} before, {count:g} after"
        for name, count in after.items()
        if count > before.get(name, 0)
    ]

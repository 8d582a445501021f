"""Tells the progress of long work, at most a line every five seconds."""

import logging
import time
from collections.abc import Callable

from fastfuse.index.listing.acceptance import ListingProgress, ProgressCallback
from fastfuse.index.sources.uri import S3Uri

_log = logging.getLogger(__name__)

_LOG_EVERY_S = 5.0


def listing_progress(source: S3Uri, count: Callable[[int], None]) -> ProgressCallback:
    """Return the callback that logs the progress of the listing of `source`, and calls `count` with its objects."""
    started_s = time.monotonic()
    show = progress_line(f"listing {source}")

    def report(listed: ListingProgress) -> None:
        count(listed.objects)
        show(lambda: _figures(listed, started_s))

    return report


def progress_line(title: str, tell: Callable[[str], object] = _log.info) -> Callable[[Callable[[], str]], None]:
    """Return the function that tells figures of some work; it makes their text only if that is due."""
    told_s = time.monotonic()

    def show(figures: Callable[[], str]) -> None:
        nonlocal told_s
        now_s = time.monotonic()
        if now_s - told_s >= _LOG_EVERY_S:
            told_s = now_s
            tell(f"{title}: {figures()}")

    return show


def _figures(listed: ListingProgress, started_s: float) -> str:
    rate = listed.objects / (time.monotonic() - started_s)
    share = "" if listed.share is None else f" (about {listed.share:.0%})"
    return (
        f"{listed.objects:,} objects{share}, {rate:,.0f}/s, "
        f"{listed.in_flight} requests in flight, {listed.throttled} throttled"
    )

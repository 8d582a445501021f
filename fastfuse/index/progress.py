"""Shows the progress of a listing: one redrawn line on a terminal, a log line every ten seconds elsewhere."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fastfuse.index.listing.acceptance import ListingProgress, ProgressCallback
from fastfuse.index.sources.uri import S3Uri

__all__ = ["load_progress", "shown_progress"]

_log = logging.getLogger(__name__)

# The pause between two progress lines without a terminal.
_LOG_EVERY_S = 10.0


@contextmanager
def shown_progress(source: S3Uri) -> Iterator[ProgressCallback]:
    """Yield the callback that shows the progress of the listing of `source`."""
    started_s = time.monotonic()
    if sys.stderr.isatty():
        from fastfuse.index.progress_line import redrawn_line

        with redrawn_line(f"listing {source}") as redraw:
            if redraw is not None:
                yield lambda listed: redraw(f"{_figures(listed, started_s)}, {source}")
                return
    yield _LoggedProgress(source, started_s)


def load_progress() -> None:
    """Load what a redrawn line needs, for a process that may load nothing later; daemons do without it."""
    if sys.stderr.isatty():
        from fastfuse.index.progress_line import load_names

        load_names()


class _LoggedProgress:
    def __init__(self, source: S3Uri, started_s: float) -> None:
        self._source = source
        self._started_s = self._logged_s = started_s

    def __call__(self, listed: ListingProgress) -> None:
        now_s = time.monotonic()
        if now_s - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = now_s
            _log.info("listing %s: %s", self._source, _figures(listed, self._started_s))


def _figures(listed: ListingProgress, started_s: float) -> str:
    elapsed_s = time.monotonic() - started_s
    rate = f"{listed.objects / elapsed_s:,.0f}" if elapsed_s else "?"
    share = "" if listed.share is None else f" (about {listed.share:.0%})"
    return (
        f"{listed.objects:,} objects{share}, {rate}/s, "
        f"{listed.in_flight} requests in flight, {listed.throttled} throttled"
    )

"""Shows the progress of long work: one redrawn line on a terminal, a log line every ten seconds elsewhere."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastfuse.index.listing.acceptance import ListingProgress, ProgressCallback
from fastfuse.index.sources.uri import S3Uri

_log = logging.getLogger(__name__)

# The pause between two progress lines without a terminal.
_LOG_EVERY_S = 10.0


@contextmanager
def shown_progress(source: S3Uri, count: Callable[[int], None]) -> Iterator[ProgressCallback]:
    """Yield the callback that shows the progress of the listing of `source`, and calls `count` with its objects."""
    started_s = time.monotonic()
    with shown_line("listing", str(source)) as show:

        def report(listed: ListingProgress) -> None:
            count(listed.objects)
            show(lambda: _figures(listed, started_s))

        yield report


@contextmanager
def shown_line(work: str, what: str) -> Iterator[Callable[[Callable[[], str]], None]]:
    """Yield the function that shows figures of some `work` on `what`; it makes their text only if that is shown."""
    if load_progress():
        from fastfuse.terminal import redrawn_line

        with redrawn_line(f"{work} {what}") as redraw:
            if redraw is not None:
                yield lambda figures: redraw(f"{figures()}, {what}")
                return
    yield _logged_line(f"{work} {what}")


def load_progress() -> bool:
    """Load what a redrawn line needs, for a process that may load nothing later; return False where there is none.

    Daemons do without it, and so does a refresh after an upgrade has removed the files of this program.
    """
    if not sys.stderr.isatty():
        return False
    try:
        from fastfuse.terminal import load_line  # rich costs every start

        load_line()
    except ImportError:
        return False
    return True


def _logged_line(title: str) -> Callable[[Callable[[], str]], None]:
    logged_s = time.monotonic()

    def show(figures: Callable[[], str]) -> None:
        nonlocal logged_s
        now_s = time.monotonic()
        if now_s - logged_s >= _LOG_EVERY_S:
            logged_s = now_s
            _log.info("%s: %s", title, figures())

    return show


def _figures(listed: ListingProgress, started_s: float) -> str:
    elapsed_s = time.monotonic() - started_s
    rate = f"{listed.objects / elapsed_s:,.0f}" if elapsed_s else "?"
    share = "" if listed.share is None else f" (about {listed.share:.0%})"
    return (
        f"{listed.objects:,} objects{share}, {rate}/s, "
        f"{listed.in_flight} requests in flight, {listed.throttled} throttled"
    )

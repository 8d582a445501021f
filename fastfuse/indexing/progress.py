"""How far a listing is: a bar on a terminal, a log line now and then elsewhere."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fastfuse.listing.sweep import ListingProgress, ProgressCallback
from fastfuse.sources.uri import S3Uri

__all__ = ["shown_progress"]

_log = logging.getLogger(__name__)

# Between two progress lines where there is no terminal to draw on.
_LOG_EVERY_S = 10.0


@contextmanager
def shown_progress(source: S3Uri) -> Iterator[ProgressCallback]:
    """A bar on a terminal, a log line now and then elsewhere; yields what is to be told how far the listing is."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _LoggedProgress(source)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("listing {task.description}"),
        TextColumn("{task.completed:,} objects"),
        TextColumn("{task.speed:,.0f} objects/s"),
        TextColumn("{task.fields[in_flight]} requests in flight, {task.fields[throttled]} throttled"),
        TextColumn("{task.fields[share]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(escape(str(source)), total=None, in_flight=0, throttled=0, share="")
        yield lambda listed: bar.update(
            task,
            completed=listed.objects,
            in_flight=listed.in_flight,
            throttled=listed.throttled,
            share=_percent(listed),
        )


class _LoggedProgress:
    def __init__(self, source: S3Uri) -> None:
        self._source = source
        self._started_s = self._told_s = time.monotonic()

    def __call__(self, listed: ListingProgress) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= _LOG_EVERY_S:
            self._told_s = now_s
            elapsed_s = now_s - self._started_s
            _log.info(
                "listing %s: %d objects, %.0f objects/s, %d requests in flight, %d throttled%s",
                self._source,
                listed.objects,
                listed.objects / elapsed_s,
                listed.in_flight,
                listed.throttled,
                _percent(listed),
            )


def _percent(listed: ListingProgress) -> str:
    return "" if listed.share is None else f", about {listed.share:.0%}"

"""Shows the progress of long work: one redrawn line on a terminal, a log line every ten seconds elsewhere."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.cells import cell_len
from rich.console import Console
from rich.progress import Progress, TextColumn
from rich.table import Column
from rich.text import Text

from fastfuse.index.listing.acceptance import ListingProgress, ProgressCallback
from fastfuse.index.sources.uri import S3Uri
from fastfuse.terminal import can_redraw

__all__ = ["load_progress", "shown_line", "shown_progress"]

_log = logging.getLogger(__name__)

# The pause between two progress lines without a terminal.
_LOG_EVERY_S = 10.0


@contextmanager
def shown_progress(source: S3Uri) -> Iterator[ProgressCallback]:
    """Yield the callback that shows the progress of the listing of `source`."""
    started_s = time.monotonic()
    with shown_line("listing", str(source)) as show:
        yield lambda listed: show(lambda: _figures(listed, started_s))


@contextmanager
def shown_line(work: str, what: str) -> Iterator[Callable[[Callable[[], str]], None]]:
    """Yield the function that shows figures of some `work` on `what`; it makes their text only if that is shown."""
    console = _SteadyConsole(stderr=True)
    if not can_redraw(console):
        yield _LoggedLine(f"{work} {what}")
        return
    # One column, cut at the right edge: a narrow terminal would show only the beginnings of several columns.
    column = TextColumn(
        "{task.elapsed:.0f} s: {task.description}",
        style="none",
        markup=False,
        table_column=Column(no_wrap=True, overflow="crop"),
    )
    with Progress(column, console=console, transient=True) as line, _logged_above(console):
        task = line.add_task(f"{work} {what}", total=None)
        yield lambda figures: line.update(task, description=f"{figures()}, {what}")


def load_progress() -> None:
    """Load what a redrawn line of a name beyond ASCII needs, for a process that may load nothing later."""
    cell_len("ä")


class _SteadyConsole(Console):
    """A console that never hides the cursor: a process that is killed while it lists could not show it again."""

    def show_cursor(self, show: bool = True) -> bool:
        return False


class _Above:
    """A stream for log handlers, whose lines appear above the redrawn line."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def write(self, text: str) -> None:
        self._console.print(Text(text), end="", soft_wrap=True)

    def flush(self) -> None:
        """Do nothing: the console has written everything."""


@contextmanager
def _logged_above(console: Console) -> Iterator[None]:
    """Send log lines for standard error through `console`, or they would begin at the end of the redrawn line."""
    handlers = [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is console.file
    ]
    streams = [handler.setStream(_Above(console)) for handler in handlers]
    try:
        yield
    finally:
        for handler, stream in zip(handlers, streams, strict=True):
            handler.setStream(stream)


class _LoggedLine:
    def __init__(self, title: str) -> None:
        self._title = title
        self._logged_s = time.monotonic()

    def __call__(self, figures: Callable[[], str]) -> None:
        now_s = time.monotonic()
        if now_s - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = now_s
            _log.info("%s: %s", self._title, figures())


def _figures(listed: ListingProgress, started_s: float) -> str:
    elapsed_s = time.monotonic() - started_s
    rate = f"{listed.objects / elapsed_s:,.0f}" if elapsed_s else "?"
    share = "" if listed.share is None else f" (about {listed.share:.0%})"
    return (
        f"{listed.objects:,} objects{share}, {rate}/s, "
        f"{listed.in_flight} requests in flight, {listed.throttled} throttled"
    )

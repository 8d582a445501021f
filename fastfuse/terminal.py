"""Decides what may be drawn on a terminal, for every bar and spinner, and redraws a line of it."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text


def can_redraw(console: Console) -> bool:
    """Return whether `console` is a terminal that can move its cursor.

    Rich also takes a pipe for a terminal where FORCE_COLOR is set, as many build servers do. That is right for colours,
    but every state of a bar would become a line of the log.
    """
    return console.file.isatty() and console.is_interactive


@contextmanager
def redrawn_line(begun: str) -> Iterator[Callable[[str], None] | None]:
    """Show `begun` on standard error, and yield what shows another text there; None if it cannot be redrawn."""
    console = _SteadyConsole(stderr=True)
    if not can_redraw(console):
        yield None
        return
    from rich.progress import Progress, TextColumn  # takes a twentieth of the start of a mount
    from rich.table import Column

    # One column, cut at the right edge: a narrow terminal would show only the beginnings of several columns.
    column = TextColumn(
        "{task.elapsed:.0f} s: {task.description}",
        style="none",
        markup=False,
        table_column=Column(no_wrap=True, overflow="crop"),
    )
    with Progress(column, console=console, transient=True) as line, _logged_above(console):
        task = line.add_task(begun, total=None)
        yield lambda text: line.update(task, description=text)


def load_line() -> None:
    """Load what a redrawn line needs, names beyond ASCII included."""
    import rich.progress  # noqa: F401

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
        if isinstance(handler, logging.StreamHandler) and _leads_to(handler.stream, console.file.fileno())
    ]
    streams = [handler.setStream(_Above(console)) for handler in handlers]
    try:
        yield
    finally:
        for handler, stream in zip(handlers, streams, strict=True):
            handler.setStream(stream)


def _leads_to(stream: TextIO, fd: int) -> bool:
    try:
        return stream.fileno() == fd
    except (OSError, ValueError):  # a stream of a test, or one that was closed
        return False

"""Decides what may be drawn on a terminal."""

from rich.console import Console


def can_redraw(console: Console) -> bool:
    """Return whether `console` is a terminal that can move its cursor.

    Rich also takes a pipe for a terminal where FORCE_COLOR is set, as many build servers do. That is right for colours,
    but every state of a bar would become a line of the log.
    """
    return console.file.isatty() and console.is_interactive

"""Prints the demo's steps as they happen, and a table at the end."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastfuse.demo.dataset import Pass
from fastfuse.sizes import MIB, format_size
from fastfuse.terminal import can_redraw

__all__ = ["Reporter"]

# At most so many files that failed are named.
_FAILURES_SHOWN = 10


class Reporter:
    """Writes to standard output: in colour on a terminal, plainly elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Print the step that begins; on a terminal with a spinner until it is done."""
        self.say(f"==> {text}", style="bold")
        # "line": not every encoding has the characters of the other spinners.
        with self._console.status("working", spinner="line") if can_redraw(self._console) else nullcontext():
            yield

    def say(self, text: str, style: str = "") -> None:
        # Printed without markup: object keys may have brackets.
        self._console.print(Text(text, style=style), soft_wrap=True)

    def table(self, rows: Sequence[tuple[str, Pass, int]]) -> None:
        """Print a row for each pass: its name, its figures, and the number of its GETs."""
        table = Table(box=None, pad_edge=False)
        table.add_column("")
        for heading in ("readers", "files", "MB", "seconds", "MB/s", "files/s", "first byte", "GETs"):
            table.add_column(heading, justify="right")
        for name, done, requests in rows:
            table.add_row(name, *_cells(done), f"{requests:,}")
        self._console.print()
        self._console.print(table)
        self._console.print()

    def failures(self, failures: Sequence[str]) -> None:
        for failure in failures[:_FAILURES_SHOWN]:
            self.say(f"    {failure}", style="red")
        if len(failures) > _FAILURES_SHOWN:
            self.say(f"    and {len(failures) - _FAILURES_SHOWN:,} more", style="red")

    def memory(self, peak_bytes: int, read_bytes: int) -> None:
        self.say(
            f"    peak memory of the mount: {peak_bytes / MIB:,.0f} MiB resident "
            f"(VmHWM of its largest process, and the share of the others), for {format_size(read_bytes)} read"
        )


def _cells(done: Pass) -> tuple[str, ...]:
    return (
        f"{done.readers:,}",
        f"{done.files:,}",
        f"{done.size_bytes / 1e6:,.0f}",
        f"{done.elapsed_s:.2f}",
        f"{done.size_bytes / done.elapsed_s / 1e6:,.0f}",
        f"{done.files / done.elapsed_s:,.0f}",
        f"{done.first_byte_s * 1e3:.1f} ms",
    )

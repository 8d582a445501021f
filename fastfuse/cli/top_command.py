"""``fastfuse top``: a mount on the whole terminal, redrawn while it works.

The screen at one moment is pure: figures come in, something that rich can print goes out.
"""

import json
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fastfuse.cli.status_command import percent, plain, status_lines, well_formed
from fastfuse.errors import ConfigurationError, MountError
from fastfuse.filesystem.mounting.mountpoint import MountEntry, fastfuse_file_systems, is_mounted
from fastfuse.filesystem.talking.control import MOST_LINE_BYTES, TOP, ask_status, entry_of, watching
from fastfuse.sizes import format_size
from fastfuse.terminal import can_redraw

# The orders of files, by the keys that choose them.
SORTS: Final[Mapping[str, str]] = {"w": "waiting", "b": "bytes", "f": "file"}
_MOST_GETS = 5
_MOST_ERRORS = 3
# The lines below those of the status that are always there, headings and empty lines included.
_FIXED_LINES = 9
# A narrower screen shows the names of files without their directories.
_PATH_COLUMNS = 100


@dataclass(frozen=True, slots=True)
class Screen:
    """A mount as it is shown, at `now` in seconds since 1970. `is_live`: keys are taken.

    `status` is as of `filesystem.figures.status`, `work` as of `filesystem.talking.watching` (empty while no worker
    tells).
    """

    status: Mapping[str, Any]
    work: Mapping[str, Any]
    now: float
    sort: str = "w"
    is_paused: bool = False
    is_live: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        last = {**self.status, "errors": self.status["errors"][-_MOST_ERRORS:]}
        parts: list[RenderableType] = [_head_line(text) for text in status_lines(last, self.now)]
        gets = self.work.get("gets", ())[:_MOST_GETS]
        # The height of the terminal: rich does not pass that of a screen to what is drawn in it.
        room = console.height - len(parts) - len(gets) - _FIXED_LINES if self.is_live else 1000
        if self.work:
            memory = (f"{format_size(size)} {plain(use)}" for use, size in self.work["memory"].items())
            parts.append(_line(f"  work      {plain(self.work['gets_running'])} GETs run; {', '.join(memory)}"))
        parts += [Text(), self._streams(max(room, 1), options.max_width), Text(), _gets(gets)]
        if self.is_live:
            paused = "PAUSED  " if self.is_paused else ""
            sorts = "  ".join(f"{key} {name}" for key, name in SORTS.items())
            parts.append(_line(f"{paused}sort by {sorts}    p pause  q quit", "dim"))
        yield Group(*parts)

    def _streams(self, room: int, width: int) -> RenderableType:
        work = self.work
        if not work:
            return _line("the worker tells nothing yet", "dim")
        every_s = work["every_s"]
        table = _table("waited", "now", "MB/s", "pattern", "window", "position", "process", "file")
        rows = sorted(work["streams"], key=lambda stream: _order(self.sort, stream))
        for stream in rows[:room]:
            table.add_row(
                percent(stream["blocked_s"] / every_s),
                f"{stream['waiting_s']:.1f} s" if stream["waiting_s"] else "",
                f"{stream['bytes'] / 1e6 / every_s:,.1f}",
                Text(plain(stream["pattern"])),
                format_size(stream["window"]) if stream["window"] else "",
                format_size(stream["position"]),
                Text(f"{plain(stream['process'])}[{plain(stream['pid'])}]" if stream["pid"] else ""),
                Text(plain(stream["path"] if width >= _PATH_COLUMNS else stream["path"].rpartition("/")[2])),
            )
        if not rows:
            return Group(table, _line("no reads in this interval", "dim"))
        more = work["stream_count"] - min(room, len(rows))
        return Group(table, _line(f"and {more:,} more", "dim")) if more else table


def _gets(gets: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = _table("slow GETs", "bytes", "at", "key")
    for get in gets:
        took = f"{get['seconds']:.2f} s{' …' if get['runs'] else ''}"
        key = Text(plain(get["key"]))
        table.add_row(took, format_size(get["end"] - get["start"]), format_size(get["start"]), key)
    return table


def _order(sort: str, stream: Mapping[str, Any]) -> tuple[float, str]:
    most_first = {"w": stream["blocked_s"], "b": stream["bytes"]}.get(sort, 0)
    return -most_first, stream["path"]


def _table(*headings: str) -> Table:
    """Return an empty table without lines, whose last column takes the room that the others leave."""
    table = Table(box=None, expand=True, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in headings[:-1]:
        is_text = heading in {"pattern", "process"}
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=True, overflow="ellipsis")
    table.add_column(headings[-1], ratio=1, min_width=12, no_wrap=True, overflow="ellipsis")
    return table


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _head_line(text: str) -> Text:
    return _line(text, "red" if text.startswith(("  trouble", "  error")) else "")


# Keys wait for a mount that does not answer, but no longer than this.
_ANSWER_WITHIN_S = 2.0
# The window may have another size after so long.
_REDRAW_S = 0.25


def top(mountpoint: Path | None, *, every_s: float) -> int:
    """Show a mount until ``q`` or its end; print it once where the output cannot be redrawn.

    Raises:
        ConfigurationError: no `mountpoint` is given, and there is not one mount.
        MountError: nothing of fastfuse is mounted there, or the mount does not answer.
    """
    entry = entry_of(the_only_mount("top shows") if mountpoint is None else mountpoint)
    console = Console(highlight=False)
    with well_formed(entry.path), ExitStack() as stack:
        watch = _Watch(entry, every_s, stack)
        if not can_redraw(console):
            while not watch.has_news([], every_s):
                pass
            watch.look()
            console.print(Screen(watch.status, watch.work, time.time(), is_live=False))
        else:
            stack.enter_context(_left_in_order())
            with Live(console=console, screen=True, auto_refresh=False) as live:
                _show(watch, live)
    return 0


def _show(watch: "_Watch", live: Live) -> None:
    screen = Screen(watch.status, watch.work, time.time())
    keys = [sys.stdin.fileno()] if sys.stdin.isatty() else []
    while is_mounted(watch.entry.path, watch.entry.device):
        live.update(screen, refresh=True)
        if watch.has_news(keys, _REDRAW_S):
            watch.look()
        for key in _pressed(keys):
            if key == "q":
                return
            is_paused = screen.is_paused ^ (key == "p")
            screen = replace(screen, sort=key if key in SORTS else screen.sort, is_paused=is_paused)
        if not screen.is_paused:
            screen = replace(screen, status=watch.status, work=watch.work, now=time.time())


class _Watch:
    """A mount, asked again and again."""

    def __init__(self, entry: MountEntry, every_s: float, stack: ExitStack) -> None:
        """Begin to ask; the connection to the worker ends with `stack`."""
        self.entry = entry
        self._every_s = every_s
        self._connection = stack.enter_context(ExitStack())
        # None while no worker tells what it does.
        self._told: BufferedReader | None = None
        self._rest = b""
        self.work: dict[str, Any] = {}
        self.status = ask_status(entry)
        self._asked_s = time.monotonic()
        self._connect()

    def has_news(self, keys: list[int], within_s: float) -> bool:
        """Wait for the worker, or for `keys`; return True once in an interval."""
        if self._told is None:
            select.select(keys, [], [], within_s)
            if time.monotonic() < self._asked_s + self._every_s:
                return False
            self._connect()
            return True
        told_fd = self._told.fileno()
        if told_fd not in select.select([told_fd, *keys], [], [], within_s)[0]:
            return False
        received = b""
        with suppress(ConnectionError):
            received = self._told.read1()
        *lines, self._rest = (self._rest + received).split(b"\n")
        if len(self._rest) > MOST_LINE_BYTES:
            raise ValueError("a line without an end")
        if not received:
            self._told, self.work, self._rest = None, {}, b""
            self._connection.close()
        elif lines:
            self.work = json.loads(lines[-1])
        return bool(lines)

    def look(self) -> None:
        """Ask the mount for its status."""
        try:
            self.status = ask_status(self.entry, within_s=_ANSWER_WITHIN_S)
        except MountError:
            self.status = {**self.status, "state": "no answer"}
        self._asked_s = time.monotonic()

    def _connect(self) -> None:
        with suppress(MountError):
            asked = {"request": TOP, "every_s": self._every_s}
            self._told = self._connection.enter_context(watching(self.entry, asked, within_s=_ANSWER_WITHIN_S))


def the_only_mount(who: str) -> Path:
    """Return the place of the only mount of this machine.

    Raises:
        ConfigurationError: there is none, or more than one; `who` wants one.
    """
    paths = [entry.path for entry in fastfuse_file_systems()]
    if len(paths) != 1:
        found = f"there are {len(paths)}" if paths else "nothing of fastfuse is mounted"
        hint = f"one of {', '.join(map(str, paths))}" if paths else "fastfuse mount mounts it"
        raise ConfigurationError(f"{who} one mount, and {found}: give a MOUNTPOINT", hint=hint)
    return paths[0]


@contextmanager
def _left_in_order() -> Iterator[None]:
    """Take single keys from a terminal, and leave it as it was also after SIGTERM."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _pressed(keys: list[int]) -> str:
    """Return the keys that were pressed, without waiting; forget a terminal that has gone."""
    if not keys or not select.select(keys, [], [], 0)[0]:
        return ""
    with suppress(OSError):
        if pressed := os.read(keys[0], 64):
            return pressed.decode(errors="replace")
    keys.clear()
    return ""

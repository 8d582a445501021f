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
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fastfuse.cli.messages import printing
from fastfuse.cli.status_command import failures_in, grown, percent, plain, well_formed
from fastfuse.errors import ConfigurationError, MountError
from fastfuse.filesystem.mounting.mountpoint import MountEntry, fastfuse_file_systems, is_mounted
from fastfuse.filesystem.talking.control import MOST_LINE_BYTES, TOP, ask_status, entry_of, watching
from fastfuse.sizes import format_duration, format_size

_BARS: Final = "▁▂▃▄▅▆▇█"
_PLAIN_BARS: Final = "_.:-=+*#"
# The orders of files, by the keys that choose them.
SORTS: Final[Mapping[str, str]] = {"w": "waiting", "b": "bytes", "f": "file"}
_MOST_GETS = 5
_MOST_ERRORS = 3
# The lines that are always there, headings and empty lines included, and the columns beside a sparkline.
_FIXED_LINES = 13
_BESIDE_BARS = 34
# A narrower screen shows the names of files without their directories.
_PATH_COLUMNS = 100


@dataclass(frozen=True, slots=True)
class Look:
    """The work of a mount in one interval.

    `status` is as of `filesystem.figures.status`, `work` as of `filesystem.talking.watching` (empty while no worker
    tells). The rates are in bytes, GETs and share of the time since the look before; `history` has reading and stalled
    of each look, the newest last.
    """

    status: Mapping[str, Any]
    work: Mapping[str, Any] = field(default_factory=dict)
    read: float = 0.0
    fetched: float = 0.0
    gets: float = 0.0
    stalled: float = 0.0
    history: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, slots=True)
class Screen:
    """A look as it is shown, at `now` in seconds since 1970. `is_live`: keys are taken."""

    look: Look
    now: float
    sort: str = "w"
    is_paused: bool = False
    is_live: bool = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        bars = _BARS if options.encoding.startswith("utf") else _PLAIN_BARS
        gets, errors = self.look.work.get("gets", ())[:_MOST_GETS], self.look.status["errors"][-_MOST_ERRORS:]
        # The height of the terminal: rich does not pass that of a screen to what is drawn in it.
        lines = _FIXED_LINES + bool(self.look.status["trouble"]) + len(gets) + len(errors)
        room = console.height - lines if self.is_live else 1000
        parts: list[RenderableType] = [*self._head(), *self._rates(options.max_width, bars), self._memory(), Text()]
        parts += [self._streams(max(room, 1), options.max_width), Text(), _gets(gets)]
        parts += [_line(f"error  {plain(text)}", "red") for _, text in errors]
        if self.is_live:
            paused = "PAUSED  " if self.is_paused else ""
            sorts = "  ".join(f"{key} {name}" for key, name in SORTS.items())
            parts.append(_line(f"{paused}sort by {sorts}    p pause  q quit", "dim"))
        yield Group(*parts)

    def _head(self) -> Iterable[Text]:
        status = self.look.status
        text = _line(f"{plain(status['mountpoint'])}  {plain(status['source'])}  ", "bold")
        is_ok = status["state"] == "ok"
        text.append(plain(status["state"]), "green" if is_ok else "bold red")
        text.append(f", mounted for {format_duration(self.now - status['mounted_at'])}")
        yield text
        if trouble := status["trouble"]:
            yield _line(f"trouble   for {format_duration(self.now - trouble['since'])}: {failures_in(trouble)}", "red")

    def _rates(self, width: int, bars: str) -> Iterable[Text]:
        look = self.look
        counters = look.status["counters"]
        room = max(width - _BESIDE_BARS, 0) if self.is_live else 0
        history = look.history[max(0, len(look.history) - room) :]
        most = max((read for read, _ in look.history), default=0.0)
        yield _line(f"read      {look.read / 1e6:10,.1f} MB/s  ").append(
            _spark([r for r, _ in history], most, bars), "cyan"
        )
        waits = f"stalled   {percent(look.stalled):>10}       "
        yield _line(waits).append(_spark([stalled for _, stalled in history], 1.0, bars), "yellow")
        running = plain(look.work.get("gets_running", "?"))
        retries = sum(count for name, count in counters.items() if name.startswith("fastfuse_retries"))
        waiting = counters.get("fastfuse_waiting_reads", 0)
        yield _line(
            f"fetched   {look.fetched / 1e6:10,.1f} MB/s  {look.gets:,.0f} GETs/s, {running} running, "
            f"{retries:,.0f} retries; {'1 read waits' if waiting == 1 else f'{waiting:,.0f} reads wait'}"
        )

    def _memory(self) -> Text:
        status = self.look.status
        memory = self.look.work.get("memory", {})
        uses = [f"{format_size(size)} {plain(use)}" for use, size in memory.items()]
        # The counter is a second old.
        held = sum(memory.values()) if memory else status["counters"].get("fastfuse_pool_bytes", 0)
        text = f"memory    {format_size(int(held))} of {format_size(status['memory_target_bytes'])}"
        return _line(f"{text}: {', '.join(uses)}" if uses else text)

    def _streams(self, room: int, width: int) -> RenderableType:
        work = self.look.work
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


def _spark(values: Sequence[float], most: float, bars: str) -> str:
    """Return a bar for each value; `most` has the highest one."""
    top = len(bars) - 1
    return "".join(bars[min(top, round(value / most * top))] if most else bars[0] for value in values)


# Keys wait for a mount that does not answer, but no longer than this.
_ANSWER_WITHIN_S = 2.0
# The window may have another size after so long.
_REDRAW_S = 0.25
_MOST_HISTORY = 600


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
        # Rich also takes a pipe for a terminal where FORCE_COLOR is set, as many build servers do.
        if not (console.file.isatty() and console.is_interactive):
            while not watch.wait_for_news([], every_s):
                pass
            with printing():
                console.print(Screen(watch.look(), time.time(), is_live=False))
        else:
            stack.enter_context(_single_keys())
            with printing(), Live(console=console, screen=True, auto_refresh=False) as live:
                _show(watch, live)
    return 0


def _show(watch: "_Watch", live: Live) -> None:
    look, sort, is_paused = Look(watch.status), "w", False
    keys = [0] if os.isatty(0) else []  # not sys.stdin, which is None where it was closed
    while is_mounted(watch.entry.path, watch.entry.device):
        live.update(Screen(look, time.time(), sort, is_paused), refresh=True)
        if watch.wait_for_news(keys, _REDRAW_S):
            newest = watch.look()
            look = look if is_paused else newest
        for key in _pressed(keys):
            if key == "q":
                return
            is_paused ^= key == "p"
            sort = key if key in SORTS else sort


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
        self._work: dict[str, Any] = {}
        self._history: deque[tuple[float, float]] = deque(maxlen=_MOST_HISTORY)
        self.status = ask_status(entry)
        self._asked_s = time.monotonic()
        self._connect()

    def wait_for_news(self, keys: list[int], within_s: float) -> bool:
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
            self._told, self._work, self._rest = None, {}, b""
            self._connection.close()
        elif lines:
            self._work = json.loads(lines[-1])
        return bool(lines)

    def look(self) -> Look:
        """Return what the mount did since the look before."""
        before, before_s = self.status["counters"], self._asked_s
        try:
            self.status = ask_status(self.entry, within_s=_ANSWER_WITHIN_S)
        except MountError:
            self.status = {**self.status, "state": "no answer"}
        self._asked_s = time.monotonic()

        def rate(name: str) -> float:
            return max(0.0, grown(before, self.status["counters"], name) / (self._asked_s - before_s))

        read, stalled = rate("fastfuse_read_served_bytes"), min(rate("fastfuse_stalled_seconds"), 1.0)
        self._history.append((read, stalled))
        return Look(
            status=self.status,
            work=self._work,
            read=read,
            fetched=rate("fastfuse_fetched_bytes"),
            gets=rate("fastfuse_fetch_requests"),
            stalled=stalled,
            history=tuple(self._history),
        )

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
def _single_keys() -> Iterator[None]:
    """Take single keys from a terminal, and leave it as it was also after SIGTERM."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if not os.isatty(0):
        yield
        return
    before = termios.tcgetattr(0)
    try:
        tty.setcbreak(0)
        yield
    finally:
        with suppress(termios.error):  # the terminal may have gone
            termios.tcsetattr(0, termios.TCSADRAIN, before)


def _pressed(keys: list[int]) -> str:
    """Return the keys that were pressed, without waiting: ``q`` if the terminal has gone."""
    if not keys or not select.select(keys, [], [], 0)[0]:
        return ""
    with suppress(OSError):
        if pressed := os.read(keys[0], 64):
            return pressed.decode(errors="replace")
    return "q"

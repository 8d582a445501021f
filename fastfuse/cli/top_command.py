"""``fastfuse top``: a mount on the whole terminal, redrawn while it works."""

import json
import os
import select
import signal
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from fastfuse.cli.status_command import grown
from fastfuse.cli.top_screen import SORTS, Look, Screen
from fastfuse.errors import ConfigurationError, MountError
from fastfuse.filesystem.control import TOP, ask_status, entry_of, watching
from fastfuse.filesystem.mountpoint import MountEntry, fastfuse_mounts
from fastfuse.terminal import can_redraw

__all__ = ["the_only_mount", "top"]

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
    with ExitStack() as stack:
        watch = _Watch(entry, every_s, stack)
        if not can_redraw(console):
            while not watch.has_news([], every_s):
                pass
            console.print(Screen(watch.look(), time.time(), is_live=False))
        else:
            stack.enter_context(_left_in_order())
            with Live(console=console, screen=True, auto_refresh=False) as live:
                _show(watch, live)
    return 0


def _show(watch: "_Watch", live: Live) -> None:
    look, sort, is_paused = watch.begun, "w", False
    keys = [sys.stdin.fileno()] if sys.stdin.isatty() else []
    while watch.entry.is_there():
        live.update(Screen(look, time.time(), sort, is_paused), refresh=True)
        if watch.has_news(keys, _REDRAW_S):
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
        self._status = ask_status(entry)
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
        if not received:
            self._told, self._work, self._rest = None, {}, b""
            self._connection.close()
        elif lines:
            self._work = json.loads(lines[-1])
        return bool(lines)

    @property
    def begun(self) -> Look:
        """The mount before the first interval is over."""
        return Look(self._status)

    def look(self) -> Look:
        """Return what the mount did since the look before."""
        before, before_s = self._status["counters"], self._asked_s
        try:
            self._status = ask_status(self.entry, within_s=_ANSWER_WITHIN_S)
        except MountError:
            self._status = {**self._status, "state": "no answer"}
        self._asked_s = time.monotonic()

        def rate(name: str) -> float:
            return max(0.0, grown(before, self._status["counters"], name) / (self._asked_s - before_s))

        read, stalled = rate("fastfuse_read_served_bytes"), min(rate("fastfuse_stalled_seconds"), 1.0)
        self._history.append((read, stalled))
        return Look(
            status=self._status,
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
    paths = fastfuse_mounts()
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

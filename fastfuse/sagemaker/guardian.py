"""What clears the place after a parent that was killed: a process of its own, which waits for that and nothing else.

The channels' processes die with their parent, and a mount without its process is an error to everybody who looks at
it, a FIFO without its writer a reader that waits for ever.
"""

import ctypes
import logging
import os
import re
import signal
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fastfuse.errors import FastfuseError
from fastfuse.mount.children import fork_child, wait_child
from fastfuse.mount.mountpoint import find_mount, is_dead, unmount
from fastfuse.sagemaker.channel import Channel, InputMode

__all__ = ["Guardian", "sweep"]

_log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Guardian:
    """Lives until `dismiss`, or until nobody is left of the process tree that it was made for; then it sweeps."""

    def __init__(self, channels: Sequence[Channel], data_dir: Path) -> None:
        # Whoever is forked from here on holds the writing end; nobody ever writes.
        reading_fd, self._writing_fd = os.pipe()
        self.pid = fork_child(lambda: self._watch(reading_fd, channels, data_dir))
        os.close(reading_fd)

    def dismiss(self) -> None:
        """There is nothing left to be cleared."""
        with suppress(ProcessLookupError, ChildProcessError):  # killed by somebody, and reaped
            os.kill(self.pid, signal.SIGKILL)
            wait_child(self.pid)
        os.close(self._writing_fd)

    def _watch(self, reading_fd: int, channels: Sequence[Channel], data_dir: Path) -> None:
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)
        os.close(self._writing_fd)
        os.read(reading_fd, 1)
        sweep(channels, data_dir)


def sweep(channels: Sequence[Channel], data_dir: Path) -> None:
    """Take away what dead processes left of these channels: mounts and FIFOs. What is alive is not touched."""
    for channel in channels:
        try:
            if channel.input_mode is InputMode.FAST_FILE:
                _unmount_dead(data_dir / channel.name)
            elif channel.input_mode is InputMode.PIPE:
                _remove_fifos(data_dir, channel.name)
        except (FastfuseError, OSError) as error:
            _log.warning("channel %s left something behind: %s", channel.name, error)


def _unmount_dead(path: Path) -> None:
    entry = find_mount(path)
    if entry is not None and entry.is_ours and entry.owner_uid == os.geteuid() and is_dead(path):
        unmount(path, lazy=True, device=entry.device)


def _remove_fifos(data_dir: Path, channel: str) -> None:
    is_fifo_of_channel = re.compile(re.escape(channel) + r"_\d+", re.ASCII).fullmatch
    for path in data_dir.iterdir():
        if is_fifo_of_channel(path.name) and stat.S_ISFIFO(path.lstat().st_mode):
            with suppress(FileNotFoundError):
                path.unlink()

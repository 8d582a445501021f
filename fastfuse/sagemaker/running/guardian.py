"""A process that clears up after a parent that was killed, and otherwise only waits.

The channels' processes die with their parent. A mount without its process is an error to every reader. A FIFO without
its writer looks like the end of an epoch, so the guardian holds it open (`pipe.fifo.Guard`) until its readers are gone,
also after a run that was not killed. When a whole control group is killed, the next run clears up instead.
"""

import logging
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from fastfuse.errors import FastfuseError
from fastfuse.filesystem.mounting.mountpoint import find_mount, is_dead, unmount
from fastfuse.filesystem.processes.children import STOP_ORDER, fork_child
from fastfuse.sagemaker.description.channel import Channel
from fastfuse.sagemaker.local_places import take_away
from fastfuse.sagemaker.pipe.fifo import Guard, remove_stale, wait_until_unread

_log = logging.getLogger(__name__)

# The name by which the pidfd of the command is held: no channel has it.
_COMMAND = ""
# It takes milliseconds, unless somebody has stopped it (SIGSTOP).
_HEEDS_WITHIN_S = 5.0


class Guardian:
    """A process that waits for `dismiss`, or for the death of its process tree, after which it clears up."""

    def __init__(
        self,
        channels: Sequence[Channel],
        data_dir: Path,
        *,
        stop_timeout_s: float,
        not_done: str,
        listener: socket.socket | None,
    ) -> None:
        """Fork it. `not_done` ends the error for a command that had begun: it says where what it has made lies.

        The guardian closes `listener`: the next run may want the address.
        """
        # Every process forked from here on holds the writing end; only `dismiss` writes.
        reading_fd, self._writing_fd = os.pipe()
        # They inherit its other end, too.
        self.guard = guard = Guard()

        def work() -> None:
            os.setsid()
            os.close(self._writing_fd)
            if listener is not None:
                listener.close()
            _watch(reading_fd, guard)
            command = guard.held.pop(_COMMAND, [])
            fifos = list(chain.from_iterable(guard.held.values()))
            if os.read(reading_fd, 1):  # dismissed
                command = []
            else:
                sweep(channels, data_dir)
            kill_at_s = time.monotonic() + stop_timeout_s
            for command_fd in command:
                _outlast(command_fd, kill_at_s)
                _log.error("fastfuse run was killed%s", not_done)
                for fifo_fd in fifos:
                    _end_readers(fifo_fd, kill_at_s)
            _outlast_readers(fifos, reading_fd)

        self.pid = fork_child(work, outlives_parent=True, stops_at={STOP_ORDER})
        guard.hand_over()
        os.close(reading_fd)

    def heed(self, command_pid: int) -> None:
        """Watch the running command: if we die, the guardian kills it unless it ends in time."""
        try:
            command_fd = os.pidfd_open(command_pid)
        except OSError as error:
            _log.warning("if this run is killed, its command may live on: %s", error)  # a seccomp filter
            return
        self.guard.hold(_COMMAND, command_fd)
        os.close(command_fd)

    def dismiss(self) -> None:
        """Have it end, or stay for whoever reads an epoch that is not complete, and would take our end for its end."""
        with suppress(BrokenPipeError):  # killed by somebody
            os.write(self._writing_fd, b"-")
            wait_until_unread(self._writing_fd, _HEEDS_WITHIN_S)
        os.close(self._writing_fd)
        self.guard.close()


def sweep(channels: Sequence[Channel], data_dir: Path) -> None:
    """Remove the mounts, links and FIFOs that dead processes of these channels left, whatever the mode."""
    for channel in channels:
        try:
            place = data_dir / channel.name
            entry = find_mount(place)
            if entry is not None and entry.is_ours and entry.owner_uid == os.geteuid() and is_dead(place):
                unmount(place, lazy=True, device=entry.device)
            take_away(place, channel)
            remove_stale(data_dir, channel.name)
        except (FastfuseError, OSError) as error:
            _log.warning("channel %s left something behind: %s", channel.name, error)


def _watch(life_fd: int, guard: Guard) -> None:
    """Follow the guard until the process tree is dead."""
    waiting_for: list[int | Guard] = [life_fd, guard]
    while True:
        readable, _, _ = select.select(waiting_for, [], [])
        guard.update()
        if life_fd in readable:
            return


def _outlast(command_fd: int, kill_at_s: float) -> None:
    """Wait for the command, which got SIGTERM when its parent died, and kill it if it is late."""
    readable, _, _ = select.select([command_fd], [], [], max(0.0, kill_at_s - time.monotonic()))
    if not readable:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(command_fd, signal.SIGKILL)


def _end_readers(fifo_fd: int, kill_at_s: float) -> None:
    """Tell the command's leftovers to end that read the FIFO, for a shell dies without telling its children."""
    if wait_until_unread(fifo_fd, 0.0):
        return
    _tell_readers(fifo_fd, signal.SIGTERM)
    if not wait_until_unread(fifo_fd, max(0.0, kill_at_s - time.monotonic())):
        _tell_readers(fifo_fd, signal.SIGKILL)
        wait_until_unread(fifo_fd, None)


def _outlast_readers(fifos: Sequence[int], life_fd: int) -> None:
    """Keep the FIFOs from ending until nobody reads them, and let go of all else, of `life_fd` last.

    Then the next run may begin, and whoever reads our output (`| tee`) is at its end.
    """
    unfinished = [fd for fd in fifos if not wait_until_unread(fd, 0.0)]
    if unfinished:
        _log.error("fastfuse run is over; whoever reads a stream of its waits for an end that will not come")
    for fd in {int(name) for name in os.listdir("/proc/self/fd")} - {life_fd, *fifos}:
        with suppress(OSError):  # it was the one of the list
            os.close(fd)
    if unfinished:
        os.close(life_fd)  # else as we end: the run then leaves no process behind
    for fd in unfinished:
        wait_until_unread(fd, None)


def _tell_readers(fifo_fd: int, number: signal.Signals) -> None:
    """Send the signal to every other process that has the FIFO open."""
    fifo = os.fstat(fifo_fd)
    for process in Path("/proc").glob("[0-9]*"):
        pid = int(process.name)
        with suppress(OSError):  # it has ended, or is another user's
            if pid != os.getpid() and any(_is_file(fd, fifo) for fd in (process / "fd").iterdir()):
                os.kill(pid, number)


def _is_file(path: Path, file: os.stat_result) -> bool:
    with suppress(OSError):  # closed meanwhile, or of a mount that is gone
        return os.path.samestat(file, path.stat())
    return False

"""One epoch's FIFO, from before its reader comes until it has read everything or is gone.

Both ends are open before the FIFO can be seen. A reader that opens it therefore finds a writer and waits for data, with
``O_NONBLOCK`` or without; it never takes an epoch that has not begun for an empty one. inotify tells that a reader has
opened it. Then our reading end closes, and the end of the last reader is a `BrokenPipeError`.

A FIFO whose writer was killed in the middle of an object ends like an epoch. So another process holds the writing ends
in a `Guard` as well, until the streamer says that an epoch is complete. It is forked before the streamers, and their
parent calls `hand_over` in between.
"""

import fcntl
import os
import select
import socket
import stat
import struct
from collections import defaultdict
from contextlib import suppress
from itertools import chain
from pathlib import Path

import trio

from fastfuse.errors import ConfigurationError, MountError
from fastfuse.objects import Buffer
from fastfuse.sagemaker.files import LIBC, checked, is_full, path_of

# One write: the reader takes it while the next is on its way; larger ones wait for each other.
_WRITE_BYTES = 512 << 10
# Linux's default maximum without privileges, /proc/sys/fs/pipe-max-size; the default of 64 KiB is slow.
_PIPE_BYTES = 1 << 20
_IN_OPEN = 0x20  # <sys/inotify.h>
# struct inotify_event without a name: watch, mask, cookie, length of the name.
_EVENT = struct.Struct("iIII")
_EVENTS_BYTES = 256 * _EVENT.size
_MODE = 0o644


class Fifo:
    """The FIFO at `path`; neither making it nor waiting for its reader blocks the thread."""

    def __init__(self, path: Path, *, directory: Path | None = None) -> None:
        """Make the FIFO. `directory` is another path to the directory of `path`, to be used in its place.

        Raises:
            ConfigurationError: something is there.
            MountError: it cannot be made.
        """
        self.path = path
        self._place = (directory or path.parent) / path.name
        self._write_fd = self._read_fd = self._opens_fd = -1
        # Written since other tasks had their turn.
        self._turn_bytes = 0
        hidden = self._place.with_name(f".{path.name}.{os.urandom(8).hex()}")
        try:
            os.mkfifo(hidden)
            try:
                self._open(hidden)
                os.link(hidden, self._place)  # which, unlike a rename, takes nobody's place
            finally:
                hidden.unlink()
        except FileExistsError as error:
            self._close()
            raise ConfigurationError(
                f"something is at {str(path)!r}, where a FIFO of the channel belongs",
                hint="move it away, or give the channel another name",
            ) from error
        except OSError as error:
            self._close()
            raise MountError(
                f"the FIFO {str(path)!r} cannot be made: {error.strerror}",
                hint="free some space or inodes" if is_full(error) else "it takes a file system with FIFOs",
            ) from error

    def close(self) -> None:
        """Remove the FIFO; its reader still gets what was written, and then the end. Idempotent."""
        self.hide()
        self._close()

    def hide(self) -> None:
        """Remove the FIFO's name: readers that have it open go on."""
        with suppress(OSError):  # somebody else has removed it, or its directory
            if os.path.samestat(os.lstat(self._place), os.fstat(self._write_fd)):
                self._place.unlink()

    def has_reader(self) -> bool:
        """Return whether any process has the FIFO open for reading, after `opened`."""
        return not wait_until_unread(self._write_fd, 0.0)

    def note_openings(self) -> bool:
        """Take in who has opened the FIFO since the last look or `opened`, and return whether anybody has.

        Then no reader is sure to get every byte.
        """
        try:
            events = os.read(self._opens_fd, _EVENTS_BYTES)
        except BlockingIOError:
            return False
        # Others tell that it was removed.
        return any(mask & _IN_OPEN for _, mask, _, _ in _EVENT.iter_unpack(events))

    def fileno(self) -> int:
        return self._write_fd

    async def opened(self) -> None:
        """Wait until a reader has opened the FIFO, even one that has closed it again."""
        await trio.lowlevel.wait_readable(self._opens_fd)
        os.read(self._opens_fd, _EVENTS_BYTES)  # of all until now, who can have read nothing
        os.close(self._read_fd)
        self._read_fd = -1

    async def write(self, data: Buffer) -> None:
        """Write all of `data` after `opened`, with a checkpoint where it waits or writes much.

        Raises:
            BrokenPipeError: there is no reader any more.
        """
        rest = memoryview(data)
        while rest:
            try:
                written = os.write(self._write_fd, rest[:_WRITE_BYTES])
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._write_fd)
                self._turn_bytes = 0
                continue
            rest = rest[written:]
            self._turn_bytes += written
            if self._turn_bytes >= _WRITE_BYTES:
                await trio.lowlevel.checkpoint()
                self._turn_bytes = 0

    def _open(self, hidden: Path) -> None:
        # A FIFO that nobody reads cannot be opened for writing alone; for both it can.
        self._read_fd = os.open(hidden, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
        # The owner of the directory may have put something else there.
        if not stat.S_ISFIFO(os.fstat(self._read_fd).st_mode):
            raise FileExistsError
        os.fchmod(self._read_fd, _MODE)  # whatever the umask is
        opened = path_of(self._read_fd)
        self._write_fd = os.open(opened, os.O_WRONLY | os.O_NONBLOCK)
        _enlarge(self._write_fd)
        self._opens_fd = _watch_opens(opened)

    def _close(self) -> None:
        for fd in (self._opens_fd, self._read_fd, self._write_fd):
            if fd >= 0:
                os.close(fd)
        self._opens_fd = self._read_fd = self._write_fd = -1


def wait_until_unread(fifo_fd: int, timeout_s: float | None) -> bool:
    """Wait until no process has the FIFO open for reading, for the time at most, and return whether none has."""
    poll = select.poll()
    poll.register(fifo_fd, 0)  # POLLERR comes unasked
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


def remove_stale(directory: Path, channel: str) -> None:
    """Remove the FIFOs of an earlier run: a reader that opens one would wait for ever."""
    for path in directory.glob(f"{channel}_*"):
        epoch = path.name.removeprefix(f"{channel}_")
        if epoch.isascii() and epoch.isdigit() and stat.S_ISFIFO(path.lstat().st_mode):
            path.unlink(missing_ok=True)


def _enlarge(fd: int) -> None:
    """Enlarge the pipe if the system allows it; a user's pipes have a common limit (pipe-user-pages-soft)."""
    with suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _watch_opens(path: Path) -> int:
    """Return a descriptor that is readable once any process opens `path` from now on, by any name."""
    try:
        fd = checked(LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        checked(LIBC.inotify_add_watch(fd, os.fsencode(path), _IN_OPEN))
    except OSError as error:
        raise MountError(
            f"nobody would tell when {str(path)!r} is opened: {error.strerror}",
            hint="raise fs.inotify.max_user_instances",
        ) from error
    return fd


_BEGIN, _END = b"+", b"-"
# One of these, and the name of a channel, which has 64 characters at most.
_MOST_BYTES = 256


class Guard:
    """Descriptors that one process holds for others, which are forked later. Every method returns at once."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        # A channel's writing ends, and the command's pidfd, by the name under which they are held, the earliest first.
        self.held: defaultdict[str, list[int]] = defaultdict(list)

    def fileno(self) -> int:
        return self._ours.fileno()

    def hold(self, name: str, fd: int) -> None:
        """Give the guard a copy of `fd`, such as the writing end of a new FIFO."""
        with suppress(ConnectionError):  # whoever held them was killed
            socket.send_fds(self._theirs, [_BEGIN, name.encode()], [fd])

    def let_go(self, name: str) -> None:
        """Release the earliest of the name: its FIFO is complete, or has no reader."""
        with suppress(ConnectionError):
            self._theirs.send(_END + name.encode())

    def hand_over(self) -> None:
        """Close the receiving end, in the parent of the process that holds.

        A descriptor in a socket that another process has open would stay open with it, and no epoch would end.
        """
        self._ours.close()

    def update(self) -> None:
        """Take in what the others said; the process that holds calls this when `fileno` is readable."""
        while True:
            try:
                message, fds, _, _ = socket.recv_fds(self._ours, _MOST_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            if not message:  # the others are gone
                return
            held = self.held[message[1:].decode()]
            held += fds
            if message.startswith(_END):
                os.close(held.pop(0))

    def close(self) -> None:
        """Close every descriptor, once nothing reads."""
        for fd in chain.from_iterable(self.held.values()):
            os.close(fd)
        self.held.clear()
        self._ours.close()
        self._theirs.close()

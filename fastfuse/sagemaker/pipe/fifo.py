"""One epoch's FIFO, from before its reader comes until it has read everything or is gone.

We have both ends open from before the FIFO can be seen, so whoever opens it for reading, with ``O_NONBLOCK`` or
without, finds a writer, and waits for data: no reader takes an epoch that has not begun for an empty one. That somebody
has opened it is told by inotify (open for reading does not wake who polls the writing end, and a blocking open in a
thread could not be cancelled). Then our reading end is closed, and from there on the end of the last reader is a
`BrokenPipeError`.

What bounds it is the kernel: who writes and who reads copy in turns, under the pipe's one lock, and each page written
is a new one, which whoever reads gives back. Where a host takes free pages back and has to find them again (free page
reporting), the same bytes took up to five times as long, nearly all of it in the copy into new pages.

So pages that nobody will ever write to again are lent (``vmsplice``), and only the reader copies: 2.5 to 13 GB/s where
writes brought 1.0 to 2.4, with two threads filling the pages. If they were used again, a reader that splices them on
(``pv``, ``tee``) and so holds them for as long as it likes would get wrong bytes.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import socket
import stat
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import trio

from fastfuse.errors import ConfigurationError, MountError
from fastfuse.objects import Buffer

__all__ = ["Fifo", "Guard", "remove_stale"]

# One write. The reader takes them while the next is on its way; larger ones wait for each other (measured with pipes of
# 1 MiB: 2.1 GB/s for writes of 64 KiB or 1 MiB, 3.2 for 256 and 512 KiB). In a thread they were no faster, with parts
# arriving beside them either.
_WRITE_BYTES = 512 << 10
# Linux's default maximum for users without privileges, /proc/sys/fs/pipe-max-size. With 64 KiB, the default of a pipe,
# it is a fifth of the speed.
_PIPE_BYTES = 1 << 20
_LEAST_PIPE_BYTES = 64 << 10
# Less is copied: each page lent takes a place of the pipe's, however little of it is data.
_LEAST_LENT_BYTES = 64 << 10
_SPLICE_F_NONBLOCK = 2  # <fcntl.h>
# Where write is allowed and vmsplice is not (seccomp), or not there (gVisor).
_CANNOT_LEND = {errno.EPERM, errno.ENOSYS}
_IN_OPEN = 0x20  # <sys/inotify.h>
# struct inotify_event without a name: watch, mask, cookie, length of the name.
_EVENT = struct.Struct("iIII")
_EVENTS_BYTES = 256 * _EVENT.size
_MODE = 0o644
_LIBC = ctypes.CDLL(None, use_errno=True)


class _IoVector(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("size_bytes", ctypes.c_size_t))


def _nowhere(_: memoryview) -> int:
    return 0


class Fifo:
    """The FIFO at `path`; making it and waiting for its reader never blocks the thread."""

    def __init__(self, path: Path, lent_from: Callable[[memoryview], int] = _nowhere) -> None:
        """Make it. `lent_from` has the address of bytes if nothing is ever written to their pages again, or else 0.

        Raises:
            ConfigurationError: something that is no FIFO is there.
            MountError: it cannot be made.
        """
        self.path = path
        self._write_fd = self._read_fd = self._opens_fd = -1
        # Written since other tasks had their turn.
        self._turn_bytes = 0
        self._lent_from = lent_from
        hidden = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            hidden.unlink(missing_ok=True)
            os.mkfifo(hidden)
            try:
                self._open(hidden)
                _unlink_fifo(path)
                os.link(hidden, path)  # which, unlike a rename, takes nobody's place
            finally:
                hidden.unlink()
        except FileExistsError as error:
            self._close()
            raise _in_the_way(path) from error
        except OSError as error:
            self._close()
            is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            raise MountError(
                f"the FIFO {str(path)!r} cannot be made: {error.strerror}",
                hint="free some space or inodes" if is_full else "it takes a file system with FIFOs",
            ) from error

    def close(self) -> None:
        """Remove it. What was written is there for its reader, and then its end. Idempotent."""
        self.hide()
        self._close()

    def hide(self) -> None:
        """Nobody can open it any more; whoever has it open is not concerned."""
        with contextlib.suppress(OSError):  # somebody else has removed it, or its directory
            if os.path.samestat(os.lstat(self.path), os.fstat(self._write_fd)):
                self.path.unlink()

    def has_reader(self) -> bool:
        """Whether anybody has it open for reading; once it is `opened`."""
        poll = select.poll()
        poll.register(self._write_fd, 0)  # POLLERR comes unasked
        return not poll.poll(0)

    def was_opened_again(self) -> bool:
        """Whether anybody has opened it since it was `opened`: then no reader is sure to get everything."""
        try:
            events = os.read(self._opens_fd, _EVENTS_BYTES)
        except BlockingIOError:
            return False
        # Others tell that it was removed.
        return any(mask & _IN_OPEN for _, mask, _, _ in _EVENT.iter_unpack(events))

    def fileno(self) -> int:
        """The writing end."""
        return self._write_fd

    async def opened(self) -> None:
        """Wait until somebody has opened it for reading, even if that one has closed it again."""
        await trio.lowlevel.wait_readable(self._opens_fd)
        os.read(self._opens_fd, _EVENTS_BYTES)  # of all until now, who can have read nothing
        os.close(self._read_fd)
        self._read_fd = -1

    async def write(self, data: Buffer) -> None:
        """Write all of it, once it is `opened`. A checkpoint where it has to wait, or has much to write.

        Raises:
            BrokenPipeError: there is no reader any more.
        """
        rest = memoryview(data)
        address = self._lent_from(rest) if len(rest) >= _LEAST_LENT_BYTES else 0
        while rest:
            try:
                if address:
                    written = self._lend(address + len(data) - len(rest), min(len(rest), _WRITE_BYTES))
                else:
                    written = os.write(self._write_fd, rest[:_WRITE_BYTES])
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._write_fd)
                self._turn_bytes = 0
                continue
            except OSError as error:
                if not address or error.errno not in _CANNOT_LEND:
                    raise
                self._lent_from, address = _nowhere, 0
                continue
            rest = rest[written:]
            self._turn_bytes += written
            if self._turn_bytes >= _WRITE_BYTES:
                await trio.lowlevel.checkpoint()
                self._turn_bytes = 0

    def _lend(self, address: int, size_bytes: int) -> int:
        """vmsplice(2): the pages themselves, as many as there is room for; raises as `os.write`."""
        pages = _IoVector(address, size_bytes)
        count: int = _LIBC.vmsplice(self._write_fd, ctypes.byref(pages), 1, _SPLICE_F_NONBLOCK)
        if count < 0:
            raise _last_error()
        return count

    def _open(self, hidden: Path) -> None:
        os.chmod(hidden, _MODE)  # whatever the umask is
        # A FIFO that nobody reads cannot be opened for writing alone; for both it can.
        self._read_fd = os.open(hidden, os.O_RDWR | os.O_NONBLOCK)
        self._write_fd = os.open(hidden, os.O_WRONLY | os.O_NONBLOCK)
        _enlarge(self._write_fd)
        self._opens_fd = _watch_opens(hidden)

    def _close(self) -> None:
        for fd in (self._opens_fd, self._read_fd, self._write_fd):
            if fd >= 0:
                os.close(fd)
        self._opens_fd = self._read_fd = self._write_fd = -1


def remove_stale(directory: Path, channel: str) -> None:
    """Remove the FIFOs of an earlier run: whoever opened one would wait for ever."""
    for path in directory.glob(f"{channel}_*"):
        epoch = path.name.removeprefix(f"{channel}_")
        if epoch.isascii() and epoch.isdigit() and stat.S_ISFIFO(path.lstat().st_mode):
            path.unlink(missing_ok=True)


def _unlink_fifo(path: Path) -> None:
    try:
        is_fifo = stat.S_ISFIFO(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_fifo:
        raise FileExistsError
    path.unlink()


def _in_the_way(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{str(path)!r} is where a FIFO of the channel belongs, and it is none",
        hint="move it away, or give the channel another name",
    )


def _enlarge(fd: int) -> None:
    """As far as the system allows; a user's pipes together have a limit, too (pipe-user-pages-soft)."""
    size_bytes = _PIPE_BYTES
    while size_bytes > _LEAST_PIPE_BYTES:
        try:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size_bytes)
        except OSError:
            size_bytes //= 2
        else:
            return


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def _watch_opens(path: Path) -> int:
    """A descriptor that is readable as soon as anybody opens `path` from now on, by whatever name."""
    fd: int = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0 or _LIBC.inotify_add_watch(fd, os.fsencode(path), _IN_OPEN) < 0:
        error = _last_error()
        if fd >= 0:
            os.close(fd)
        raise MountError(
            f"nobody would tell when {str(path)!r} is opened: {error.strerror}",
            hint="raise fs.inotify.max_user_instances",
        ) from error
    return fd


_BEGIN, _END = b"+", b"-"


class Guard:
    """Between two processes, the one of which forks the other. Every method returns at once."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        # In the order of the epochs.
        self._held: list[int] = []

    def fileno(self) -> int:
        """Readable when there is something to `update`."""
        return self._ours.fileno()

    def hold(self, fd: int) -> None:
        """In the streamer: the FIFO with the writing end `fd` is there for readers."""
        with suppress(ConnectionError):  # whoever held them was killed
            socket.send_fds(self._theirs, [_BEGIN], [fd])

    def let_go(self) -> None:
        """In the streamer: the earliest that is held is through, or nobody reads it any more."""
        with suppress(ConnectionError):
            self._theirs.send(_END)

    def hand_over(self) -> None:
        """In the process that forked the one which holds: should that be killed, nobody is to wait for it.

        What lies in a socket that another process has open, too, would stay open with it, and no epoch ever end.
        """
        self._ours.close()

    @property
    def held(self) -> Sequence[int]:
        """Writing ends, of the earliest epoch first."""
        return self._held

    def update(self) -> None:
        """In the process that started it: do as it says."""
        while True:
            try:
                message, fds, _, _ = socket.recv_fds(self._ours, 1, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            self._held += fds
            if message == _END:
                os.close(self._held.pop(0))
            elif not message:
                return

    def close(self) -> None:
        """In the process that started it: nobody reads any more."""
        if self._ours.fileno() >= 0:  # not handed over
            self.update()
        for fd in self._held:
            os.close(fd)
        self._held.clear()
        self._ours.close()
        self._theirs.close()

"""Mount and initialise one FUSE session in the supervisor; every worker inherits it.

The kernel's INIT request is answered before the first fork, so that a new worker can go on with the connection of a
dead one, and with the requests that this has left (`replies`). libfuse writes the answer, but pyfuse3 cannot
set `max_background`, whose default of 12 requests starves four readers. For this one request a socket pair stands in
for the session's descriptor: INIT is passed to libfuse through it, and the answer is taken out, completed and written
to the kernel.
"""

import errno
import mmap
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import trio

from fastfuse.errors import MountError
from fastfuse.filesystem.kernel.fuse import interposed, pyfuse3, replies
from fastfuse.filesystem.kernel.loop import own_fds, serve, take_over_waiting
from fastfuse.filesystem.kernel.notices import OUT_HEADER
from fastfuse.filesystem.mounting.mount_places import Place
from fastfuse.filesystem.mounting.mount_settings import quoted
from fastfuse.filesystem.mounting.mountpoint import SUBTYPE, new_mount, unmount
from fastfuse.filesystem.mounting.preflight import CONTAINER, DEVICE_NUMBER

# <linux/fuse.h>: fuse_in_header, fuse_read_in, fuse_init_in, fuse_init_out.
_INIT_IN = struct.Struct("=IIII")  # major, minor, max_readahead, flags
_LIMITS_OFFSET = OUT_HEADER.size + 16  # after major, minor, max_readahead, flags
_LIMITS = struct.Struct("=HHI")  # max_background, congestion_threshold, max_write
_MAX_PAGES_OFFSET = _LIMITS_OFFSET + _LIMITS.size + 4  # after time_gran
_MAX_PAGES = struct.Struct("=H")
_IN_HEADER = struct.Struct("=IIQQIIIHH")  # length, opcode, unique, nodeid, uid, gid, pid, total_extlen, padding
_READ, _READDIRPLUS = 15, 44
_READ_IN = struct.Struct("=QQIIQII")  # fh, offset, size, read_flags, lock_owner, flags, padding
_READAHEAD_OFFSET, _FLAGS_OFFSET = OUT_HEADER.size + 8, OUT_HEADER.size + 12
_READAHEAD = struct.Struct("=I")
_FLAGS = struct.Struct("=I")
# Without it, O_TRUNC comes as a SETATTR, which is refused. With it, the kernel would ask in the OPEN that it does not
# send, and take the file for empty.
_ATOMIC_O_TRUNC = 1 << 3
_OPENS_BY_ITSELF = 1 << 17 | 1 << 24  # FUSE_NO_OPEN_SUPPORT, and FUSE_NO_OPENDIR_SUPPORT of Linux 5.1

# Requests of kernel readahead that may wait at once, over all readers: 64 readers of four 1 MiB requests.
_MAX_BACKGROUND_REQUESTS = 256
_CONGESTION_THRESHOLD = 192  # three quarters, as the kernel's own default
# The least, and no write is served. The kernel wants more room than this for every request (`replies`).
_MAX_WRITE_BYTES = 4096
# libfuse offers 256 pages, 16 MiB where a page has 64 KiB: a read past the page cache could ask for more than a part.
_MAX_READ_BYTES = 1 << 20

_INIT_REQUEST_MAX_BYTES = 1 << 20
_PROFILE = Path("/etc/apparmor.d/fusermount3")  # Ubuntu 25.10 and 26.04 have it
_TRIED_INODE = 1 << 41 | 7


class Session:
    """A mounted file system and the descriptor of its connection. One process can hold one (pyfuse3)."""

    def __init__(self, place: Place, device: str, fd: int) -> None:
        self.place = place
        # ``major:minor``: tells this mount from another one at the same place while this one lives.
        self.device = device
        # Requests are read from it and answers written to it.
        self.fd = fd
        # Every worker keeps there what it has not answered. Written to, so that no page of it is missing later.
        self.requests = mmap.mmap(-1, replies.REQUESTS_BYTES)
        self.requests[:] = bytes(replies.REQUESTS_BYTES)
        # The number of the request that the last worker crashed under; 0 if there was none.
        self._crashed_under = 0

    @classmethod
    def mount(
        cls,
        operations: pyfuse3.Operations,
        place: Place,
        *,
        source: str,
        allow_other: bool,
        options: tuple[str, ...] = (),
    ) -> "Session":
        """Mount and answer INIT.

        Raises:
            MountError: the kernel or fusermount3 refused; the error says what to do.
        """
        name = quoted(source)
        arguments = {"ro", "default_permissions", f"fsname={name}", f"subtype={SUBTYPE}", *options}
        if allow_other:
            arguments.add("allow_other")
        take_over_waiting()
        ready = place.mount(name)
        fds_before = _fuse_fds()
        # libfuse serves a descriptor that it is named in this way, and mounts nothing.
        held = place.target() if ready is None else nullcontext(f"/dev/fd/{ready.fd}")
        with held as target, _captured_stderr() as captured:
            try:
                pyfuse3.init(operations, target, arguments)
            except RuntimeError as error:
                raise _mount_error(place.mountpoint, captured()) from error
        device = ready.device if ready is not None else ""
        try:
            if ready is None:
                entry = new_mount(place.mountpoint)
                device = entry.device
                place.mounted(entry)
            # pyfuse3 does not expose the descriptor of its own mount.
            fd = ready.fd if ready is not None else (_fuse_fds() - fds_before).pop()
            _shake_hands(operations, fd, ready.readahead_bytes if ready is not None else None)
            return cls(place, device, fd)
        except BaseException:
            pyfuse3.close(unmount=False)
            if ready is None and device:
                with suppress(MountError):
                    unmount(place.mountpoint, lazy=True, device=device)
            raise

    @property
    def is_connected(self) -> bool:
        """Return whether requests can still come: not after an abort, or once unmounted with the last file closed."""
        poll = select.poll()
        poll.register(self.fd, 0)
        return not poll.poll(0)  # fuse_dev_poll: EPOLLERR

    def is_mounted(self) -> bool:
        """Return whether this mount is at its place, or where somebody has moved it, even if another one covers it."""
        return self.place.is_mounted(self.device, is_connected=self.is_connected)

    def unmount(self) -> None:
        """Detach this mount, and never another one; do nothing if it is already unmounted. Open files live on.

        Raises:
            MountError: it may not be unmounted, or another mount covers it.
        """
        if not self.is_mounted():
            return
        try:
            self.place.unmount(self.device)
        except MountError:
            if self.is_mounted():
                raise

    @property
    def can_go_on(self) -> bool:
        """Return whether another worker can go on: not if the connection is gone, or a request was not kept."""
        return self.is_connected and replies.are_all_kept(self.requests)

    @property
    def owed(self) -> set[int]:
        """The numbers of the requests that workers have read and not answered."""
        return replies.owed(self.requests)

    @property
    def is_waited_for(self) -> bool:
        """Return whether a request waits: to be read, or for its answer."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(self.owed) or any(event & select.POLLIN for _, event in poll.poll(0))

    def refuse_deadly_request(self, *, is_blameless: bool) -> tuple[int, int, int] | None:
        """Fail the request that the last two workers crashed under, if it is the same one; call it after each death.

        Return its number, operation and inode. A READ is none: reads are under way together (`in_hand`).
        Nor is a request to blame if the worker `is_blameless`.
        """
        request = replies.under_way(self.requests)
        if is_blameless:
            return None
        number, self._crashed_under = self._crashed_under, request[0] if request else 0
        if request is None or request[0] != number:
            return None
        # If the kernel does not take it, it stays under way, for the next worker.
        return request if replies.fail_under_way(self.requests, self.fd, errno.EIO) else None

    def abort(self) -> None:
        """End the connection for every process that holds it; every request of the mount fails from now on."""
        if self.is_connected:
            self.is_mounted()  # learns where it is now
            self.place.abort(self.device)

    def close(self) -> None:
        """Close the connection; without a worker, every request of the mount fails from now on."""
        pyfuse3.close(unmount=False)


def _shake_hands(operations: pyfuse3.Operations, fd: int, readahead_bytes: int | None) -> None:
    """Serve INIT on the session's `fd`, and require that requests come with the inode.

    Raises:
        MountError: they do not, so every file would be read as the inode 0; or this kernel will not do.
    """
    device = os.dup(fd)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        request = os.read(device, _INIT_REQUEST_MAX_BYTES)
        # A request may be gone before it is read: its caller was killed. Whoever read it would wait for the next one.
        os.set_blocking(device, False)
        *_, flags = _INIT_IN.unpack_from(request, _IN_HEADER.size)
        if flags & _OPENS_BY_ITSELF != _OPENS_BY_ITSELF:
            message = "this kernel cannot serve a mount of fastfuse (it lacks FUSE_NO_OPENDIR_SUPPORT)"
            raise MountError(message, hint="use Linux 5.1 or later")
        os.dup2(theirs.fileno(), fd)
        ours.send(request)
        for opcode in (_READ, _READDIRPLUS):  # in the place of the kernel
            header = _IN_HEADER.pack(
                _IN_HEADER.size + _READ_IN.size, opcode, 2, _TRIED_INODE, os.geteuid(), os.getegid(), 1, 0, 0
            )
            ours.send(header + _READ_IN.pack(0, 0, 1, 0, 0, 0, 0))
        found = trio.run(_serve_tried, operations)
        reply = bytearray(ours.recv(_INIT_REQUEST_MAX_BYTES))
        if found != [_TRIED_INODE, 1 << interposed.HANDLE_INODE_BITS | _TRIED_INODE]:
            raise MountError(
                "libfuse does not say which inode is read",
                hint="install fastfuse anew, so that it is compiled with this machine's libfuse, and import no pyfuse3 "
                "before it",
            )
        _complete(reply, readahead_bytes=readahead_bytes)
        os.write(device, reply)
    finally:
        os.dup2(device, fd, inheritable=True)
        for end in (ours, theirs):
            end.close()
        os.close(device)


def _complete(reply: bytearray, *, page_bytes: int = mmap.PAGESIZE, readahead_bytes: int | None = None) -> None:
    """Put our limits into libfuse's `reply` to INIT."""
    if readahead_bytes is not None:
        _READAHEAD.pack_into(reply, _READAHEAD_OFFSET, readahead_bytes)
    _LIMITS.pack_into(reply, _LIMITS_OFFSET, _MAX_BACKGROUND_REQUESTS, _CONGESTION_THRESHOLD, _MAX_WRITE_BYTES)
    _MAX_PAGES.pack_into(reply, _MAX_PAGES_OFFSET, _MAX_READ_BYTES // page_bytes)
    (agreed,) = _FLAGS.unpack_from(reply, _FLAGS_OFFSET)
    _FLAGS.pack_into(reply, _FLAGS_OFFSET, agreed & ~_ATOMIC_O_TRUNC)


async def _serve_tried(operations: pyfuse3.Operations) -> list[int]:
    """Serve until READDIRPLUS; return the inode of the READ before it, and its handle, as far as they are known."""
    found = []

    def take(_number: int, inode: int, *_: int) -> None:
        found.append(inode)

    async def readdir(handle: int, *_: object) -> None:
        found.append(handle)
        scope.cancel()

    interposed.take_reads(take)
    operations.readdir = readdir  # type: ignore[assignment, method-assign]
    try:
        with trio.CancelScope() as scope:
            await serve()
    finally:
        del operations.readdir
    return found


def _fuse_fds() -> set[int]:
    """Return the descriptors of this process that are open on the FUSE device."""
    return own_fds(lambda fd: os.fstat(fd).st_rdev == DEVICE_NUMBER)


def _mount_error(mountpoint: Path, reason: str) -> MountError:
    """Return an error with what libfuse or fusermount3 printed, and what to do."""
    reason = reason.strip().splitlines()[-1] if reason.strip() else "libfuse gives no reason"
    reason = reason.removeprefix("fusermount3: ").removeprefix("fuse: ").removeprefix("error: ")
    hint = CONTAINER if "not permitted" in reason or "ermission denied" in reason else ""
    if reason == "mount failed: Permission denied" and _PROFILE.exists():
        hint = "AppArmor confines fusermount3 to home directories, /mnt, /media and /tmp: mount there, or as root"
    return MountError(f"{mountpoint} cannot be mounted on: {reason}", hint=hint)


@contextmanager
def _captured_stderr() -> Iterator[Callable[[], str]]:
    """Capture standard error, where libfuse and fusermount3 explain a refusal."""
    saved = os.dup(2)
    # A container may have no place to write to, so the file is in memory.
    with os.fdopen(os.memfd_create("fastfuse-stderr")) as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lambda: os.pread(file.fileno(), 1 << 16, 0).decode("utf-8", "replace")
        finally:
            os.dup2(saved, 2)
            os.close(saved)

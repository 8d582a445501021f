"""Where a session is mounted, and by whom: this process, a helper with the rights for it, or whoever started us."""

import fcntl
import json
import logging
import mmap
import os
import re
import select
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from fastfuse.errors import MountError
from fastfuse.filesystem.mounting.fuse_helper import MAX_PACKET_BYTES, PROTOCOL
from fastfuse.filesystem.mounting.mount_settings import MountSettings
from fastfuse.filesystem.mounting.mountpoint import (
    MountEntry,
    abort,
    bdi_number,
    find_mount,
    is_dead,
    place_of,
    prepare_mountpoint,
    raise_readahead,
    readahead_kib,
    unmount,
)
from fastfuse.filesystem.mounting.preflight import DEVICE_NUMBER, check_device, may_mount, obstacle
from fastfuse.filesystem.processes.children import heard
from fastfuse.locks import lock

_log = logging.getLogger(__name__)

# A helper looks whether a mount that does not answer lives, for 10 s at most.
_HELPER_WITHIN_S: Final = 30.0
# mount(2) and fusermount3 take milliseconds.
_CLAIM_WITHIN_S: Final = 2.0
# The kernel sends INIT as it mounts.
_INIT_WITHIN_S: Final = 5.0


class Ready(NamedTuple):
    """A mount that was made for us: its descriptor, and its ``major:minor``, or "" if it cannot be known.

    If `readahead_bytes` are given, the kernel is told to read ahead no more.
    """

    fd: int
    device: str
    readahead_bytes: int | None = None


class Place:
    """A directory that this process, or fusermount3 for it, mounts on, one mount after the other.

    All raise MountError for what cannot be done.
    """

    def __init__(self, mountpoint: Path, created: Sequence[Path] = ()) -> None:
        """Take a directory; `created` was made for it, the innermost directory first."""
        self.mountpoint = mountpoint
        # The numbers of what was mounted here, 0 before: see `MountEntry` and `bdi_number`.
        self._mount_id = self._bdi_number = 0
        self._created = [*created]

    def abandon(self) -> None:
        """Remove what was created for a mount that is not made after all, unless somebody else uses it."""
        with suppress(OSError):
            for path in self._created:
                path.rmdir()

    def mount(self, name: str) -> Ready | None:
        """Mount under this name; None leaves it to libfuse, which mounts at `target`."""
        # A dead mount is cleared only now: readers would take the empty directory for the data. Another process, which
        # had made the directory for a mount that failed, may have removed it.
        prepare_mountpoint(self.mountpoint, create_parents=True, created=self._created)
        return None

    def mounted(self, entry: MountEntry) -> None:
        """Note what was mounted here, by which `is_mounted` knows it."""
        self._mount_id, self._bdi_number = entry.id, bdi_number(entry.device)

    @contextmanager
    def target(self) -> Iterator[str]:
        """Yield the directory, by a name that leads nowhere else if its owner puts a link in its place.

        Where fusermount3 mounts, that is the path: it takes care of links itself. No other process of ours mounts there
        meanwhile.
        """
        try:
            fd = os.open(self.mountpoint, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            raise MountError(f"{self.mountpoint} cannot be mounted on: {error.strerror}") from error
        try:
            self._claim(fd)
            if not may_mount():
                yield str(self.mountpoint)
                return
            name = f"/proc/self/fd/{fd}"
            if os.readlink(name) != str(self.mountpoint) or os.listdir(fd):
                raise MountError(f"{self.mountpoint} is no longer an empty directory", hint="see who changes it")
            os.set_inheritable(fd, True)  # where mount(2) is refused, libfuse has fusermount3 say why
            yield name
        finally:
            os.close(fd)

    def _claim(self, fd: int) -> None:
        """Lock the directory until `fd` is closed: tasks of a launcher may all mount there, and have found it empty.

        One that stays locked is mounted on all the same: whoever has started us may hold it.
        """
        with suppress(OSError):  # it stays locked, or its file system has no locks
            lock(fd, fcntl.LOCK_EX, _CLAIM_WITHIN_S)
        if find_mount(self.mountpoint) is not None:
            prepare_mountpoint(self.mountpoint, create_parents=False)

    def is_mounted(self, device: str, *, is_connected: bool) -> bool:
        """Return whether the mount is there, whose connection still lives or has ended.

        If somebody has moved it, its new place becomes this one.
        """
        path = place_of(self._mount_id, device)
        # A later mount may have id and device of ours. If our connection has ended, ours is dead.
        if path is None or bdi_number(device) != self._bdi_number or not (is_connected or is_dead(path)):
            return False
        if path != self.mountpoint:
            _log.warning("the mount was moved from %s to %s", self.mountpoint, path)
            self.mountpoint = path
        return True

    def unmount(self, device: str) -> None:
        unmount(self.mountpoint, lazy=True, device=device)

    def abort(self, device: str) -> None:
        abort(self.mountpoint, device)

    def raise_readahead(self, device: str) -> None:
        if device:
            raise_readahead(device)

    def close(self) -> None:
        """Let go of it."""


class HelperPlace(Place):
    """The place of a helper (`fuse_helper`), which need not be seen from here. It is held until `close`."""

    def __init__(self, path: Path) -> None:
        """Connect to the helper's socket.

        Raises:
            MountError: nobody listens there for this user.
        """
        super().__init__(Path("the place of the helper"))
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.settimeout(_HELPER_WITHIN_S)
        try:
            self._connection.connect(os.fspath(path))
        except OSError as error:
            self._connection.close()
            raise MountError(
                f"no helper can be reached at --fuse-socket {path}: {error.strerror or error}",
                hint=f"start it first, as root: fastfuse fuse-helper --socket {path} --user {os.geteuid()} MOUNTPOINT",
            ) from error
        try:
            # Before the listing, which may take minutes: it may serve another process.
            self.mountpoint = Path(self._ask("is_mounted")[0].get("mountpoint", self.mountpoint))
        except BaseException:
            self._connection.close()
            raise

    def mount(self, name: str) -> Ready:
        found, fds = self._ask("mount", source=name)
        if len(fds) != 1:
            raise MountError("the helper sent no descriptor", hint="use one version of fastfuse")
        self.mountpoint = Path(found["mountpoint"])
        return Ready(fds[0], found["device"])

    def is_mounted(self, device: str, *, is_connected: bool) -> bool:
        if is_connected:
            return True
        try:
            return bool(self._ask("is_mounted")[0]["is_mounted"])
        except MountError:
            return False  # without a connection and without a helper nothing can go on

    def unmount(self, device: str) -> None:
        self._ask("unmount")

    def abort(self, device: str) -> None:
        self._ask("abort")

    def raise_readahead(self, device: str) -> None:
        self._ask("raise_readahead")
        raise_readahead(device)  # which says so if the helper could not

    def close(self) -> None:
        self._connection.close()

    def _ask(self, request: str, **more: object) -> tuple[dict[str, Any], list[int]]:
        asked = json.dumps({"fastfuse": PROTOCOL, "request": request, **more})
        try:
            with suppress(BrokenPipeError):  # it may have said why before it hung up
                self._connection.send(asked.encode())
            packet, fds, _, _ = socket.recv_fds(self._connection, MAX_PACKET_BYTES, 1)
        except OSError as error:
            raise MountError(f"the helper does not answer: {error.strerror or error}", hint="see its log") from error
        if not packet:
            raise MountError("the helper has ended", hint="see its log")
        return heard(packet), fds


class GivenPlace(Place):
    """A mount that whoever started us has made, and unmounts."""

    def __init__(self, fd: int, mountpoint: Path) -> None:
        """Take the descriptor of the mount.

        Raises:
            MountError: it is none of the FUSE device.
        """
        super().__init__(mountpoint)
        self._fd = fd
        # The ``major:minor`` of the mount, once it is sure: another one may lie at the mountpoint. And the readahead by
        # which its bdi is known after INIT.
        self._device, self._mark_kib = "", 0
        try:
            is_fuse = os.fstat(fd).st_rdev == DEVICE_NUMBER
        except OSError:
            is_fuse = False
        if not is_fuse:
            raise MountError(
                f"--fuse-fd {fd} is not open on /dev/fuse", hint="pass on the descriptor that was given to mount(2)"
            )

    def mount(self, name: str) -> Ready:
        if self._fd < 0:
            raise MountError(
                f"{self.mountpoint} cannot be mounted again, for the one descriptor was --fuse-fd",
                hint="--fuse-socket can mount again",
            )
        fd, self._fd = self._fd, -1
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        # An error says that no mount has it, or one that has ended.
        if poll.poll(_INIT_WITHIN_S * 1000) != [(fd, select.POLLIN)]:
            raise MountError(
                f"the kernel asks nothing on --fuse-fd {fd}", hint="mount with it first, and serve it with one process"
            )
        self._device = _device_of(fd)
        if self._device:
            return Ready(fd, self._device)
        entry = find_mount(self.mountpoint)
        if entry is not None and entry.file_system_type.partition(".")[0] == "fuse":
            self._mark_kib = max(0, readahead_kib(entry.device) - mmap.PAGESIZE // 1024)
            return Ready(fd, entry.device, self._mark_kib << 10 or None)
        _log.warning(
            "no FUSE mount is seen at %s from here: no readahead is set, and status, refresh and hints are not served",
            self.mountpoint,
        )
        return Ready(fd, "")

    def is_mounted(self, device: str, *, is_connected: bool) -> bool:
        return is_connected

    def unmount(self, device: str) -> None:
        """Leave it to who mounted, and may hold the descriptor: end the connection, for nobody serves it any more."""
        self.abort(device)

    def raise_readahead(self, device: str) -> None:
        if not self._device and self._mark_kib:
            if readahead_kib(device) != self._mark_kib:
                return  # another mount covers ours
            self._device = device
        super().raise_readahead(device)

    def abort(self, device: str) -> None:
        if self._device:
            abort(self.mountpoint, self._device)
        else:
            _log.warning(
                "programs that still read from %s may hang until --fuse-fd is closed everywhere: which mount it is of "
                "is not sure",
                self.mountpoint,
            )


def _device_of(fd: int) -> str:
    """Return the ``major:minor`` of the mount with this descriptor, or "" before Linux 6.16, which does not tell."""
    # The kernel's own number, with 20 bits for the minor one.
    told = re.search(r"^fuse_connection:\t(\d+)$", Path(f"/proc/self/fdinfo/{fd}").read_text(), re.MULTILINE)
    return f"{int(told[1]) >> 20}:{int(told[1]) & 0xFFFFF}" if told else ""


def place_for(settings: MountSettings) -> Place:
    """Return the place of a mount, checked as far as it can be before the listing.

    Raises:
        MountError: nothing can be mounted there; the error says why and what to do.
    """
    if settings.fuse_socket is not None:
        return HelperPlace(settings.fuse_socket)
    if settings.fuse_fd is not None:
        return GivenPlace(settings.fuse_fd, settings.mountpoint)
    created: list[Path] = []
    mountpoint = prepare_mountpoint(
        settings.mountpoint, create_parents=settings.create_parents, created=created, keeps_dead=True
    )
    place = Place(mountpoint, [mountpoint] if settings.is_temporary else created)
    try:
        check_device()
        found = obstacle(mountpoint, allow_other=settings.allow_other)
        if found is not None:
            raise found
    except MountError:
        place.abandon()
        raise
    return place

"""Prepare, find and unmount the place of a mount in the file system.

Everything is read from ``/proc/self/mountinfo`` first, because ``stat`` of a hung mount would hang, too.
"""

import ctypes
import errno
import logging
import os
import re
import shutil
import signal
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from pathlib import Path

from fastfuse.errors import MountError
from fastfuse.filesystem.processes.children import fork_child, is_over_within, wait_child
from fastfuse.filesystem.processes.sockets import addresses, control_prefix, hint_prefix

_log = logging.getLogger(__name__)

SUBTYPE = "fastfuse"
_FILE_SYSTEM_TYPE = f"fuse.{SUBTYPE}"
_OWN = Path("/proc/self")

# The kernel's own limit on links that lead to links (path_resolution(7)).
_MAX_LINKS = 40

# A live mount answers `statvfs` from memory; the time is for a loaded machine.
_ANSWER_WITHIN_S = 10.0

# The errors of `statvfs` on a mount whose connection has ended.
_DEAD = {errno.ENOTCONN, errno.ECONNABORTED}

# <sys/mount.h>
_MNT_FORCE, _MNT_DETACH, _UMOUNT_NOFOLLOW = 1, 2, 8

# One for each file system of FUSE, by ``major:minor``, as long as it is mounted anywhere.
_BDI = Path("/sys/class/bdi")
# One request of 1 MiB ahead of the reader: more bring it nothing, and each page fault of a map asks for as much around
# it. The kernel takes it over as a file is opened, so it cannot follow a reader. docs/MEASUREMENTS.md, "Mount".
READ_AHEAD_KIB = 1024
# https://www.kernel.org/doc/html/latest/filesystems/fuse.html#control-filesystem
_CONNECTIONS = Path("/sys/fs/fuse/connections")


@dataclass(frozen=True, slots=True)
class MountEntry:
    """One line of mountinfo (proc(5))."""

    path: Path
    device: str  # "major:minor", the name of its bdi in sysfs
    file_system_type: str
    source: str
    owner_uid: int | None
    # The folder of the file system that the mount shows; a bind mount may show another one than the root.
    root: Path = Path("/")
    id: int = 0  # as /proc/self/fdinfo names it

    @property
    def is_ours(self) -> bool:
        return self.file_system_type == _FILE_SYSTEM_TYPE


def fastfuse_mounts(uid: int | None = None) -> list[Path]:
    """Return where fastfuse file systems are mounted, those that `uid` mounted if given, in order of mounting."""
    return [entry.path for entry in _entries() if entry.is_ours and uid in (None, entry.owner_uid)]


def fastfuse_file_systems() -> list[MountEntry]:
    """Return each fastfuse file system once, at the place where it was mounted first: others are bind mounts of it."""
    first: dict[str, MountEntry] = {}
    for entry in _entries():
        if entry.is_ours:
            first.setdefault(entry.device, entry)
    return list(first.values())


def find_mount(path: Path) -> MountEntry | None:
    """Return the topmost mount at exactly `path`, or None. Pass over the trigger of an automount."""
    place = _resolved(path)
    return next((one for one in reversed(_entries()) if one.path == place and one.file_system_type != "autofs"), None)


def new_mount(place: Path) -> MountEntry:
    """Return the topmost mount at `place`, which was just made there; follow no link that has come since.

    Raises:
        MountError: none of fastfuse is there.
    """
    entry = next((entry for entry in reversed(_entries()) if entry.path == place), None)
    if entry is None or not entry.is_ours:
        raise MountError(f"{place} was moved or unmounted by somebody else right away")
    return entry


def place_of(mount_id: int, device: str) -> Path | None:
    """Return where the mount with this id is, which it keeps as it is moved, or None."""
    return next((entry.path for entry in _entries() if (entry.id, entry.device) == (mount_id, device)), None)


def mount_holding(path: Path) -> MountEntry | None:
    """Return the mount that `path`, which is absolute and has no link in it, lies in; a chroot may have none at /."""
    holding = [entry for entry in reversed(_entries()) if path.is_relative_to(entry.path)]
    return max(holding, key=lambda entry: len(entry.path.parts), default=None)  # of those at one place, the topmost


def is_mounted(path: Path, device: str) -> bool:
    """Return whether the mount with this ``major:minor`` is at `path`, even if another one covers it."""
    place = _resolved(path)
    return any(entry.path == place and entry.device == device for entry in _entries())


def is_dead(path: Path, within_s: float = inf) -> bool:
    """Return whether the connection of the mount at `path` has ended; a mount that only hangs is not dead."""
    return errno_of_statvfs(path, within_s) in _DEAD


def abort(path: Path, device: str) -> None:
    """End the connection of the mount with this ``major:minor`` for every process; readers that wait get an error.

    A connection may outlive its daemon: the process that sends notices may wait for a reader, the reader for an answer,
    and neither can be killed. The mount stays.
    """
    try:
        (_CONNECTIONS / device.partition(":")[2] / "abort").write_text("1")
        return
    except OSError as error:
        reason = error
    # Fusectl is not mounted in most containers, or is read-only.
    entry = find_mount(path)
    if os.geteuid() == 0 and entry is not None and entry.device == device:
        try:
            _umount2(entry, _MNT_FORCE)  # ends the connection even if the mount is busy
            return
        except OSError as error:
            if not is_mounted(path, device):
                return
            reason = error
    _log.warning("programs that still read from %s may hang: its connection cannot be ended (%s)", path, reason)


def _is_served(entry: MountEntry) -> bool:
    return bool(addresses(control_prefix(entry.device)))


def _has_left_process(entry: MountEntry) -> bool:
    """Return whether a process outlived its killed supervisor: it holds the hint socket, and the connection.

    A mount of another network namespace has no socket here. It may only be frozen.
    """
    return not _is_served(entry) and bool(addresses(hint_prefix(entry.device)))


def _abort_if_there(entry: MountEntry) -> None:
    # The probe has taken a while: the mount may be gone, and its number may be another mount's.
    if is_mounted(entry.path, entry.device):
        abort(entry.path, entry.device)


def prepare_mountpoint(
    path: Path, *, create_parents: bool, created: list[Path] | None = None, keeps_dead: bool = False
) -> Path:
    """Make sure that `path` is an empty directory to mount on, and return it absolute and without links.

    A missing directory is created. Its parents are created only with `create_parents`: a missing parent is most likely
    mistyped. What is created is added to `created`, the innermost directory first. A dead fastfuse mount of this user
    is cleared (L4), or kept with `keeps_dead`: readers get an error from it. A live one, or another user's, is never
    touched.

    Raises:
        MountError: the place cannot be used; the error says why and what to do.
    """
    entry = find_mount(path)
    if entry is not None:
        _require_dead(entry)
        if keeps_dead:
            return entry.path
        if find_mount(path) == entry:
            unmount(path, lazy=True, device=entry.device)
    try:
        with os.scandir(path) as entries:
            is_empty = next(entries, None) is None
    except FileNotFoundError:
        made = _create(path, parents=create_parents)
        if created is not None:
            created += made
        is_empty = True
    except NotADirectoryError as error:
        raise _no_directory_error(path) from error
    except OSError as error:
        raise MountError(f"the mountpoint {path} cannot be used: {error.strerror}") from error
    if entry is None and (automounted := find_mount(path)) is not None:  # by the look into it
        _require_dead(automounted)
    if not is_empty:
        raise MountError(f"the mountpoint {path} is not empty", hint="mount on an empty directory")
    return _resolved(path)


def unmount(path: Path, *, lazy: bool = False, device: str | None = None) -> list[str]:
    """Unmount the fastfuse file system at `path`; `lazy` detaches it at once and lets open files live on.

    Return the bind mounts at which it is still used. With `lazy`, readers of a mount that no process serves
    get an error. With a `device` (``major:minor``) only that mount is unmounted, and no other one at its place; the
    daemon passes its own.

    Raises:
        MountError: no fastfuse file system is mounted there, files below it are open, or it may not be unmounted.
    """
    entry = find_mount(path)
    if entry is None:
        raise MountError(f"nothing is mounted at {path}", hint="'findmnt -t fuse.fastfuse' shows what is")
    if device not in {None, entry.device}:
        raise MountError(
            f"{path} is covered by another mount, of type {entry.file_system_type}", hint=f"umount {path} first"
        )
    if not entry.is_ours:
        raise MountError(f"{path} is a mount of type {entry.file_system_type}, not of fastfuse")
    if lazy and device is None and not _is_served(entry) and errno_of_statvfs(entry.path) is None:
        _abort_if_there(entry)
        if find_mount(entry.path) != entry:
            return []
    users = [other for other in _entries() if other != entry and other.device == entry.device]
    bdi = bdi_number(entry.device)
    if os.geteuid() == 0:
        unmount_as_root(entry, lazy=lazy)
    else:
        _unmount_as_user(entry.path, lazy=lazy)
    # Others went with it where mounts propagate. Those that came since may have its number, and are none of it.
    left = [str(other.path) for other in _entries() if other in users]
    if not left and not lazy and bdi and bdi_number(entry.device) == bdi:
        return ["a place that is not seen from here, such as an overlay above it, or a container"]
    return left


def raise_readahead(device: str) -> None:
    """Set the kernel's readahead of the mount with this ``major:minor``: libfuse refuses its mount option.

    Warn if that is not permitted. Who made the mount for us may have set it.
    """
    if readahead_kib(device) == READ_AHEAD_KIB:
        return
    setting = _BDI / device / "read_ahead_kb"
    try:
        setting.write_text(str(READ_AHEAD_KIB))
    except OSError as error:
        _log.warning(
            "the kernel reads ahead only 128 KiB, which costs readers of large files a third of their speed: "
            "%s cannot be written (%s); let root write %d there, or run where sysfs is writable",
            setting, error.strerror, READ_AHEAD_KIB,
        )  # fmt: skip


def readahead_kib(device: str) -> int:
    """Return the kernel's readahead of the mount with this ``major:minor``, or 0 where it cannot be known."""
    try:
        return int((_BDI / device / "read_ahead_kb").read_text())
    except (OSError, ValueError):
        return 0


def bdi_number(device: str) -> int:
    """Return the number of what sysfs shows of a file system, which no later one has; 0 if there is nothing."""
    try:
        return (_BDI / device).stat().st_ino
    except OSError:
        return 0


def _create(path: Path, *, parents: bool) -> list[Path]:
    """Create the missing mountpoint, and return what was created, the innermost directory first."""
    missing = [path, *(one for one in path.parents if parents and not os.path.lexists(one))]
    try:
        path.mkdir(parents=parents, exist_ok=True)
    except FileNotFoundError as error:
        raise MountError(
            f"the mountpoint {path} cannot be created: {path.parent} does not exist", hint=f"mkdir -p {path}"
        ) from error
    except FileExistsError as error:
        # A link to nothing.
        raise _no_directory_error(path) from error
    except OSError as error:
        raise MountError(
            f"the mountpoint {path} does not exist and cannot be created: {error.strerror}",
            hint=f"create it as a user who may write to {path.parent}",
        ) from error
    return missing


def _no_directory_error(path: Path) -> MountError:
    # mount.fuse3 -o drop_privileges and Apptainer pass a mount's descriptor so.
    hint = f"serve it with --fuse-fd {path.name}" if path.parent == Path("/dev/fd") else "mount on an empty directory"
    return MountError(f"the mountpoint {path} is not a directory", hint=hint)


def _require_dead(entry: MountEntry) -> None:
    """Raise `MountError` unless a mount is a dead one of ours; end the connection of one that left a process behind."""
    if not entry.is_ours:
        raise MountError(
            f"{entry.path} is a mountpoint already, of type {entry.file_system_type}", hint="mount on another directory"
        )
    number = errno_of_statvfs(entry.path)
    if number is None and entry.owner_uid == os.geteuid() and _has_left_process(entry):
        _abort_if_there(entry)
        number = errno.ENOTCONN
    if number is None:
        raise MountError(
            f"{entry.path} is mounted already, with {entry.source}, and does not answer",
            hint=f"fastfuse unmount --lazy {entry.path} takes it away",
        )
    if number == 0:
        raise MountError(
            f"{entry.path} is mounted already, with {entry.source}",
            hint=f"fastfuse unmount {entry.path} first, or read it: another process has mounted it",
        )
    if number not in _DEAD:
        raise MountError(f"{entry.path} is mounted already and not to be seen: {os.strerror(number)}")
    if entry.owner_uid != os.geteuid():
        raise MountError(
            f"{entry.path} holds a dead mount of user {entry.owner_uid}",
            hint=f"fastfuse unmount {entry.path} as that user",
        )


def errno_of_statvfs(path: Path, within_s: float = inf) -> int | None:
    """Probe the mount with statvfs and return its errno, 0 if it succeeds, or None if it does not answer in time.

    A child process asks, because statvfs on a hung daemon cannot be interrupted.
    """

    def ask() -> None:
        try:
            os.statvfs(path)  # not stat: the kernel caches the root's attributes and would answer for a dead mount
        except OSError as error:
            os._exit(error.errno or errno.EIO)

    child = fork_child(ask)
    if is_over_within(child, min(within_s, _ANSWER_WITHIN_S)):
        return wait_child(child)
    os.kill(child, signal.SIGKILL)  # not waited for: it ends with the mount
    return None


def unmount_as_root(entry: MountEntry, *, lazy: bool) -> None:
    """Unmount this mount, of any type, with what is mounted below it if `lazy`; raise `MountError` if that fails."""
    try:
        _umount2(entry, _MNT_DETACH if lazy else 0)
    except OSError as error:
        raise _unmount_error(entry.path, str(error.strerror)) from error


def _umount2(entry: MountEntry, flags: int) -> None:
    """Unmount this mount, and no other one that renamed directories and links have brought to its path since.

    With `_MNT_FORCE` only its connection ends, for it is held.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    parent_fd = os.open(entry.path.parent, os.O_PATH | os.O_DIRECTORY)
    with ExitStack() as parent, ExitStack() as root:
        parent.callback(os.close, parent_fd)
        place = f"/proc/self/fd/{parent_fd}/{entry.path.name}"
        root_fd = os.open(place, os.O_PATH | os.O_NOFOLLOW)  # O_PATH: a daemon that hangs is not asked
        root.callback(os.close, root_fd)
        found = Path(f"/proc/self/fdinfo/{root_fd}").read_text()
        # A directory of a shared mount that is bound onto itself shows a later mount below it twice.
        ids = [one.id for one in _entries() if (one.path, one.device) == (entry.path, entry.device)]
        if not any(f"\nmnt_id:\t{number}\n" in found for number in ids):
            raise OSError(errno.EINVAL, "another directory has taken its place")
        if not flags & _MNT_FORCE:
            root.close()
        number = ctypes.get_errno() if libc.umount2(os.fsencode(place), flags | _UMOUNT_NOFOLLOW) else 0
        if number and not (flags & _MNT_FORCE and number == errno.EBUSY):
            raise OSError(number, os.strerror(number))


def _unmount_as_user(path: Path, *, lazy: bool) -> None:
    tool = shutil.which("fusermount3")
    if tool is None:
        raise MountError("fusermount3 is not installed", hint="install the package fuse3, or unmount as root")
    command: list[str | Path] = [tool, "-u", *(["-z"] if lazy else []), "--", path]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="backslashreplace", check=False)
    except OSError as error:
        raise _unmount_error(path, f"fusermount3 cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        raise _unmount_error(path, done.stderr.strip().removeprefix("fusermount3: "))


def _unmount_error(path: Path, reason: str) -> MountError:
    is_busy = os.strerror(errno.EBUSY) in reason  # files are open below it, or a process works there
    return MountError(
        f"{path} cannot be unmounted: {reason}",
        hint="close its files, or detach it with --lazy" if is_busy else f"umount --lazy {path}, as root on the host",
    )


def _resolved(path: Path) -> Path:
    """Return `path` without links, as far as this user may look.

    A mountpoint itself is not looked at: it may be dead, or its daemon may hang.
    """
    mountpoints = {entry.path for entry in _entries()}
    place = path.absolute()
    for _ in range(_MAX_LINKS):
        parent = os.path.realpath(place.parent)  # Path.resolve fails where links lead in a circle
        place = Path(os.path.realpath(place) if place.name in {"", ".."} else os.path.join(parent, place.name))
        if place in mountpoints:
            break
        try:
            place = place.parent / place.readlink()
        except OSError:  # no link, or nothing that this user may look at
            break
    return place


def read_own(name: str) -> bytes:
    """Return what ``/proc/self/NAME`` says, or raise `MountError` where /proc is missing."""
    try:
        return (_OWN / name).read_bytes()
    except FileNotFoundError as error:
        raise MountError("/proc is not mounted here", hint="mount -t proc proc /proc") from error


def _entries() -> list[MountEntry]:
    # Not splitlines: a carriage return in a path is not escaped.
    return [_entry(line) for line in read_own("mountinfo").split(b"\n") if line]


def _entry(line: bytes) -> MountEntry:
    mount, _, file_system = line.partition(b" - ")
    number, _, device, root, path, *_ = mount.split(b" ")
    kind, source, options = file_system.split(b" ", 2)
    owner = next((o[8:] for o in options.split(b",") if o.startswith(b"user_id=")), None)
    return MountEntry(
        path=Path(os.fsdecode(_unescaped(path))),
        device=device.decode(),
        file_system_type=kind.decode(),
        source=os.fsdecode(_unescaped(source)),
        owner_uid=int(owner) if owner else None,
        root=Path(os.fsdecode(_unescaped(root))),
        id=int(number),
    )


def _unescaped(field: bytes) -> bytes:
    r"""Undo the kernel's octal escapes (``\040``) of space, tab, newline, backslash and, in sources, ``#``."""
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), field)

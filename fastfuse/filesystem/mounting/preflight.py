"""Checks before a listing, which may take minutes, that this process can mount at all.

fusermount3 makes the same checks, but only when it mounts. What cannot be found out here is taken to be permitted; what
cannot be seen, such as a security module that forbids the mount, the mount itself tells.
"""

import errno
import os
import pwd
import re
import shutil
import stat
from pathlib import Path

from fastfuse.errors import MountError
from fastfuse.filesystem.mounting.mountpoint import find_mount, read_own

CONTAINER = "in a container: --device /dev/fuse --cap-add SYS_ADMIN (and --security-opt apparmor=unconfined)"

_DEVICE = Path("/dev/fuse")
DEVICE_NUMBER = os.makedev(10, 229)  # https://www.kernel.org/doc/html/latest/admin-guide/devices.html
_FUSE_CONF = Path("/etc/fuse.conf")
_PROGRAM = "fusermount3"
_SYSTEM = frozenset({Path("/bin"), Path("/usr/bin")})
_CAP_SYS_ADMIN = 21


def obstacle(mountpoint: Path | None, *, allow_other: bool) -> MountError | None:
    """Return why this process cannot mount at `mountpoint`, or at any place of its user if that is None; or None."""
    place = mountpoint or "MOUNTPOINT"
    if may_mount():
        return None
    program = fusermount()
    if program is None:
        return MountError("fusermount3 is not installed", hint="install the package fuse3, or mount as root")
    if not os.access(program, os.X_OK):
        return MountError(f"{program} may not be executed", hint=f"chmod u+s,a+x {program} as root")
    if not _is_set_uid(program):
        hint = f"chmod u+s {program} as root, on a file system without nosuid, or mount as root"
        return MountError(f"{program} is not set-uid root, so it may not mount", hint=hint)
    if _is_of_system(program) and not _has_name(os.getuid()):
        hint = "add a line for it to /etc/passwd, mount as root, or through a helper (--fuse-socket)"
        return MountError(f"fusermount3 mounts for no user without a name, and {os.getuid()} has none", hint=hint)
    if not _may_gain_rights():
        reason = f"{place} cannot be mounted on: Operation not permitted, for this process may not gain rights"
        return MountError(reason, hint=CONTAINER)
    # A dead mount, which is cleared, hides the directory.
    if mountpoint is not None and find_mount(mountpoint) is None and not _may_write(mountpoint):
        reason = f"{place} cannot be mounted on: the user has no write access to it"
        return MountError(reason, hint=f"chown {os.geteuid()} {place} as root, or mount on a directory of your own")
    if allow_other and not may_allow_other():
        hint = f"add the line user_allow_other to {_FUSE_CONF}, or mount without --allow-other"
        return MountError(f"--allow-other takes root, or user_allow_other in {_FUSE_CONF}", hint=hint)
    return None


def may_mount() -> bool:
    """Return whether this process may mount by itself."""
    return _has_capability(read_own("status"), b"CapEff")


def fusermount() -> str | None:
    """Return the fusermount3 that would mount for this process, be it executable or not."""
    return shutil.which(_PROGRAM) or shutil.which(_PROGRAM, mode=os.F_OK)


def may_allow_other() -> bool:
    """Return whether /etc/fuse.conf lets this user mount with allow_other."""
    try:
        lines = _FUSE_CONF.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    except OSError:
        return True  # fusermount3 may read it all the same
    return os.getuid() == 0 or any(line.partition("#")[0].strip() == "user_allow_other" for line in lines)


def _may_gain_rights() -> bool:
    """Return whether a set-uid program may give this process the right to mount."""
    status = read_own("status")
    return _has_capability(status, b"CapBnd") and b"\nNoNewPrivs:\t1" not in status


def _has_capability(status: bytes, name: bytes) -> bool:
    match = re.search(rb"^%b:\s*([0-9a-f]+)$" % name, status, re.MULTILINE)
    return match is None or bool(int(match[1], 16) >> _CAP_SYS_ADMIN & 1)


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _is_of_system(program: str) -> bool:
    """Return False for a stand-in that has a mount made elsewhere, as some drivers of Kubernetes bring."""
    return Path(program).parent in _SYSTEM


def _is_set_uid(program: str) -> bool:
    if not _is_of_system(program):
        return True
    found = os.stat(program)
    is_set_uid = bool(found.st_mode & stat.S_ISUID) and found.st_uid == 0
    try:
        has_capabilities = "security.capability" in os.listxattr(program)
    except OSError:
        has_capabilities = True  # a file system that cannot say
    return (is_set_uid or has_capabilities) and not os.statvfs(program).f_flag & os.ST_NOSUID


def _may_write(mountpoint: Path) -> bool:
    found = os.stat(mountpoint)
    may_replace = not found.st_mode & stat.S_ISVTX or found.st_uid == os.getuid()
    return os.getuid() == 0 or (os.access(mountpoint, os.W_OK) and may_replace)


def check_device(device: Path = _DEVICE) -> None:
    """Raise `MountError` if `device` is not the FUSE device, or may not be opened."""
    try:
        if os.stat(device).st_rdev != DEVICE_NUMBER:
            raise MountError("/dev/fuse is not the FUSE device", hint=CONTAINER)
        os.close(os.open(device, os.O_RDWR))
    except FileNotFoundError as error:
        raise MountError("/dev/fuse is missing", hint=CONTAINER) from error
    except OSError as error:
        if error.errno in {errno.ENODEV, errno.ENXIO}:
            raise MountError("the kernel has no FUSE", hint="modprobe fuse") from error
        hint = f"chmod a+rw {_DEVICE} as root, or {CONTAINER}" if os.geteuid() else CONTAINER
        raise MountError(f"/dev/fuse may not be opened: {error.strerror}", hint=hint) from error

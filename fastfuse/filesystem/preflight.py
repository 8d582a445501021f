"""Checks before a listing, which may take minutes, that this process can mount at all.

`examine` looks at the machine, and `obstacle` decides what is in the way. fusermount3 makes the same checks, but only
when it mounts. What neither can see, such as a security module that forbids the mount, the mount itself tells.
"""

import errno
import os
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from fastfuse.errors import MountError

__all__ = ["CONTAINER", "DEVICE_NUMBER", "Machine", "check_device", "examine", "obstacle"]

CONTAINER = "in a container: --device /dev/fuse --cap-add SYS_ADMIN (and --security-opt apparmor=unconfined)"

_DEVICE = Path("/dev/fuse")
DEVICE_NUMBER = os.makedev(10, 229)  # https://www.kernel.org/doc/html/latest/admin-guide/devices.html
_FUSE_CONF = Path("/etc/fuse.conf")
_PROGRAM = "fusermount3"
_SYSTEM = frozenset({Path("/bin"), Path("/usr/bin")})
_CAP_SYS_ADMIN = 21


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Holds what decides whether this process may mount. What cannot be found out has the value that allows it."""

    # True if the process may mount by itself, and if a set-uid program may get that right.
    may_mount: bool
    may_gain_rights: bool
    # fusermount3, None where there is none.
    program: Path | None
    may_run_program: bool
    is_program_set_uid: bool
    may_write_to_mountpoint: bool
    # True if /etc/fuse.conf lets this user mount with allow_other.
    may_allow_other: bool


def obstacle(machine: Machine, mountpoint: Path, *, allow_other: bool) -> MountError | None:
    """Return why nothing can be mounted at `mountpoint`, or None."""
    if machine.may_mount:
        return None
    program = machine.program
    if program is None:
        return MountError("fusermount3 is not installed", hint="install the package fuse3, or mount as root")
    if not machine.may_run_program:
        return MountError(f"{program} may not be executed", hint=f"chmod u+s,a+x {program} as root")
    if not machine.is_program_set_uid:
        hint = f"chmod u+s {program} as root, on a file system without nosuid, or mount as root"
        return MountError(f"{program} is not set-uid root, so it may not mount", hint=hint)
    if not machine.may_gain_rights:
        reason = f"{mountpoint} cannot be mounted on: Operation not permitted, for this process may not gain rights"
        return MountError(reason, hint=CONTAINER)
    if not machine.may_write_to_mountpoint:
        reason = f"{mountpoint} cannot be mounted on: the user has no write access to it"
        return MountError(
            reason, hint=f"chown {os.geteuid()} {mountpoint} as root, or mount on a directory of your own"
        )
    if allow_other and not machine.may_allow_other:
        hint = f"add the line user_allow_other to {_FUSE_CONF}, or mount without --allow-other"
        return MountError(f"--allow-other takes root, or user_allow_other in {_FUSE_CONF}", hint=hint)
    return None


def examine(mountpoint: Path | None) -> Machine:
    """Find out what `obstacle` needs to know; None is any mountpoint that may be written to."""
    status = Path("/proc/self/status").read_bytes()
    found = shutil.which(_PROGRAM) or shutil.which(_PROGRAM, mode=os.F_OK)
    is_root = os.getuid() == 0
    return Machine(
        may_mount=_has_capability(status, b"CapEff"),
        may_gain_rights=_has_capability(status, b"CapBnd") and b"\nNoNewPrivs:\t1" not in status,
        program=Path(found) if found else None,
        may_run_program=found is not None and os.access(found, os.X_OK),
        is_program_set_uid=found is not None and _is_set_uid(found),
        may_write_to_mountpoint=is_root or mountpoint is None or _may_write(mountpoint),
        may_allow_other=is_root or _allows_other(),
    )


def _has_capability(status: bytes, name: bytes) -> bool:
    match = re.search(rb"^%b:\s*([0-9a-f]+)$" % name, status, re.MULTILINE)
    return match is None or bool(int(match[1], 16) >> _CAP_SYS_ADMIN & 1)


def _is_set_uid(program: str) -> bool:
    if Path(program).parent not in _SYSTEM:
        return True  # a stand-in that has a mount made elsewhere, as some drivers of Kubernetes bring
    found = os.stat(program)
    is_set_uid = bool(found.st_mode & stat.S_ISUID) and found.st_uid == 0
    try:
        has_capabilities = "security.capability" in os.listxattr(program)
    except OSError:
        has_capabilities = True  # a file system that cannot say
    return (is_set_uid or has_capabilities) and not os.statvfs(program).f_flag & os.ST_NOSUID


def _may_write(mountpoint: Path) -> bool:
    found = os.stat(mountpoint)
    return os.access(mountpoint, os.W_OK) and not (found.st_mode & stat.S_ISVTX and found.st_uid != os.getuid())


def _allows_other() -> bool:
    try:
        lines = _FUSE_CONF.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return False
    except OSError:
        return True  # fusermount3 may read it all the same
    return "user_allow_other" in map(str.strip, lines)


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
        raise MountError(f"/dev/fuse may not be opened: {error.strerror}", hint=CONTAINER) from error

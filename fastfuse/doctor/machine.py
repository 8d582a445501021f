"""Look at this machine, for the rules."""

import ctypes
import os
import re
import resource
from contextlib import suppress
from math import inf
from pathlib import Path

from fastfuse.cgroup import cpu_limit, memory_limit_bytes
from fastfuse.doctor.rules import Facts
from fastfuse.errors import MountError
from fastfuse.filesystem.mounting.preflight import check_device, fusermount, may_allow_other, may_mount, obstacle


def look(root: Path = Path("/")) -> Facts:
    """Return the facts of this machine, its files being below `root`."""
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    try:
        check_device(root / "dev/fuse")
        device = None
    except MountError as error:
        device = (str(error), error.hint)
    rights = obstacle(None, allow_other=False)
    settings = (root / "sys/class/bdi").glob("*/read_ahead_kb")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A mount's worker takes the hard limit. Every other client does with 1,024 descriptors, which shells give.
    limit = hard if soft >= 1024 else soft
    ram_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory = memory_limit_bytes(root / "proc/self/cgroup", root / "sys/fs/cgroup")
    return Facts(
        kernel=(int(release[1]), int(release[2])) if release else (0, 0),
        libfuse=_libfuse(),
        device_obstacle=device,
        rights_obstacle=None if rights is None else (str(rights), rights.hint),
        has_sys_admin=may_mount(),
        fusermount=fusermount(),
        may_allow_other=may_allow_other(),
        may_raise_readahead=any(os.access(setting, os.W_OK) for setting in settings),
        request_timeout_s=_request_timeout_s(root / "proc/sys/fs/fuse"),
        open_files=2**20 if limit == resource.RLIM_INFINITY else limit,
        # Version 1 writes "unlimited" as a number beyond any RAM.
        memory_limit_bytes=memory if memory is not None and memory < ram_bytes else None,
        cpu_limit=cpu_limit(root / "proc/self/cgroup", root / "sys/fs/cgroup"),
        updatedb_reads_mounts=_updatedb_reads_mounts(root / "etc/updatedb.conf"),
    )


def _updatedb_reads_mounts(settings: Path) -> bool:
    """Return True if updatedb is there, and its `settings` do not leave mounts out."""
    try:
        pruned = re.search(r'^\s*PRUNEFS\s*=\s*"(.*)"', settings.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return False
    return pruned is None or "fuse.fastfuse" not in pruned[1].lower().split()


def _request_timeout_s(limits: Path) -> float:
    """Return for how long a request may wait before the kernel ends the mount (Linux 6.14); `inf` if for ever."""
    found = []
    for name in ("default_request_timeout", "max_request_timeout"):
        with suppress(OSError):
            found.append(float((limits / name).read_text()))
    return min(filter(None, found), default=inf)


def _libfuse() -> str:
    """Return the version of the libfuse that serves mounts."""
    from fastfuse.filesystem.kernel.fuse import interposed  # the command line loads this module at every start

    version = ctypes.CDLL(interposed.__file__).fuse_pkgversion  # linked to that libfuse
    version.restype = ctypes.c_char_p
    return str(version().decode())

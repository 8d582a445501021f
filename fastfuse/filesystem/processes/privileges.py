"""Give up rights that a process of the mount does not need. Each function is called in the process that it changes.

What a program can do that a hostile reply takes over is what its process may still do: docs/SECURITY.md has the table.
A process without special rights has few to give up; nothing here fails for it.
"""

import ctypes
import errno
import os
import resource
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from fastfuse.filesystem.processes.children import die_with
from fastfuse.s3.aws import S3Session

# <linux/capability.h>: CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_KILL. With the first two root uses the files of the
# user who called sudo: AWS profiles, index files. With the third the kernel ends nobody's processes with it.
_CONFINED = frozenset({1, 2, 5})
# CAP_KILL, CAP_SETGID, CAP_SETUID: without them root cannot become another user, or its parent could not end it.
_CHANGE_USER = frozenset({5, 6, 7})
_CAP_SETPCAP = 8
_VERSION_3 = 0x20080522
_LAST_CAPABILITY = Path("/proc/sys/kernel/cap_last_cap")

# <linux/prctl.h>
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4

# The kernel's overflow ID, which most systems call nobody. A user database may be missing in a container.
_NOBODY = 65534

# proc(5): by how many thousandths of all memory this process counts as larger than it is where memory runs out. A
# supervisor has 60 MB, and the process that may die before it in a cgroup of 512 MiB has to count as larger.
_OOM_SCORE_ADJUSTMENT = Path("/proc/self/oom_score_adj")
_DIES_BEFORE_OTHERS = 100
# In a full cgroup of 600 MiB, with processes of 100 MB, a supervisor of 90 MB was the third to be killed without this.
_OUTLIVES_OTHERS = -900
# What the supervisor had before; its children begin with that.
_adjustments: list[int] = []

# Two words each of effective, permitted and inheritable capabilities: low and high in turn.
_Words = ctypes.c_uint32 * 6


def keep_memory_private() -> None:
    """Let no core file, and no other process of the same user, show this process's memory; it holds secret keys."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _prctl(_PR_SET_DUMPABLE, 0)


def become_supervisor() -> None:
    """Keep this process's memory private, and have the kernel kill any other one first where memory runs out.

    The latter takes CAP_SYS_RESOURCE, which a container of root mostly lacks. A supervisor gives up no more:
    fusermount3, which unmounts for a user, is set-uid.
    """
    keep_memory_private()
    with suppress(OSError):
        before = int(_OOM_SCORE_ADJUSTMENT.read_text())
        _OOM_SCORE_ADJUSTMENT.write_text(str(max(before + _OUTLIVES_OTHERS, -1000)))
        _adjustments[:] = [before]


def _die_before(adjustment: int) -> None:
    """Have the kernel take this process for larger, by `adjustment`, than the supervisor was taken for at first."""
    _prctl(_PR_SET_DUMPABLE, 1)  # for a moment: the files of a process that is not dumpable are root's (proc(5))
    with suppress(OSError):  # what is not visible, or not permitted, is left as it is
        before = _adjustments[0] if _adjustments else int(_OOM_SCORE_ADJUSTMENT.read_text())
        _OOM_SCORE_ADJUSTMENT.write_text(str(min(before + adjustment, 1000)))
    keep_memory_private()


def confine(session: S3Session) -> None:
    """Keep only the rights that a process needs which resolves credentials, and saves indexes.

    It keeps the user, whose AWS profiles it reads again. Where a profile names a ``credential_process``, it keeps the
    capabilities, too: that program may be set-uid, as sudo is.

    Raises:
        ConfigurationError: the AWS configuration cannot be read.
    """
    os.umask(0o077)
    _die_before(0)
    if not session.names_program:
        _bound_capabilities(_CONFINED)
        _keep_capabilities(_CONFINED)


def become_nobody() -> None:
    """Give up root, its groups and every capability, before this process starts a thread.

    The supervisor can start another one, but nobody another supervisor: so the kernel ends this process first where
    memory runs out. A process of another user keeps its user and its groups. So does root in a container where it may
    not change them.
    """
    os.umask(0o077)
    parent = os.getppid()
    _die_before(_DIES_BEFORE_OTHERS)
    _bound_capabilities(())  # first: it needs one
    if _may_change_user():
        try:
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        except OSError as error:  # of a user namespace that does not have this user, or no groups
            if error.errno not in (errno.EINVAL, errno.EPERM):
                raise
        die_with(parent)  # the kernel forgot it with the user (commit_creds)
    _keep_capabilities(())
    keep_memory_private()


def worker_uid() -> int:
    """Return the user that a process of this one's rights has after `become_nobody`."""
    spans = (map(int, line.split()) for line in Path("/proc/self/uid_map").read_text().splitlines())
    has_nobody = any(first <= _NOBODY < first + count for first, _, count in spans)
    return _NOBODY if _may_change_user() and has_nobody else os.geteuid()


def _may_change_user() -> bool:
    return os.geteuid() == 0 and all(_permitted() >> capability & 1 for capability in _CHANGE_USER)


def _bound_capabilities(kept: Collection[int]) -> None:
    """Let no program that this process starts have capabilities beyond `kept`, nor rights that this process lacks."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if _permitted() >> _CAP_SETPCAP & 1:
        for capability in range(int(_LAST_CAPABILITY.read_text()) + 1):
            if capability not in kept:
                _prctl(_PR_CAPBSET_DROP, capability)


def _keep_capabilities(kept: Collection[int]) -> None:
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    left = _permitted() & sum(1 << capability for capability in kept)
    low, high = left & 0xFFFFFFFF, left >> 32
    _call("capset", _header(), _Words(low, low, 0, high, high, 0))


def _permitted() -> int:
    words = _Words()
    _call("capget", _header(), words)
    return int(words[1] | words[4] << 32)


def _header() -> ctypes.Array[ctypes.c_uint32]:
    return (ctypes.c_uint32 * 2)(_VERSION_3, 0)  # 0: this process


def _prctl(option: int, argument: int) -> None:
    _call("prctl", option, *(ctypes.c_ulong(value) for value in (argument, 0, 0, 0)))


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")

"""The control group that this process runs in and its limits, cgroup v1 and v2."""

import os
import re
from collections.abc import Iterator
from math import inf
from pathlib import Path, PurePosixPath

_PROCESSES = Path("/proc")
_HIERARCHIES = Path("/sys/fs/cgroup")


def available_memory_bytes() -> int:
    """Return the memory of this machine, or what our control group may have of it."""
    ram_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(ram_bytes, memory_limit_bytes() or ram_bytes)


def memory_limit_bytes(memberships: Path = _PROCESSES / "self/cgroup", hierarchies: Path = _HIERARCHIES) -> int | None:
    """The tightest limit on the way from our group to the root, or None where nothing limits us.

    A group is limited by its ancestors too. In a container the file may name a path of the host that does not exist
    here, while the container's own group is mounted at the root: files that are missing are passed over.
    """
    groups = _groups(memberships, hierarchies, "memory")
    # "max" (v2) is no limit. Unlimited in v1 is a number beyond any RAM, and harmless. Above memory.high the kernel
    # kills nothing, but has whoever asks for more memory sleep.
    names = ("memory.high", "memory.max", "memory.limit_in_bytes")
    limits = [_number(_text(group / name)) for group in groups for name in names]
    return min((limit for limit in limits if limit is not None), default=None)


def oom_kills(memberships: Path = _PROCESSES / "self/cgroup", hierarchies: Path = _HIERARCHIES) -> int | None:
    """Return how many processes of our group were killed because memory ran out; None where nobody counts them."""
    for group in _groups(memberships, hierarchies, "memory"):
        for name in ("memory.events", "memory.oom_control"):
            if counted := re.search(r"^oom_kill (\d+)$", _text(group / name), re.MULTILINE):
                return int(counted[1])
    return None


def cpu_limit(memberships: Path = _PROCESSES / "self/cgroup", hierarchies: Path = _HIERARCHIES) -> float | None:
    """How many CPUs our group may use at once, 0.5 for half of one; None where nothing limits us."""
    limits = []
    for group in _groups(memberships, hierarchies, "cpu"):
        quota, _, period = _text(group / "cpu.max").partition(" ")
        words = (quota or _text(group / "cpu.cfs_quota_us"), period or _text(group / "cpu.cfs_period_us"))
        quota_us, period_us = map(_number, words)
        if quota_us is not None and period_us and quota_us > 0:  # -1 is no limit in v1
            limits.append(quota_us / period_us)
    return min(limits, default=None)


def usable_cpus() -> float:
    """Return how many CPUs this process may use at once."""
    return min(cpu_limit() or inf, len(os.sched_getaffinity(0)))


def _groups(memberships: Path, hierarchies: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of our groups and of their ancestors that may limit what `controller` shares out."""
    # A line is ``hierarchy:controllers:path``; version 2 has no controllers there.
    for controllers, group in re.findall(r"^[^:\n]*:([^:\n]*):(/.*)$", _text(memberships), re.MULTILINE):
        path = PurePosixPath(group)
        # `/../x` is a group outside our cgroup namespace, of which only the root can be seen from here.
        if ".." not in path.parts and (not controllers or controller in controllers.split(",")):
            mount = hierarchies / controller if controllers else hierarchies
            yield from (mount / folder.relative_to("/") for folder in (path, *path.parents))


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="surrogateescape")
    except OSError:
        return ""


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None

"""The control group that this process runs in and its memory limit, cgroup v1 and v2."""

from pathlib import Path, PurePosixPath

__all__ = ["memory_limit_bytes", "shares_memory"]

_PROCESSES = Path("/proc")
_HIERARCHIES = Path("/sys/fs/cgroup")
# Version 1 tells no limit as a number beyond any RAM.
_NO_LIMIT_BYTES = 1 << 60


def memory_limit_bytes(memberships: Path = _PROCESSES / "self/cgroup", hierarchies: Path = _HIERARCHIES) -> int | None:
    """The tightest limit on the way from our group to the root, or None where nothing limits us.

    A group is limited by its ancestors too. In a container the file may name a path of the host that does not exist
    here, while the container's own group is mounted at the root: files that are missing are passed over.
    """
    try:
        lines = memberships.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    limits = [limit for line in lines for file in _limit_files(line, hierarchies) if (limit := _read(file)) is not None]
    return min(limits, default=None)


def shares_memory(pid: int, processes: Path = _PROCESSES, hierarchies: Path = _HIERARCHIES) -> bool:
    """Whether pages that this process adds to the page cache are as good for `pid` as its own.

    They count to our group: where that has a limit, they would not last for the processes of another one.
    """
    ours = processes / "self/cgroup"
    try:
        is_one_group = ours.read_bytes() == (processes / str(pid) / "cgroup").read_bytes()
    except OSError:  # it is gone, or of another namespace, where its number is 0
        is_one_group = False
    return is_one_group or (memory_limit_bytes(ours, hierarchies) or _NO_LIMIT_BYTES) >= _NO_LIMIT_BYTES


def _limit_files(line: str, hierarchies: Path) -> list[Path]:
    """The limit files for one line ``hierarchy:controllers:path``; version 2 has no controllers there."""
    _, _, rest = line.partition(":")
    controllers, _, group = rest.partition(":")
    path = PurePosixPath(group)
    if not path.is_absolute() or ".." in path.parts:
        return []  # `/../x`: a group outside our cgroup namespace, of which only the root can be seen from here
    if "memory" in controllers.split(","):
        mount, name = hierarchies / "memory", "memory.limit_in_bytes"
    elif not controllers:
        mount, name = hierarchies, "memory.max"
    else:
        return []
    return [mount / folder.relative_to("/") / name for folder in (path, *path.parents)]


def _read(file: Path) -> int | None:
    """The limit in bytes; None for ``max`` (v2). Unlimited in v1 is a number beyond any RAM, and harmless."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None

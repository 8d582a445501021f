"""The control group that this process runs in and its memory limit, cgroup v1 and v2."""

from pathlib import Path, PurePosixPath

__all__ = ["memory_limit_bytes"]

_PROCESSES = Path("/proc")
_HIERARCHIES = Path("/sys/fs/cgroup")


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

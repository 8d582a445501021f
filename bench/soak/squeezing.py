"""A limit of memory for the processes of a mount, which the kernel enforces on a control group of their own."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

_HIERARCHIES = Path("/sys/fs/cgroup")
# By the folder of the controller, in version 1 and 2: what is used, the most that was, the limit, and what stands for
# none.
_FILES = {
    "memory": ("memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.limit_in_bytes", "-1"),
    "": ("memory.current", "memory.peak", "memory.max", "max"),
}


class MemoryGroup:
    """A control group that is empty and has no limit at first."""

    def __init__(self, folder: Path, used: str, most: str, limit: str, unlimited: str) -> None:
        self._folder, self._unlimited = folder, unlimited
        self._used, self._most, self._limit = folder / used, folder / most, folder / limit

    @classmethod
    def below(cls, controller: str) -> Self | None:
        """Make a group of a controller; None where this is not permitted."""
        used, most, limit, unlimited = _FILES[controller]
        folder = _HIERARCHIES / controller / f"fastfuse-soak-{os.getpid()}"
        with suppress(OSError):
            if (folder.parent / "cgroup.procs").exists():
                folder.mkdir()
                if (folder / limit).exists():
                    return cls(folder, used, most, limit, unlimited)
                folder.rmdir()
        return None

    def add(self, pids: Iterable[int]) -> None:
        """Move processes into the group; their children are born there."""
        for pid in pids:
            with suppress(ProcessLookupError):
                (self._folder / "cgroup.procs").write_text(str(pid))

    @contextmanager
    def squeezed(self) -> Iterator[None]:
        """Allow no more memory than is used now: the kernel takes back what it can, and kills the largest process.

        Right after a worker's death nearly nothing is used, and then it is half of the most that was.
        """
        with suppress(OSError):  # it cannot take back what was used since
            self._limit.write_text(str(max(int(self._used.read_text()), int(self._most.read_text()) // 2)))
        try:
            yield
        finally:
            self._limit.write_text(self._unlimited)

    def remove(self) -> None:
        """Remove the group once its processes have ended."""
        with suppress(OSError):  # one is left, which is found out elsewhere
            self._folder.rmdir()


@contextmanager
def memory_group() -> Iterator[MemoryGroup | None]:
    """Make a group until the end of the block; None where this is not permitted."""
    group = next(filter(None, map(MemoryGroup.below, _FILES)), None)
    try:
        yield group
    finally:
        if group is not None:
            group.remove()

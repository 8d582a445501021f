"""``fastfuse trace``: a line for each read that the kernel asks a mount for."""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any

from fastfuse.cli.messages import say
from fastfuse.cli.status_command import plain
from fastfuse.errors import MountError
from fastfuse.filesystem.control import TRACE, entry_of, watching
from fastfuse.filesystem.mountpoint import MountEntry

__all__ = ["Choice", "trace"]

_HEADING = f"{'time':15}  {'process':22}  {'found':6}  {'offset':>13}  {'size':>8}  {'µs':>9}  path"

# The mount has so long to start another worker.
_NEXT_WORKER_WITHIN_S = 60.0
_RETRY_S = 0.2


@dataclass(frozen=True, slots=True)
class Choice:
    """The reads to print: of paths that match `path`, by the process or thread `process`, one of `sample`."""

    path: str | None = None
    process: str | None = None
    sample: int = 1

    def has(self, read: Mapping[str, Any]) -> bool:
        """Return whether to print what the mount tells; what is not of a read is always printed."""
        if "path" not in read:
            return True
        is_process = self.process is None or self.process in {read["process"], str(read["pid"])}
        return is_process and (self.path is None or fnmatchcase(read["path"], self.path))


def trace(mountpoint: Path, choice: Choice, *, count: int | None, as_json: bool) -> int:
    """Print the reads of `choice` until the mount ends, `count` lines if that is given.

    Raises:
        MountError: nothing of fastfuse is mounted there, or the mount does not answer.
    """
    if not as_json:
        say(_HEADING)
    told = (read for read in _reads(entry_of(mountpoint), choice.sample) if choice.has(read))
    for read in islice(told, count or sys.maxsize):
        say(json.dumps(read) if as_json else line_of(read))
    return 0


def _reads(entry: MountEntry, sample: int) -> Iterator[dict[str, Any]]:
    """Yield what one worker of the mount tells after the other; end when the mount does."""
    yield from _told(entry, sample)
    until_s = time.monotonic() + _NEXT_WORKER_WITHIN_S
    while entry.is_there():
        try:
            yield from _told(entry, sample, is_next=True)
            until_s = time.monotonic() + _NEXT_WORKER_WITHIN_S
        except MountError:
            if time.monotonic() >= until_s:
                raise
        time.sleep(_RETRY_S)


def _told(entry: MountEntry, sample: int, *, is_next: bool = False) -> Iterator[dict[str, Any]]:
    with watching(entry, {"request": TRACE, "sample": sample}) as told, suppress(ConnectionError, ValueError):
        if is_next:
            yield {"replaced": True}
        # It ends in the middle of a line if the worker is killed.
        yield from map(json.loads, told)


def line_of(read: Mapping[str, Any]) -> str:
    """Return what the mount told in one line for people."""
    if "lost" in read:
        return f"({read['lost']:,} reads are not shown: this command does not keep up)"
    if "replaced" in read:
        return "(the worker of the mount was replaced)"
    at = datetime.fromtimestamp(read["at"]).astimezone()
    process = f"{plain(read['process'])}[{read['pid']}]"
    failed = f" {read['errno']}" if "errno" in read else ""
    return (
        f"{at:%H:%M:%S}.{at.microsecond:06}  {process:22}  {read['found']:6}  {read['offset']:13}  {read['size']:8}  "
        f"{read['us']:9}  {plain(read['path'])}{failed}"
    )

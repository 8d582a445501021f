"""Locks of files between processes."""

import fcntl
import time
from typing import Final

_RETRY_S: Final = 0.02


def lock(fd: int, how: int, within_s: float) -> None:
    """Lock a file for this process; whoever may open it can hold its lock for ever.

    Raises:
        TimeoutError: another process held it for so long.
        OSError: the file system has no locks.
    """
    until_s = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() >= until_s:
                raise TimeoutError(f"another process has held its lock for {within_s:g} s") from error
        time.sleep(_RETRY_S)  # noqa: TID251 - no wait for a lock has an end

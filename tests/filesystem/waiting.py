"""Waiting for a condition of another process that tells nobody when it is met."""

import os
import select
import threading
import time
from collections.abc import Callable

# Long enough for a loaded machine; a test that needs it has failed.
PATIENCE_S = 60.0


def wait_until(is_met: Callable[[], bool], tell: Callable[[], str] = str) -> None:
    """Ask again and again; `TimeoutError` with what `tell` has to say if the answer never is yes."""
    until_s = time.monotonic() + PATIENCE_S
    while not is_met():
        if time.monotonic() > until_s:
            raise TimeoutError(f"the condition was not met\n{tell()}")
        threading.Event().wait(0.01)


def wait_for_end(pid_fd: int) -> None:
    """Wait until the process of a pidfd has ended, whosever child it is; closes the pidfd."""
    readable, _, _ = select.select([pid_fd], [], [], PATIENCE_S)
    os.close(pid_fd)
    assert readable, "a process was left behind"

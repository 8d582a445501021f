"""Runs calls that block in threads: bodies that are received, or checked, and ranges that are read from a disk.

The threads are trio's own, which end after 10 s without a call. `trio.to_thread` keeps to a limit of threads, and its
caller may be cancelled before the call has a thread. Here a call is certain to be made once `in_thread` waits for it.
"""

import errno
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import trio

T = TypeVar("T")

# The loop is woken by a byte through a socket (ENOBUFS, ENOMEM).
_WAKE_AGAIN_S = 0.01


class NoThreadError(OSError):
    """The system has no room for a thread."""

    def __init__(self) -> None:
        super().__init__(errno.EAGAIN, "no room for a thread; see ulimit -u and pids.max")


def run_soon(token: trio.lowlevel.TrioToken, call: Callable[..., object], *arguments: object) -> None:
    """Have the loop make a call, as a thread may ask; twice if the kernel had no memory to wake the loop at first."""
    with suppress(trio.RunFinishedError):
        while True:
            with suppress(OSError):
                token.run_sync_soon(call, *arguments, idempotent=True)
                return
            time.sleep(_WAKE_AGAIN_S)  # noqa: TID251 - nothing tells when there is memory


async def in_thread(work: Callable[[], T]) -> T:
    """Call `work` in a thread and return or raise as it does. A caller that is cancelled has to make `work` end.

    Raises:
        NoThreadError: `work` will not be called.
    """
    task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()
    results, errors, is_waiting, is_given_up = list[T](), list[BaseException](), True, False

    def call() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - the waiting task raises it
            # An outcome of trio's would keep itself, and the memory that `work` fills, until the next collection.
            errors.append(error)

    def wake() -> None:
        nonlocal is_waiting
        if is_waiting:
            is_waiting = False
            trio.lowlevel.reschedule(task)
        elif is_given_up:
            errors.clear()  # nobody raises it, and the frames of its traceback hold it, and the memory

    def give_up(_: object) -> trio.lowlevel.Abort:
        nonlocal is_waiting, is_given_up
        is_waiting, is_given_up = False, True
        return trio.lowlevel.Abort.SUCCEEDED

    try:
        trio.lowlevel.start_thread_soon(call, lambda _: run_soon(token, wake))
    except RuntimeError as error:
        raise NoThreadError from error
    await trio.lowlevel.wait_task_rescheduled(give_up)
    if errors:
        raise errors.pop()
    return results.pop()

"""Runs calls that block in threads: bodies that are received, or checked, and ranges that are read from a disk.

The threads are trio's own, which end after 10 s without a call. `trio.to_thread` keeps to a limit of threads, and its
caller may be cancelled before the call has a thread. Here a call is certain to be made once `in_thread` waits for it.
"""

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import trio

T = TypeVar("T")


class NoThreadError(OSError):
    """The system has no room for a thread."""

    def __init__(self) -> None:
        super().__init__(errno.EAGAIN, "no room for a thread; see ulimit -u and pids.max")


async def in_thread(work: Callable[[], T]) -> T:
    """Call `work` in a thread and return or raise as it does. A caller that is cancelled has to make `work` end.

    Raises:
        NoThreadError: `work` will not be called.
    """
    task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()
    results, errors, is_waiting = list[T](), list[BaseException](), True

    def call() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - the waiting task raises it
            # An outcome of trio's would keep itself, and the memory that `work` fills, until the next collection.
            errors.append(error)

    def deliver(_: object) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(wake)

    def wake() -> None:
        if is_waiting:
            trio.lowlevel.reschedule(task)

    def give_up(_: object) -> trio.lowlevel.Abort:
        nonlocal is_waiting
        is_waiting = False
        return trio.lowlevel.Abort.SUCCEEDED

    try:
        trio.lowlevel.start_thread_soon(call, deliver)
    except RuntimeError as error:
        raise NoThreadError from error
    await trio.lowlevel.wait_task_rescheduled(give_up)
    if errors:
        raise errors.pop()
    return results.pop()

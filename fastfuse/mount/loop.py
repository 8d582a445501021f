"""How pyfuse3 waits for the next request: what it uses in the place of trio.

pyfuse3 takes its lock and `wait_readable` from whatever `pyfuse3.trio` is; its asyncio flavour replaces that in the
same way. With trio's own, two tasks hand the lock to each other with every request, and each waits through epoll for a
request that is there already. Here whoever asks first gets the lock, and what is there is not waited for.

Measured on four shared cores with an engine that has every byte, µs of the worker's CPU for each, before and after: a
lookup 33 and 14, open and release 80 and 22, a read of 4 KiB 20 and 8 (24 and 13 with eight readers), open, read and
release of a 39 KB file by eight readers 87 and 47. A read of 1 MiB stays at 130 to 170: the kernel copies it.
"""

from collections.abc import Awaitable, Generator
from time import perf_counter
from types import SimpleNamespace
from typing import Any, cast

import pyfuse3
import trio

from fastfuse.mount.replies import LargeReplies
from fastfuse.mount.syscalls import Readable

__all__ = ["RequestLock", "RequestWait", "take_over_waiting"]

# So long requests are served one after the other before other tasks get a turn, those that take what was fetched among
# them: a turn costs about 30 µs, and a fetch takes milliseconds.
_TURN_S = 500e-6


class _Done:
    """Has happened already: awaiting it makes no coroutine and no checkpoint."""

    def __await__(self) -> Generator[Any, None, None]:
        return _NOTHING


_NOTHING = cast(Generator[Any, None, None], iter(()))
_DONE = _Done()


class RequestLock:
    """A lock that goes to whoever asks first, be others waiting or not: no task switch while one task is enough."""

    def __init__(self) -> None:
        self._is_held = False
        self._waiting: list[trio.lowlevel.Task] = []
        # One that was waiting will run next, and find the lock free unless the task that freed it came back for it.
        self._is_one_woken = False

    def __aenter__(self) -> Awaitable[None]:
        if self._is_held:
            return self._wait()
        self._is_held = True
        return _DONE

    def __aexit__(self, *_: object) -> Awaitable[None]:
        self._is_held = False
        if self._waiting and not self._is_one_woken:
            self._is_one_woken = True
            # The last that came: its stack and its request buffer are the warmest.
            trio.lowlevel.reschedule(self._waiting.pop())
        return _DONE

    async def _wait(self) -> None:
        while self._is_held:
            task = trio.lowlevel.current_task()
            self._waiting.append(task)

            def give_up(_: object, task: trio.lowlevel.Task = task) -> trio.lowlevel.Abort:
                self._waiting.remove(task)
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(give_up)
            self._is_one_woken = False
        self._is_held = True


class RequestWait:
    """`wait_readable` for one descriptor, which is a checkpoint only where there is nothing or the turn is over.

    libfuse reads next, so that `replies` are settled.
    """

    def __init__(self, replies: LargeReplies) -> None:
        self._replies = replies
        self._fd = -1
        self._is_readable = Readable(-1)
        self._turn_ends_s = 0.0

    def wait_readable(self, fd: int) -> Awaitable[None]:
        self._replies.settle()
        if fd == self._fd and perf_counter() < self._turn_ends_s and self._is_readable():
            return _DONE
        return self._wait(fd)

    async def _wait(self, fd: int) -> None:
        if fd != self._fd:
            self._fd, self._is_readable = fd, Readable(fd)
        await trio.lowlevel.wait_readable(fd)
        # Other tasks have answered meanwhile.
        self._replies.settle()
        self._turn_ends_s = perf_counter() + _TURN_S


def take_over_waiting(replies: LargeReplies) -> None:
    """To be called before `pyfuse3.init`: the lock that serves INIT is the one that all workers inherit."""
    lowlevel = SimpleNamespace(
        wait_readable=RequestWait(replies).wait_readable,
        notify_closing=trio.lowlevel.notify_closing,
        current_task=trio.lowlevel.current_task,
        current_trio_token=trio.lowlevel.current_trio_token,
    )
    pyfuse3.trio = SimpleNamespace(  # type: ignore[attr-defined] # a module, as pyfuse3.asyncio puts there
        lowlevel=lowlevel,
        Lock=RequestLock,
        ClosedResourceError=trio.ClosedResourceError,
        open_nursery=trio.open_nursery,
    )

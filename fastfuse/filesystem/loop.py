"""Wait for the next request of pyfuse3, in the place of trio.

pyfuse3 takes its lock and `wait_readable` from whatever `pyfuse3.trio` is. With trio's own, two tasks hand the lock to
each other with every request, and each waits through epoll for a request that is already there. Here the first task
that asks gets the lock, and a request that is there is not waited for (docs/MEASUREMENTS.md, "Mount").
"""

import ctypes
import struct
from collections.abc import Awaitable, Generator
from select import POLLIN
from time import perf_counter
from types import SimpleNamespace
from typing import Any, cast

import trio

from fastfuse.filesystem.fuse import pyfuse3
from fastfuse.filesystem.replies import LargeReplies

__all__ = ["Readable", "RequestLock", "RequestWait", "take_over_waiting"]

# For this long requests are served one after the other before other tasks get a turn. A turn costs about 30 µs, and a
# fetch takes milliseconds.
_TURN_S = 500e-6

_POLLFD = struct.Struct("@ihh")  # <poll.h>
_libc = ctypes.PyDLL(None)


class Readable:
    """Ask whether `fd` has something to read, or lost its other end, without releasing the GIL."""

    __slots__ = ("_pollfd",)

    def __init__(self, fd: int) -> None:
        self._pollfd = ctypes.create_string_buffer(_POLLFD.pack(fd, POLLIN, 0), _POLLFD.size)

    def __call__(self) -> bool:
        return bool(_libc.poll(self._pollfd, ctypes.c_ulong(1), 0))


class _Done:
    """An event that has happened: awaiting it makes no coroutine and no checkpoint."""

    def __await__(self) -> Generator[Any, None, None]:
        return _NOTHING


_NOTHING = cast(Generator[Any, None, None], iter(()))
_DONE = _Done()


class RequestLock:
    """A lock that the first task to ask gets, even if others wait: one task can serve on without a switch."""

    def __init__(self) -> None:
        self._is_held = False
        self._waiting: list[trio.lowlevel.Task] = []
        # A waiting task will run next; it may find that the task that freed the lock has taken it again.
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
            # The task that came last: its stack and its request buffer are the warmest.
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
    """`wait_readable` for one descriptor: a checkpoint only if no request is there or the turn is over.

    It settles `replies`, because libfuse reads next.
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
        # Other tasks have answered since.
        self._replies.settle()
        self._turn_ends_s = perf_counter() + _TURN_S


def take_over_waiting(replies: LargeReplies) -> None:
    """Replace `pyfuse3.trio`, before `pyfuse3.init`: all workers inherit the lock that serves INIT."""
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

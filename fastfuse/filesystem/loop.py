"""Wait for the next request of pyfuse3, in the place of trio.

pyfuse3 takes its lock and `wait_readable` from whatever `pyfuse3.trio` is. With trio's own, each request takes two
turns of the loop and waits through epoll, even if it is already there. Here it is not waited for then, and no lock is
needed: no handler but that of READs waits for anything (`filesystem.reads`), so one task serves all
(docs/MEASUREMENTS.md, "Mount").
"""

import ctypes
import struct
from collections.abc import Awaitable, Generator
from select import POLLIN
from time import perf_counter
from types import SimpleNamespace
from typing import Any, cast

import trio

from fastfuse.filesystem.fuse import interposed, pyfuse3, replies

__all__ = ["Readable", "RequestWait", "serve", "take_over_waiting"]

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


class _NoLock:
    """The lock of one task."""

    def __aenter__(self) -> Awaitable[None]:
        return _DONE

    def __aexit__(self, *_: object) -> Awaitable[None]:
        return _DONE


class RequestWait:
    """`wait_readable` for one descriptor: a checkpoint only if no request is there or the turn is over."""

    def __init__(self) -> None:
        self._fd = -1
        self._is_readable = Readable(-1)
        self._turn_ends_s = 0.0

    def wait_readable(self, fd: int) -> Awaitable[None]:
        may_be_there = fd == self._fd and not interposed.has_taken_all()
        if replies.are_left() or (may_be_there and perf_counter() < self._turn_ends_s and self._is_readable()):
            return _DONE
        return self._wait(fd)

    async def _wait(self, fd: int) -> None:
        if fd != self._fd:
            self._fd, self._is_readable = fd, Readable(fd)
        await trio.lowlevel.wait_readable(fd)
        self._turn_ends_s = perf_counter() + _TURN_S


def take_over_waiting() -> None:
    """Replace `pyfuse3.trio`, before `pyfuse3.init`: all workers inherit it."""
    lowlevel = SimpleNamespace(
        wait_readable=RequestWait().wait_readable,
        notify_closing=trio.lowlevel.notify_closing,
        current_task=trio.lowlevel.current_task,
        current_trio_token=trio.lowlevel.current_trio_token,
    )
    pyfuse3.trio = SimpleNamespace(  # type: ignore[attr-defined] # a module, as pyfuse3.asyncio puts there
        lowlevel=lowlevel,
        Lock=_NoLock,
        ClosedResourceError=trio.ClosedResourceError,
        open_nursery=trio.open_nursery,
    )


async def serve() -> None:
    """Serve the session's requests until it ends, in one task."""
    await pyfuse3.main(min_tasks=1, max_tasks=1)

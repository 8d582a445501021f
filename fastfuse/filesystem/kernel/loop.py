"""Wait for the next requests of pyfuse3, in the place of trio.

pyfuse3 takes its lock and `wait_readable` from whatever `pyfuse3.trio` is. With trio's own lock, each wait takes two
turns of the loop. No lock is needed: no handler but that of READs waits for anything (`filesystem.serving.reads`), so
one task serves all. Whatever is there is taken in one turn (`interposed`).
"""

from collections.abc import Awaitable, Generator
from types import SimpleNamespace
from typing import Any, cast

import trio

from fastfuse.filesystem.kernel.fuse import pyfuse3, replies


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


async def _wait_readable(fd: int) -> None:
    """Wait for a request of the kernel, but not where the worker before this one has left some."""
    if not replies.are_left():
        await trio.lowlevel.wait_readable(fd)


def take_over_waiting() -> None:
    """Replace `pyfuse3.trio`, before `pyfuse3.init`: all workers inherit it."""
    lowlevel = SimpleNamespace(
        wait_readable=_wait_readable,
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

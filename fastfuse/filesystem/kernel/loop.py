"""Take the next requests of pyfuse3, in the place of trio.

Where the loop has nothing to do, requests are taken without it (`Requests`): a turn of the loop costs more than what
most of them take. It is woken for those that libfuse has to know, and for what they begin.

pyfuse3 takes its lock and `wait_readable` from whatever `pyfuse3.trio` is. With trio's own lock, each wait takes two
turns of the loop. No lock is needed: no handler but that of READs waits for anything (`filesystem.serving.reads`), so
one task serves all.
"""

import os
from collections.abc import Callable
from contextlib import nullcontext, suppress
from types import SimpleNamespace

import trio

from fastfuse.filesystem.kernel.fuse import interposed, pyfuse3, replies


class Requests(trio.abc.Instrument):
    """Takes requests where the loop of this process would wait for its descriptors, and waits for those, too.

    Give it to `trio.run`, and serve with it. Invariant: only the loop's thread takes requests.
    """

    def __init__(self) -> None:
        self._others = _epolls()
        # The loop waits with the first; the second wakes it, as it does not watch the kernel's connection itself.
        self._epoll = -1
        self._bell: int | None = None
        self._failure: BaseException | None = None

    task_scheduled = staticmethod(interposed.note_task)

    def before_io_wait(self, timeout: float) -> None:
        """Take requests, for at most `timeout` seconds."""
        if self._bell is None:
            return
        try:
            is_wanted = interposed.take_requests(self._epoll, timeout)
        except BaseException as error:  # noqa: BLE001 - trio would go on without this, and nobody take requests
            self._failure, is_wanted = error, True
        if is_wanted:
            os.eventfd_write(self._bell, 1)

    async def serve(self) -> None:
        """Serve the session's requests until it ends."""
        (self._epoll,) = _epolls() - self._others
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        pyfuse3.trio.lowlevel.wait_readable = self._wait  # type: ignore[attr-defined]
        try:
            await serve()
        finally:
            self._bell = None

    async def _wait(self, _fd: int) -> None:
        """Wait for a request that libfuse has to know."""
        while not interposed.is_left() and not replies.are_left():
            assert self._bell is not None
            await trio.lowlevel.wait_readable(self._bell)
            with suppress(BlockingIOError):
                os.eventfd_read(self._bell)
            if self._failure is not None:
                raise self._failure
        if interposed.is_left():
            replies.begin_put_off()


def own_fds(is_wanted: Callable[[int], bool]) -> set[int]:
    """Return the descriptors of this process for which `is_wanted` is true."""
    found = set()
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the descriptor that listed the directory
            if is_wanted(fd):
                found.add(fd)
    return found


def _epolls() -> set[int]:
    """Return the epoll descriptors of this process: trio does not tell which is its own."""
    return own_fds(lambda fd: os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:[eventpoll]")


def take_over_waiting() -> None:
    """Replace `pyfuse3.trio`, before `pyfuse3.init`: all workers inherit it."""
    lowlevel = SimpleNamespace(
        wait_readable=trio.lowlevel.wait_readable,
        current_task=trio.lowlevel.current_task,
        current_trio_token=trio.lowlevel.current_trio_token,
    )
    pyfuse3.trio = SimpleNamespace(  # type: ignore[attr-defined] # a module, as pyfuse3.asyncio puts there
        lowlevel=lowlevel,
        Lock=nullcontext,
        ClosedResourceError=trio.ClosedResourceError,
        open_nursery=trio.open_nursery,
    )


async def serve() -> None:
    """Serve the session's requests until it ends, in one task."""
    await pyfuse3.main(min_tasks=1, max_tasks=1)

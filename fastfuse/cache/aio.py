"""Small direct reads that no thread waits for: Linux AIO, whose completions wake the event loop through an eventfd.

Handing 40 KB to a thread and back takes two switches and two turns at the GIL: more CPU time than all else of the read
(docs/MEASUREMENTS.md, "Local tier"). Each read carries ``RWF_NOWAIT``, so submitting it never blocks the loop. Where
the kernel would have to wait, for room in the disk's queue or for metadata, it refuses the read. The caller then takes
a thread, as it does where the file system has no direct I/O, or the system no AIO.

io_uring does not serve here: container runtimes forbid it by default.
"""

import ctypes
import errno
import os
import platform
import struct
from contextlib import suppress
from itertools import count

import trio

from fastfuse.cache.segments import address_of

__all__ = ["KernelReads"]

# The numbers of io_setup, io_destroy, io_getevents and io_submit.
_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
# Reads in flight. Of 65,536 that the system has by default (fs.aio-max-nr).
_MOST_READS = 256
# struct iocb: data, key, flags of the read, operation, priority, file, memory, bytes, offset, -, flags, eventfd.
_IOCB = struct.Struct("=QiIHhIQQqQII")
_RWF_NOWAIT, _IOCB_FLAG_RESFD = 8, 1
# struct io_event: data, iocb, result, second result.
_EVENT = struct.Struct("=QQqq")

_libc = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _Read:
    """A read in flight; the kernel needs its memory. `task` is None once that waits no more."""

    __slots__ = ("into", "is_overdue", "result_bytes", "task")

    def __init__(self, task: trio.lowlevel.Task, into: memoryview) -> None:
        self.task: trio.lowlevel.Task | None = task
        self.into = into
        self.result_bytes = 0
        self.is_overdue = False

    def end(self) -> None:
        """Let the task go on, if it waits."""
        task, self.task = self.task, None
        if task is not None:
            trio.lowlevel.reschedule(task)


class KernelReads:
    """The reads of one run of trio, in which it is constructed."""

    def __init__(self, patience_s: float) -> None:
        """Wait no longer for a read than twice `patience_s`."""
        self._patience_s = patience_s
        # Empty where the system has no AIO, or the file system does not take such reads.
        self._calls = _CALLS.get(platform.machine(), ())
        self._context = ctypes.c_ulong()
        self._numbers = count()
        self._reads: dict[int, _Read] = {}
        # The kernel copies it as a read is submitted.
        self._iocb = ctypes.create_string_buffer(_IOCB.size)
        self._iocbs = (ctypes.c_void_p * 1)(ctypes.addressof(self._iocb))
        self._events = ctypes.create_string_buffer(_MOST_READS * _EVENT.size)
        if self._calls and self._call(0, ctypes.c_uint(_MOST_READS), ctypes.byref(self._context)) < 0:
            self._calls = ()
        if self._calls:
            self._finished = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            trio.lowlevel.spawn_system_task(self._reap)
            trio.lowlevel.spawn_system_task(self._end_overdue)

    async def read(self, fd: int, offset: int, into: memoryview) -> bool:
        """Fill `into` from a file; memory, size and offset are aligned. Return False if a thread has to do it.

        Raise `trio.TooSlowError` if the disk does not answer.
        """
        if not self._calls or len(self._reads) >= _MOST_READS:
            return False
        number, read = next(self._numbers), _Read(trio.lowlevel.current_task(), into)
        head, flags = (number, 0, _RWF_NOWAIT, 0, 0, fd), (0, _IOCB_FLAG_RESFD, self._finished)
        _IOCB.pack_into(self._iocb, 0, *head, address_of(into), len(into), offset, *flags)
        if self._call(3, self._context, ctypes.c_long(1), self._iocbs) != 1:
            if ctypes.get_errno() in (errno.EOPNOTSUPP, errno.EINVAL):
                self._calls = ()
            return False
        self._reads[number] = read

        def give_up(_: object) -> trio.lowlevel.Abort:
            read.task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)
        if read.is_overdue:
            raise trio.TooSlowError
        return read.result_bytes == len(into)

    async def _reap(self) -> None:
        try:
            while True:
                await trio.lowlevel.wait_readable(self._finished)
                with suppress(BlockingIOError):
                    os.eventfd_read(self._finished)
                found = self._call(2, self._context, ctypes.c_long(0), ctypes.c_long(_MOST_READS), self._events, None)
                for place in range(0, found * _EVENT.size, _EVENT.size):
                    number, _, result_bytes, _ = _EVENT.unpack_from(self._events, place)
                    read = self._reads.pop(number)
                    read.result_bytes = result_bytes
                    read.end()
        finally:
            # The run ends. A read that is still in flight holds the end of the process up, as it would in a thread.
            os.close(self._finished)

    async def _end_overdue(self) -> None:
        """End the wait for reads that were there at the last look already: a deadline for each read costs 20 µs."""
        seen: set[int] = set()
        while True:
            await trio.sleep(self._patience_s)
            for number in seen & self._reads.keys():
                self._reads[number].is_overdue = True
                self._reads[number].end()
            seen = set(self._reads)

    def _call(self, which: int, *arguments: object) -> int:
        result: int = _libc.syscall(ctypes.c_long(self._calls[which]), *arguments)
        return result

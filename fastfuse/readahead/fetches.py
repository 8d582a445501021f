"""Gets parts: each GET lands its part in the pool, or fails it there, whatever happens.

A part is got without a task where somebody can (`begin`), and otherwise by a task that asks the reader of the engine.
"""

import math
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import trio

from fastfuse.errors import DeadlineError, ReadError, UnavailableError
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.readahead.limits import ReadaheadConfig
from fastfuse.readahead.pace import ServicePace
from fastfuse.readahead.page_cache import Delivered
from fastfuse.readahead.parts import Part
from fastfuse.readahead.pool import PartPool
from fastfuse.s3.base import BeginGet, RangeReader

_Landed = Callable[[], None]

# The time after which the system may have memory again: others end, or the kernel ends them.
_MEMORY_AGAIN_S = 1.0


@dataclass(slots=True)
class ReadCounts:
    """The counts of all files of an engine together. A read is a hit when it waited for nothing."""

    hits: int = 0
    # Reads that waited, and those of their bytes that were not in memory when they came.
    waits: int = 0
    waited_bytes: int = 0
    demanded_parts: int = 0
    ahead_parts: int = 0
    prefetched_parts: int = 0


class Fetches:
    """The GETs of one engine. They outlive the reads that ask for them, and end with `nursery`.

    Tasks begin in the order in which they are started. trio runs the tasks that become ready in one turn in either
    order, by chance. Without this queue the part that a reader waits for would often be requested last.
    """

    def __init__(
        self, reader: RangeReader, pool: PartPool, delivered: Delivered, nursery: trio.Nursery, config: ReadaheadConfig
    ) -> None:
        self.counts = ReadCounts()
        self.service = ServicePace(config.first_window_bytes)
        # A way to get a part that takes no task; None where there is none.
        self.begin: BeginGet | None = None
        # Returns memory for an answer that several parts are copied into.
        self.take: Callable[[int], memoryview] = lambda size_bytes: memoryview(bytearray(size_bytes))
        # Has the page cache drop ranges of an inode.
        self.drop_pages: Callable[[int, list[tuple[int, int]]], None] = lambda inode, ranges: None
        self._reader = reader
        self._pool = pool
        self._delivered = delivered
        self._nursery = nursery
        self._read_deadline_s = config.read_deadline_s
        # Why the last GET failed that the service did not answer, and when, on trio's clock.
        self._cause, self._failed_s = "", -math.inf
        self._made_s = trio.current_time()
        self._next: deque[Callable[[], Awaitable[None]]] = deque()

    def start(self, task: Callable[[], Awaitable[None]]) -> None:
        """Call `task`, which must raise nothing, in a task of its own."""
        self._next.append(task)
        self._nursery.start_soon(self._run_next)

    def fetch(self, part: Part, landed: _Landed) -> None:
        """Fetch `part` from now on, or from when there is room for it; if it is ahead, after those started before.

        `landed` is called once its bytes are there.
        """
        # A GET that is begun at once would overtake tasks that were started and have not begun.
        if part.room is not None or (self._next and not part.is_demanded):
            self.start(partial(self.run, part, landed, may_begin=True))
        elif not self._begin(part, partial(self._ended, part, landed)):
            self.start(partial(self.run, part, landed))

    async def run(self, part: Part, landed: _Landed | None = None, *, may_begin: bool = False) -> None:
        """Fetch `part`, once there is room for it, or fail its readers. Raise nothing but `Cancelled`.

        It `may_begin` without this task if that was not tried.
        """
        try:
            if part.room is not None:
                await part.room.wait()
            if part.error is not None or (may_begin and self._begin(part, partial(self._ended, part, landed))):
                return
            self._note_begin(part)
            data = await self._get(part)
        except trio.Cancelled:
            self._pool.fail(part, UnavailableError("the read was cancelled because the mount is closing"))
            raise
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in the S3 client ends this read, not the mount
            self.failed(part.file.inode, error)
            if isinstance(error, ReadError):
                error.__traceback__ = None  # its frames hold memory, and the part, which holds it
            self._pool.fail(part, error)
        else:
            self._land(part, landed, data)

    def failed(self, inode: int, error: Exception) -> None:
        """Note that a GET of a file failed, and why if the service did not answer it."""
        self._delivered.fail(inode)
        if isinstance(error, UnavailableError):
            self._cause, self._failed_s = str(error), trio.current_time()

    async def memory(self, ref: ObjectRef, size_bytes: int, began_s: float) -> memoryview:
        """Return memory for the answer of a read of `ref` that waits from `began_s` on, once the system has some."""
        while trio.current_time() < began_s + self._read_deadline_s:
            with suppress(MemoryError):
                return self.take(size_bytes)
            await trio.sleep(_MEMORY_AGAIN_S)
        raise self.late(ref, began_s)

    def late(self, ref: ObjectRef, began_s: float) -> DeadlineError:
        """Return the error of a read of `ref` that waited from `began_s` on, with what failed meanwhile."""
        text = f"{ref.key!r} could not be read within {self._read_deadline_s:g} s."
        if self._failed_s >= began_s:
            return DeadlineError(f"{text} What failed last: {self._cause}")
        if began_s < self._made_s:
            return DeadlineError(f"{text} A worker died meanwhile.")
        return DeadlineError(text, hint=DeadlineError.TOO_SLOW_HINT)

    async def _run_next(self) -> None:
        await self._next.popleft()()

    def _begin(self, part: Part, ended: Callable[[Buffer | None], None]) -> bool:
        """Begin the GET of `part` if that takes no task; return whether it is under way."""
        if self.begin is None:
            return False
        self._note_begin(part)
        try:
            return self.begin(part.file.ref, part.start, part.end, ended)
        except Exception:  # noqa: BLE001 - the client meets it again, and tells it
            return False

    def _ended(self, part: Part, landed: _Landed | None, data: Buffer | None) -> None:
        if data is None:
            # Readers have waited since it began, and are to hear from this GET why it failed.
            part.ends_s = min(part.ends_s, part.began_s + self._read_deadline_s)
            self.start(partial(self.run, part, landed))
        else:
            self._land(part, landed, data)

    async def _get(self, part: Part) -> Buffer:
        get, ends_s = partial(self._reader.get, part.file.ref, part.start, part.end), part.ends_s
        if ends_s == math.inf:
            return await get()  # a cancel scope would be in vain
        with trio.move_on_at(ends_s):
            return await get()
        raise self.late(part.file.ref, ends_s - self._read_deadline_s)

    def _note_begin(self, part: Part) -> None:
        part.began_s, part.began_beside = trio.current_time(), self._pool.parts_in_flight

    def _land(self, part: Part, landed: _Landed | None, data: Buffer) -> None:
        if not part.is_expected:
            in_flight = (part.began_beside + self._pool.parts_in_flight) // 2
            self.service.landed(part.size_bytes, trio.current_time() - part.began_s, in_flight)
        self._pool.land(part, data)
        if landed is not None:
            landed()

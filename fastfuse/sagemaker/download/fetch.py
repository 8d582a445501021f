"""Fetch files with as many GETs at once as the network carries, in no more memory than was given.

One task walks through the jobs and starts a fetch, of a small file or of a part, as soon as there is room. Millions of
files therefore make no more tasks than there is work in flight. Only threads touch the disk.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

import trio

from fastfuse.errors import IntegrityError
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.s3.base import RangeReader
from fastfuse.s3.concurrency import Pace
from fastfuse.s3.room import Room
from fastfuse.sagemaker.download.jobs import Job
from fastfuse.sagemaker.download.landing import Half, Landing
from fastfuse.sagemaker.download.stamps import Part

__all__ = ["Fetch"]

T = TypeVar("T")

# Four writers are enough for a local disk; a network's takes more (EFS: 10 ms for a new file).
_DISK_THREADS = 8
# One hop to a thread opens the directories of so many files: it costs as much as ten of them.
_JOBS_AHEAD = 128


class Fetch:
    """One run; `requests`, `fetched_bytes`, `done_files` and `done_bytes` say how far it is."""

    def __init__(
        self, reader: RangeReader, landing: Landing, *, part_bytes: int, memory_bytes: int, most_gets: int
    ) -> None:
        self._reader = reader
        self._landing = landing
        # One part that is written fits beside one that is fetched.
        self._part_bytes = min(part_bytes, max(memory_bytes // 2, 1))
        # As many writes may wait for the disk as GETs for the network.
        self._room = Room(Pace(most_gets), most_fetches=2 * most_gets, memory_bytes=memory_bytes)
        self._threads = trio.CapacityLimiter(_DISK_THREADS)
        # By file, the parts that are missing.
        self._halves: dict[Half, int] = {}
        self.requests = self.fetched_bytes = self.done_files = self.done_bytes = 0

    async def run(self, jobs: Iterator[Job]) -> None:
        """Fetch all files; raise the first error, in a group. What is on the disk stays there."""
        try:
            async with trio.open_nursery() as nursery:
                while batch := await self._in_thread(lambda: list(islice(jobs, _JOBS_AHEAD))):
                    for job in batch:
                        await self._start(nursery, job)
                    del job, batch  # and with them their directories
        finally:
            for half in self._halves:
                half.close()

    async def _start(self, nursery: trio.Nursery, job: Job) -> None:
        size_bytes = job.ref.size_bytes
        if size_bytes > self._part_bytes:
            await self._start_parts(nursery, job)
            return
        await self._room.enter(size_bytes)
        nursery.start_soon(self._fetch_whole, job)

    async def _start_parts(self, nursery: trio.Nursery, job: Job) -> None:
        half = await self._in_thread(lambda: self._landing.open_half(job, self._part_bytes))
        missing = list(half.journal.missing())
        self._halves[half] = len(missing)
        self.done_bytes += half.journal.done_bytes
        if not missing:
            await self._finish(half)
        for part in missing:
            await self._room.enter(part.end - part.start)
            nursery.start_soon(self._fetch_part, half, part)

    async def _fetch_whole(self, job: Job) -> None:
        size_bytes = job.ref.size_bytes
        data = await self._get(job.ref, 0, size_bytes)
        await self._in_thread(lambda: self._landing.land(job, data))
        self._room.leave(size_bytes)
        self.done_bytes += size_bytes
        self.done_files += 1

    async def _fetch_part(self, half: Half, part: Part) -> None:
        try:
            data = await self._get(half.job.ref, part.start, part.end)
        except IntegrityError:
            await self._in_thread(half.spoil)
            raise
        await self._in_thread(lambda: half.write(part, data))
        self._room.leave(len(data))
        self.done_bytes += len(data)
        self._halves[half] -= 1
        if not self._halves[half]:
            await self._finish(half)

    async def _finish(self, half: Half) -> None:
        await self._in_thread(lambda: self._landing.finish(half))
        del self._halves[half]
        self.done_files += 1

    async def _get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        started_s = trio.current_time()
        data: Buffer = b""
        if start < end:
            self.requests += 1
            data = await self._reader.get(ref, start, end)
            self.fetched_bytes += len(data)
        self._room.landed(started_s)
        return data

    async def _in_thread(self, work: Callable[[], T]) -> T:
        # Never abandoned: a write that has begun ends.
        return await trio.to_thread.run_sync(work, limiter=self._threads)

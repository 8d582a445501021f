"""One channel in File mode, from its snapshot to its directory, in a process that was just forked.

As many GETs are under way as the network carries, in no more memory than was given. One task walks through the jobs and
starts a fetch, of a small file or of a part, as soon as there is room. Millions of files therefore make no more tasks
than there is work in flight. Only threads touch the disk.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

import trio

from fastfuse import awake
from fastfuse.cache.directory import open_or_none
from fastfuse.cache.reader import cached
from fastfuse.cache.settings import CacheSettings, data_bytes
from fastfuse.errors import FastfuseError, ReadError, first_of
from fastfuse.filesystem.processes.privileges import worker_uid
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.made import MadeReader
from fastfuse.index.snapshot import open_snapshot
from fastfuse.metrics import Counters
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig, RangeReader
from fastfuse.s3.buffers import PartBuffers
from fastfuse.s3.client import S3Client
from fastfuse.s3.retries import Retries
from fastfuse.s3.room import Room
from fastfuse.s3.whole import command_error
from fastfuse.sagemaker.download import disk, landing
from fastfuse.sagemaker.download.disk import Directory, disk_errors, open_root
from fastfuse.sagemaker.download.landing import Job, Landing, Places

T = TypeVar("T")

_REPORT_EVERY_S = 0.1
# Four writers are enough for a local disk; a network's takes more (EFS: 10 ms for a new file).
_DISK_THREADS = 8
# One hop to a thread opens the directories of so many files: it costs as much as ten of them.
_JOBS_AHEAD = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadSettings:
    """The directory of a download, and the memory it may use."""

    # Made if it is missing; no symbolic link below `base` is followed.
    directory: Path
    base: Path
    # Bytes of object data on their way or not yet written.
    memory_target_bytes: int
    # The size of one GET; a larger file takes several.
    part_size_bytes: int
    # The local tier, which is prepared.
    cache: CacheSettings | None = None
    # For a caller that asks about the trouble of its requests.
    retries: Retries | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadReport:
    """The state of a download, while it runs and in the end; files that were there before count as done."""

    files: int
    # Whole and current before the download began.
    kept_files: int
    # In the channel's directories but not in the listing; they are left alone.
    unknown_files: int
    total_bytes: int
    done_bytes: int
    # GETs begun, without retries within the client, and the bytes that they brought.
    requests: int
    fetched_bytes: int
    elapsed_s: float


def download_channel(
    snapshot_fd: int,
    connection: ConnectionConfig,
    settings: DownloadSettings,
    report: Callable[[DownloadReport], None],
    counters: Counters | None = None,
) -> DownloadReport:
    """Make the files below `settings.directory` those of the snapshot in `snapshot_fd`.

    Files that are there already are not fetched again, and unknown ones are left alone. The first failure ends it; the
    next call continues. `report` is called ten times a second and at the end, also after a failure, and must not wait.
    `counters` count each GET.

    Raises:
        DiskError: it does not fit, or the disk does not take it.
        ConfigurationError: another process downloads to the directory.
        SourceError, AccessError, ServiceError: an object could not be read; the message names its key.
    """
    table, counters = open_snapshot(snapshot_fd).table, counters or Counters()
    memory_bytes = settings.memory_target_bytes
    settings = replace(settings, memory_target_bytes=data_bytes(memory_bytes, settings.cache))

    async def download_and_close() -> DownloadReport:
        buffers = PartBuffers(part_bytes=settings.part_size_bytes, limit_bytes=settings.memory_target_bytes)
        session = S3Session(connection)
        client = S3Client(session, buffers=buffers, counters=counters, retries=settings.retries)
        cache = open_or_none(settings.cache, worker_uid())
        reader = MadeReader(cached(client, cache, buffers, counters, session, memory_bytes), lambda: table)
        try:
            return await download(table, reader, settings, report, most_gets=connection.max_connections)
        finally:
            with trio.CancelScope(shield=True):
                await reader.aclose()

    try:
        return awake.run(download_and_close)
    except (FastfuseError, ExceptionGroup) as error:
        first = first_of(error)
        if isinstance(first, ReadError):
            raise command_error(first) from first
        raise first from error.__cause__


def settle_channel(directory: Path, base: Path) -> None:
    """Wait for the disk, so that the next boot of the host believes the channel's files.

    Call it after `download_channel`, when nothing waits: it takes as long as the disk does.

    Raises:
        DiskError: the disk did not take what was written to it.
    """
    with closing(open_root(directory, base)) as root, disk_errors(root.path):
        disk.settle(root)


async def download(
    table: InodeTable,
    reader: RangeReader,
    settings: DownloadSettings,
    report: Callable[[DownloadReport], None],
    *,
    most_gets: int,
) -> DownloadReport:
    """Download from any reader as `download_channel` does; raise its `ReadError`, in a group."""
    with closing(await trio.to_thread.run_sync(open_root, settings.directory, settings.base)) as root:
        run = await trio.to_thread.run_sync(_Download, root, table, reader, settings, most_gets)

        async def report_often() -> None:
            while True:
                report(run.report())
                await trio.sleep(_REPORT_EVERY_S)

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(report_often)
                await run.fetch(landing.jobs(run.places, run.survey.is_there))
                nursery.cancel_scope.cancel()
            await trio.to_thread.run_sync(run.clean_up)
        finally:
            last = run.report()  # after a failure, too: what it fetched is paid for
            report(last)
        return last


class _Download:
    """One run: what is decided before the first byte is fetched, the fetches, and how far they are."""

    def __init__(
        self, root: Directory, table: InodeTable, reader: RangeReader, settings: DownloadSettings, most_gets: int
    ) -> None:
        self._started_s = time.monotonic()
        self.places = Places(table, root)
        self._private_name = landing.private_name(self.places)
        self._boot = disk.boot_id()
        self.survey = landing.Survey(self.places, self._private_name)
        self._private = disk.open_private(root, self._private_name)
        landing.check_room(self.places, self.survey)
        self._reader = reader
        memory_bytes = settings.memory_target_bytes
        # One part that is written fits beside one that is fetched.
        self._part_bytes = min(settings.part_size_bytes, max(memory_bytes // 2, 1))
        # Twice the GETs: as many writes may wait for the disk as GETs for the network.
        self._room = Room(most_gets=most_gets, most_fetches=2 * most_gets, memory_bytes=memory_bytes)
        self._threads = trio.CapacityLimiter(_DISK_THREADS)
        # The bytes that are missing, by file that is fetched in parts.
        self._missing: dict[Landing, int] = {}
        self._requests = self._fetched_bytes = self._done_bytes = 0

    def clean_up(self) -> None:
        """Remove the private directory, which is empty."""
        with disk_errors(self._private.path):
            os.rmdir(self._private_name, dir_fd=self.places.root.fd)

    def report(self) -> DownloadReport:
        """Return how far it is."""
        metadata = self.places.table.metadata
        return DownloadReport(
            files=metadata.file_count,
            kept_files=self.survey.kept_files,
            unknown_files=self.survey.unknown_files,
            total_bytes=metadata.total_bytes,
            done_bytes=self.survey.kept_bytes + self._done_bytes,
            requests=self._requests,
            fetched_bytes=self._fetched_bytes,
            elapsed_s=time.monotonic() - self._started_s,
        )

    async def fetch(self, jobs: Iterator[Job]) -> None:
        """Fetch all files; raise the first error, in a group. What is on the disk stays there."""
        try:
            async with trio.open_nursery() as nursery:
                while batch := await self._in_thread(lambda: list(islice(jobs, _JOBS_AHEAD))):
                    for job in batch:
                        await self._start(nursery, job)
                    del job, batch  # and with them their directories
        finally:
            for file in self._missing:
                file.close()

    async def _start(self, nursery: trio.Nursery, job: Job) -> None:
        size_bytes = job.ref.size_bytes
        if size_bytes <= self._part_bytes:
            await self._room.enter(size_bytes)
            nursery.start_soon(self._fetch_whole, job)
            return
        file = await self._in_thread(lambda: Landing(job, self._private, self._boot))
        self._missing[file] = size_bytes
        for start, end in job.ref.parts(self._part_bytes):
            await self._room.enter(end - start)
            nursery.start_soon(self._fetch_part, file, job.ref, start, end)

    async def _fetch_whole(self, job: Job) -> None:
        size_bytes = job.ref.size_bytes
        data = await self._get(job.ref, 0, size_bytes)
        await self._in_thread(lambda: Landing(job, self._private, self._boot).land(data))
        self._room.leave(size_bytes)
        self._done_bytes += size_bytes

    async def _fetch_part(self, file: Landing, ref: ObjectRef, start: int, end: int) -> None:
        data = await self._get(ref, start, end)
        await self._in_thread(lambda: file.write(data, start))
        self._room.leave(len(data))
        self._done_bytes += len(data)
        self._missing[file] -= len(data)
        if not self._missing[file]:
            await self._in_thread(file.finish)
            del self._missing[file]

    async def _get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        started_s = trio.current_time()
        data: Buffer = b""
        if start < end:
            self._requests += 1
            data = await self._reader.get(ref, start, end)
            self._fetched_bytes += len(data)
        self._room.landed(started_s)
        return data

    async def _in_thread(self, work: Callable[[], T]) -> T:
        # Never abandoned: a write that has begun ends.
        return await trio.to_thread.run_sync(work, limiter=self._threads)

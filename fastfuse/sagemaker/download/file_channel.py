"""One channel in File mode, from its snapshot to its directory, in a process that was just forked."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import trio

from fastfuse.errors import (
    AccessError,
    FastfuseError,
    ObjectChangedError,
    ObjectDeniedError,
    ReadError,
    ServiceError,
    SourceError,
    first_of,
)
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.made import MadeReader
from fastfuse.index.snapshot import open_snapshot
from fastfuse.metrics import Counters
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig, RangeReader
from fastfuse.s3.buffers import PartBuffers
from fastfuse.s3.client import S3Client
from fastfuse.sagemaker.download.disk import Directory, disk_errors, open_private, open_root, read_trust, settle
from fastfuse.sagemaker.download.fetch import Fetch
from fastfuse.sagemaker.download.jobs import Places, jobs
from fastfuse.sagemaker.download.landing import Landing
from fastfuse.sagemaker.download.survey import (
    DiskClaim,
    Survey,
    check_room,
    clear_private,
    disk_claims,
    private_name,
    take_survey,
)

__all__ = ["DownloadReport", "DownloadSettings", "download", "download_channel", "settle_channel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadSettings:
    """The directory of a download, and the memory it may use."""

    # Made if it is missing.
    directory: Path
    # Bytes of object data on their way or not yet written.
    memory_target_bytes: int
    # The size of one GET; a larger file takes several.
    part_size_bytes: int
    # What an earlier run fetched of an unfinished file is not kept: only a file that is fetched as a whole is checked.
    is_verified: bool = False
    # The claim among those of the job's channels; alone by default.
    claim: DiskClaim = field(default_factory=lambda: disk_claims(1)[0])
    # No symbolic link below it is followed; None: the directory before `directory`.
    base: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadReport:
    """The state of a download, while it runs and in the end; files that were there before count as done."""

    files: int
    done_files: int
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


# As often as a bar is worth drawing again.
_REPORT_EVERY_S = 0.1


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
    table = open_snapshot(snapshot_fd).table
    try:
        return trio.run(_download_and_close, table, connection, settings, report, counters)
    except (FastfuseError, ExceptionGroup) as error:
        first = first_of(error)
        if isinstance(first, ReadError):
            raise _command_error(first) from first
        raise first from error.__cause__


def settle_channel(directory: Path, base: Path | None = None) -> None:
    """Wait for the disk, so that the next boot of the host believes the channel's files.

    Call it after `download_channel`, when nothing waits: it takes as long as the disk does.

    Raises:
        DiskError: the disk did not take what was written to it.
    """
    root = open_root(directory, base)
    try:
        with disk_errors(root.path):
            settle(root)
    finally:
        root.close()


async def _download_and_close(
    table: InodeTable,
    connection: ConnectionConfig,
    settings: DownloadSettings,
    report: Callable[[DownloadReport], None],
    counters: Counters | None,
) -> DownloadReport:
    buffers = PartBuffers(part_bytes=settings.part_size_bytes, limit_bytes=settings.memory_target_bytes)
    reader = MadeReader(S3Client(S3Session(connection), buffers=buffers, counters=counters), lambda: table)
    try:
        return await download(table, reader, settings, report, most_gets=connection.max_connections)
    finally:
        with trio.CancelScope(shield=True):
            await reader.aclose()


async def download(
    table: InodeTable,
    reader: RangeReader,
    settings: DownloadSettings,
    report: Callable[[DownloadReport], None],
    *,
    most_gets: int,
) -> DownloadReport:
    """Download from any reader as `download_channel` does; raise its `ReadError`, in a group."""
    root = await trio.to_thread.run_sync(open_root, settings.directory, settings.base)
    try:
        return await _download_to(root, table, reader, settings, report, most_gets)
    finally:
        root.close()


async def _download_to(
    root: Directory,
    table: InodeTable,
    reader: RangeReader,
    settings: DownloadSettings,
    report: Callable[[DownloadReport], None],
    most_gets: int,
) -> DownloadReport:
    run = await trio.to_thread.run_sync(_Run, root, table, settings)
    fetch = Fetch(
        reader,
        run.landing,
        part_bytes=settings.part_size_bytes,
        memory_bytes=settings.memory_target_bytes,
        most_gets=most_gets,
    )

    def tell() -> DownloadReport:
        run.shrink_claim(fetch)
        state = run.report(fetch)
        report(state)
        return state

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_tell_often, tell)
            await fetch.run(jobs(run.places, run.survey.is_there))
            nursery.cancel_scope.cancel()
        await trio.to_thread.run_sync(run.clean_up)
    finally:
        last = tell()  # after a failure, too: what it fetched is paid for
    return last


async def _tell_often(tell: Callable[[], object]) -> None:
    while True:
        tell()
        await trio.sleep(_REPORT_EVERY_S)


class _Run:
    """The decisions before the first byte is fetched."""

    def __init__(self, root: Directory, table: InodeTable, settings: DownloadSettings) -> None:
        self._started_s = time.monotonic()
        self.places = Places(table, root)
        self._private_name = private_name(self.places)
        trust = read_trust(root)
        self.survey: Survey = take_survey(self.places, trust, self._private_name)
        self._private = open_private(root, self._private_name)
        self._claim = settings.claim
        check_room(self.places, self.survey, clear_private(self.places, self._private, self.survey), self._claim)
        self._missing_bytes = table.metadata.total_bytes - self.survey.kept_bytes
        self.landing = Landing(self._private, trust, continues=not settings.is_verified)

    def clean_up(self) -> None:
        """Remove the private directory, which is empty."""
        with disk_errors(self._private.path):
            os.rmdir(self._private_name, dir_fd=self.places.root.fd)

    def shrink_claim(self, fetch: Fetch) -> None:
        """Reduce the claim by what is on the disk."""
        left_bytes = self._missing_bytes - fetch.done_bytes
        self._claim.shrink(left_bytes / self._missing_bytes if left_bytes > 0 else 0.0)

    def report(self, fetch: Fetch) -> DownloadReport:
        metadata = self.places.table.metadata
        return DownloadReport(
            files=metadata.file_count,
            done_files=self.survey.kept_files + fetch.done_files,
            kept_files=self.survey.kept_files,
            unknown_files=self.survey.unknown_files,
            total_bytes=metadata.total_bytes,
            done_bytes=self.survey.kept_bytes + fetch.done_bytes,
            requests=fetch.requests,
            fetched_bytes=fetch.fetched_bytes,
            elapsed_s=time.monotonic() - self._started_s,
        )


def _command_error(error: ReadError) -> FastfuseError:
    """Return the failure of a read as the error of a command."""
    kind: type[FastfuseError] = ServiceError
    if isinstance(error, ObjectChangedError):
        kind = SourceError
    elif isinstance(error, ObjectDeniedError):
        kind = AccessError
    return kind(str(error), hint=error.hint)

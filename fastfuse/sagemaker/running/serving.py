"""The work of one channel's process: index, then mount, download or stream, and report to the parent.

Counters are in memory that parent and child share.
"""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import trio

from fastfuse.cache.directory import prepare
from fastfuse.errors import MountError
from fastfuse.filesystem import supervisor
from fastfuse.filesystem.figures.status import Recent, TroubleGauges
from fastfuse.filesystem.mounting.mount_settings import MountSettings
from fastfuse.filesystem.mounting.mountpoint import find_mount
from fastfuse.filesystem.processes.privileges import worker_uid
from fastfuse.filesystem.refresh import run_lister
from fastfuse.index.snapshot import open_snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.metrics import Counters
from fastfuse.s3.aws import S3Session
from fastfuse.s3.retries import Retries
from fastfuse.sagemaker.description.channel import InputMode, LocalDirectory
from fastfuse.sagemaker.download.disk import disk_errors
from fastfuse.sagemaker.download.file_channel import DownloadReport, DownloadSettings, download_channel, settle_channel
from fastfuse.sagemaker.local_files import index_files
from fastfuse.sagemaker.local_places import keep_in_place
from fastfuse.sagemaker.outputs.record import ETAGS_NAME, listing_of, write_etags
from fastfuse.sagemaker.pipe.pipe_channel import PipeStream, stream_channel
from fastfuse.sagemaker.run_settings import ChannelTask
from fastfuse.sizes import format_size

_log = logging.getLogger(__name__)


def serve_channel(task: ChannelTask, counters: Counters, tell: Callable[..., None]) -> int:
    """Serve the channel until it is done or told to stop, and return the exit code (clause L5).

    `tell` takes an error, or one of ``listing`` (of `listing_of`), ``ready`` (a text), and ``progress`` of a
    download (bytes done, and of how many).

    Raises:
        FastfuseError: the channel cannot be served.
    """
    if task.channel.is_put_in_place:
        keep_in_place(task.channel, task.place, task.settings.paths.base, task.origin, tell)
        return 0
    serve = {InputMode.FAST_FILE: _mount, InputMode.FILE: _download, InputMode.PIPE: _stream}[task.channel.input_mode]
    return serve(task, counters, tell)


def _index(task: ChannelTask, counters: Counters, tell: Callable[..., None]) -> int:
    """Return a descriptor of the channel's index, which the caller closes, and tell of the listing."""
    source, origin = task.channel.source, task.origin
    if isinstance(source, LocalDirectory):
        snapshot_fd = index_files(source, task.place, origin)
    else:
        # A process of its own lists, and its garbage goes with it.
        snapshot_fd, report = run_lister(source, origin, S3Session(task.settings.connection), counters)
        _log.info("listed %s: %s", source, report)
        counters.count("fastfuse_index_requests", report.requests)
    _tell_listing(task, snapshot_fd, counters, tell)
    return snapshot_fd


def _tell_listing(task: ChannelTask, snapshot_fd: int, counters: Counters, tell: Callable[..., None]) -> None:
    snapshot = open_snapshot(snapshot_fd)
    counters.set("fastfuse_table_files", snapshot.table.metadata.file_count)
    counters.set("fastfuse_table_bytes", snapshot.table.metadata.total_bytes)
    if task.settings.records_etags:
        with disk_errors(os.fsencode(task.settings.paths.output / ETAGS_NAME)):
            write_etags(snapshot, task.channel.name, task.settings.paths)
    tell(listing=listing_of(snapshot.table))


def _download(task: ChannelTask, counters: Counters, tell: Callable[..., None]) -> int:
    place = task.place
    snapshot_fd = _index(task, counters, tell)
    recent = Recent(counters, "File")
    recent.begin()
    retries, gauges = Retries(counters), TroubleGauges(counters)

    def report(progress: DownloadReport) -> None:
        counters.set("fastfuse_fetched_parts", progress.requests, "prefetched")
        # The command waits for all of it.
        _note_waiting(counters, progress.elapsed_s, is_waiting=True)
        gauges.look(retries.trouble(), trio.current_time())
        recent.look()
        tell(progress=(progress.done_bytes, progress.total_bytes))

    prepare(task.settings.cache, worker_uid())
    settings = DownloadSettings(
        directory=place,
        memory_target_bytes=task.memory_target_bytes,
        part_size_bytes=task.settings.part_size_bytes,
        base=task.settings.paths.base,
        cache=task.settings.cache,
        retries=retries,
    )
    try:
        done = download_channel(snapshot_fd, task.settings.connection, settings, report, counters)
        recent.tell_summary()
    finally:
        # Not only at the end: the disk may be waited for, and the index of many objects is large.
        os.close(snapshot_fd)
        _waits_no_more(counters)
    if done.unknown_files:
        _log.warning(
            "%s holds %s files that are none of the channel's, and the command will see them: remove them if they are "
            "of another dataset, or of objects that were deleted",
            *(place, f"{done.unknown_files:,}"),
        )
    kept = f", {done.kept_files:,} of which were there" if done.kept_files else ""
    tell(ready=f"{done.files:,} files{kept}, {format_size(done.total_bytes)} in {done.elapsed_s:.1f} s at {place}")
    # The job need not wait for the disk.
    settle_channel(place, task.settings.paths.base)
    return 0


def _stream(task: ChannelTask, counters: Counters, tell: Callable[..., None]) -> int:
    _remove_mountpoint(task.place)
    snapshot_fd = _index(task, counters, tell)
    are_local = isinstance(task.channel.source, LocalDirectory)
    recent, gauges = Recent(counters, "Pipe"), TroubleGauges(counters)

    def ready() -> None:
        what = f"files of {task.channel.source}" if are_local else "objects"
        if task.epoch_shard is not None:
            what += f", dealt out to {task.epoch_shard.count} hosts anew in each epoch,"
        tell(ready=f"{counters.get('fastfuse_table_files'):,} {what} through {task.place}_0")
        recent.begin()

    def report(stream: PipeStream) -> None:
        _note_waiting(counters, stream.waited_s, is_waiting=stream.is_waiting)
        gauges.look(stream.retries.trouble(), trio.current_time())
        recent.look()
        if stream.failure is not None:
            tell(error=stream.failure)

    if not are_local:
        prepare(task.settings.cache, worker_uid())
    try:
        stream_channel(snapshot_fd, task, counters, ready=ready, report=report)
    finally:
        _waits_no_more(counters)
        recent.tell_summary()
    return 0


def _note_waiting(counters: Counters, waited_s: float, *, is_waiting: bool) -> None:
    """Count how long the one reader of a stream, or the command for a download, has waited until now."""
    for name in ("fastfuse_stalled_seconds", "fastfuse_blocked_seconds"):
        counters.set(name, int(waited_s * 1e6))
    counters.set("fastfuse_waiting_reads", int(is_waiting))


def _waits_no_more(counters: Counters) -> None:
    for name in ("fastfuse_waiting_reads", "fastfuse_in_trouble", "fastfuse_reads_failing"):
        counters.set(name, 0)


def _remove_mountpoint(place: Path) -> None:
    """Remove an empty directory where the channel was mounted before: a script would take it for an empty channel."""
    with suppress(FileNotFoundError, NotADirectoryError):
        if any(place.iterdir()):
            raise _is_full(f"the directory {place} is not empty, and the channel is to be streamed")
        place.rmdir()


def _is_full(message: str) -> MountError:
    return MountError(message, hint="remove it, or begin without --keep, or give another --base-dir")


def _mount(task: ChannelTask, counters: Counters, tell: Callable[..., None]) -> int:
    place = task.place
    if place.is_symlink():
        raise MountError(f"{place} is a symbolic link, and none below the base directory is followed", hint="remove it")
    # A mount that is there says so itself, and one that is dead is cleared.
    if find_mount(place) is None and place.is_dir() and any(place.iterdir()):
        raise _is_full(f"the mountpoint {place} is not empty")
    if task.channel.shuffle_seed is not None:
        _log.warning(
            "channel %s: ShuffleConfig has no effect in FastFile mode. Shuffle the files in the training script, and "
            "announce their order with fastfuse.hints.order or fastfuse.hints.HintedSampler, so that they are fetched "
            "ahead",
            task.channel.name,
        )
    source = task.channel.source
    assert isinstance(source, S3Uri)
    settings = MountSettings(
        source=source,
        mountpoint=place,
        connection=task.settings.connection,
        origin=task.origin,
        cache=task.settings.cache,
        memory_target_bytes=task.memory_target_bytes,
        part_size_bytes=task.settings.part_size_bytes,
        expects_whole_files=True,
        expects_every_file=task.settings.cluster.reads_all(task.channel),
        uid=task.settings.uid,
        gid=task.settings.gid,
        allow_other=task.settings.allow_other,
        create_parents=True,
        grace_s=task.settings.grace_s,
    )

    def ready(snapshot_fd: int) -> None:
        _tell_listing(task, snapshot_fd, counters, tell)
        files = counters.get("fastfuse_table_files")
        tell(ready=f"{files:,} objects at {place}")

    return supervisor.run(settings, ready=ready, counters=counters)

"""Keeps the checkpoints of a job in S3 while it runs, in a process of its own, and brings them back before it starts.

Before that it checks that S3 takes what the job will make: days later is too late to hear of a wrong bucket.

A file goes to S3 once it is complete: nobody has it open for writing, and it was the same at the last look. What is
renamed into the place of another is another file. An object is whole or absent, and stays when its file is removed.
Logs are never complete: all that a log has is sent again when it has grown, the less often the larger it is.
"""

import fcntl
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

import trio

from fastfuse import awake
from fastfuse.errors import AccessError, FastfuseError, RefusedError, ServiceError, SourceError, about
from fastfuse.filesystem.processes.children import STOPPING
from fastfuse.filesystem.refresh import run_lister
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.snapshot import open_snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.client import S3Client
from fastfuse.s3.retries import Retries
from fastfuse.s3.upload import ObjectWriter
from fastfuse.sagemaker.description.channel import SyncedDirectory
from fastfuse.sagemaker.download.disk import PRIVATE_NAME, read_stamp, version_of
from fastfuse.sagemaker.download.file_channel import DownloadReport, DownloadSettings, download_channel
from fastfuse.sagemaker.files import JobPaths
from fastfuse.sagemaker.outputs.found import Found, content_of, open_found, unreadable, walk, written_to
from fastfuse.sagemaker.outputs.sending import Tell, Unsent, as_failure, key_of
from fastfuse.sizes import format_size

_log = logging.getLogger(__name__)

_RESTORE_MEMORY_BYTES = 128 << 20
# Another host that trains replaces a file of each kind once in an epoch, not while each file is fetched.
_RESTORE_TRIES = 10
# The metadata of an object that has the time of the last write of its file, in ns since 1970.
_WRITTEN = "fastfuse-file-written"
# The time after which a failure that lasts is logged once more.
_TOLD_EVERY_S = 3600.0
# A checkpoint of hundreds of GB is written in less; the file of a script that never finishes one waits for longer.
_UNFINISHED_S = 600.0
# A log is sent whole each time. So much a second on average leaves the network to the training, and a bucket that keeps
# versions few of them.
_LOG_BYTES_PER_S = 1 << 20
# Inode, size and time of the last write of a file.
_Version = tuple[int, int, int]


def sync_directories(
    synced: Sequence[SyncedDirectory],
    checked: Sequence[tuple[str, S3Uri, str]],
    paths: JobPaths,
    session: S3Session,
    part_size_bytes: int,
    tell: Tell,
    *,
    began_ns: int | None = None,
    look_every_s: float = 5.0,
    is_alone: bool = True,
) -> None:
    """Check places as `check_places` does, bring checkpoints back, and tell that all is ready.

    Then send files until a signal to stop, and once more; a second signal ends it at once. Nothing half sent stays in
    the bucket. A GET has `part_size_bytes`. If the job began at `began_ns` since 1970, this is for a process that was
    killed, and nothing is brought back. If the host is not `is_alone`, others may replace an object at once.

    Raises:
        FastfuseError: a place cannot be written to, or checkpoints cannot be brought back.
    """
    # The order to stop waits until the check has aborted what it began.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    awake.run(check_places, checked, session)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    directories = [_Directory(one, paths, session, tell, began_ns=began_ns, is_alone=is_alone) for one in synced]
    for directory in directories:
        if directory.synced.are_checkpoints:
            try:
                directory.bring_back(part_size_bytes)
            except FastfuseError as error:
                raise about(directory.synced.field, error) from error
    if directories:
        awake.run(_sync_all, directories, session, look_every_s, tell)
    else:
        tell("", ready=True)


async def check_places(places: Sequence[tuple[str, S3Uri, str]], session: S3Session) -> None:
    """Check, all at once, that an object can be written at each place, or below it, with its key of KMS; write none.

    Each place has the field of the job that names it, for messages. A service that cannot be reached now is only told:
    it may be there when it is needed. So is one that refuses uploads in parts: small files do without them, but not
    without the key.

    Raises:
        AccessError, ConfigurationError, SourceError: an object cannot be written.
    """
    client = S3Client(session)
    failures: list[FastfuseError] = []

    async def check(field: str, uri: S3Uri, kms_key_id: str) -> None:
        key = f"{uri.path}fastfuse" if uri.path.endswith("/") or not uri.path else uri.path
        try:
            await ObjectWriter(client, exits, uri.bucket, key, kms_key_id=kms_key_id).check_access()
        except FastfuseError as error:
            if isinstance(error, ServiceError) and not (kms_key_id and isinstance(error, RefusedError)):
                _log.warning("whether %s of %s can be written to is not known: %s", uri, field, error)
            else:
                # The others end by themselves: an upload that is begun and cancelled may stay in the bucket.
                failures.append(about(f"{field} (KmsKeyId {kms_key_id})" if kms_key_id else field, error))

    async with AsyncExitStack() as exits:
        exits.push_async_callback(client.aclose)
        async with trio.open_nursery() as nursery:
            for place in places:
                nursery.start_soon(check, *place)
    if failures:
        raise failures[0]


async def _sync_all(directories: list["_Directory"], session: S3Session, look_every_s: float, tell: Tell) -> None:
    is_over, retries = trio.Event(), Retries()

    async def heed(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
        await anext(signals)
        is_over.set()
        # The last uploads share a time of their own, and so does each look.
        retries.silent_s = 0.0
        await anext(signals)
        scope.cancel()

    with trio.open_signal_receiver(*STOPPING) as signals:
        async with trio.open_nursery() as nursery, AsyncExitStack() as exits:
            nursery.start_soon(heed, signals, nursery.cancel_scope)
            tell("", ready=True)
            client = S3Client(session)
            exits.push_async_callback(client.aclose)
            writer_to = partial(ObjectWriter, client, exits, retries=retries, outlives_outages=True)
            writers = [writer_to(one.synced.place.bucket, one.synced.place.path) for one in directories]
            while not is_over.is_set():
                with trio.move_on_after(look_every_s):
                    await is_over.wait()
                for directory, writer in zip(directories, writers, strict=True):
                    if not is_over.is_set():
                        retries.silent_s = 0.0
                        await directory.look(writer)
            for directory, writer in zip(directories, writers, strict=True):
                await directory.finish(writer)
            nursery.cancel_scope.cancel()


class _Directory:
    """One directory, and the versions of its files that S3 has."""

    def __init__(
        self,
        synced: SyncedDirectory,
        paths: JobPaths,
        session: S3Session,
        tell: Tell,
        *,
        began_ns: int | None = None,
        is_alone: bool = True,
    ) -> None:
        self.synced = synced
        self._session = session
        self._tell = tell
        self._began_ns, self._is_alone = began_ns, is_alone
        self._directory = paths.of(synced.local_path)
        # No symbolic link below it is followed.
        self._base = paths.base if self._directory.is_relative_to(paths.base) else self._directory
        # The versions that S3 has, and those of the last look.
        self._sent: dict[str, _Version] = {}
        self._seen: dict[str, _Version] = {}
        # The time from which each log may be sent again.
        self._due_s: dict[str, float] = {}
        # The time at which each file was first seen that has been open, or has changed, in each look since.
        self._unfinished: dict[str, float] = {}
        # Files that were here before, of whose names S3 has stored an object since they were written.
        self._older: dict[str, _Version] = {}
        # The files that this process has sent, and their bytes, counted each time.
        self._sent_paths: set[str] = set()
        self._sent_bytes = self._sends = 0
        # The warnings that were logged already.
        self._warned: set[str] = set()
        # The failures since all went well, and when each was logged.
        self._failures: dict[str, float] = {}

    def bring_back(self, part_size_bytes: int) -> None:
        """Download what S3 has, unless files are there already that no unfinished download left."""
        name, directory, prefix = self.synced.name, self._directory, self.synced.place
        is_unfinished = (directory / os.fsdecode(PRIVATE_NAME)).is_dir()
        # A file that cannot be read is told when it is to be sent.
        kept = {
            found.path: (found.status, _stamp_of(found))
            for found in walk(directory, self._base, fail=lambda *_: None)
            if found.is_file
        }
        if self._began_ns is not None or (kept and not is_unfinished):
            missing = self._note_stored(kept)
            lacks = f", where other files are: {missing:,}" if missing else ""
            if self._began_ns is None:
                self._tell(name, said=f"{directory} has files: they are kept, and nothing comes from {prefix}{lacks}")
            return
        done = self._download(part_size_bytes)
        self._sent = {found.path: _version(found.status) for found in walk(directory, self._base) if found.is_file}
        what = f"{format_size(done.total_bytes)} in {done.files:,} files from" if done.files else "nothing is in"
        self._tell(name, said=f"{what} {prefix}")

    def _download(self, part_size_bytes: int) -> DownloadReport:
        """Download what S3 has; list it again if another host replaces or deletes objects meanwhile, a few times."""

        def report(progress: DownloadReport) -> None:
            self._tell(self.synced.name, progress=(progress.done_bytes, progress.total_bytes))

        settings = DownloadSettings(
            directory=self._directory,
            base=self._base,
            memory_target_bytes=_RESTORE_MEMORY_BYTES,
            part_size_bytes=part_size_bytes,
        )
        tries = 0
        while True:
            snapshot_fd = self._list()
            try:
                return download_channel(snapshot_fd, self._session.config, settings, report)
            except SourceError as error:
                tries += 1
                if tries == _RESTORE_TRIES:
                    raise
                _log.info("%s: %s; all objects are listed again", self.synced.name, error)
            finally:
                os.close(snapshot_fd)

    def _list(self) -> int:
        """Return a descriptor of the index of what S3 has, which the caller closes."""
        return run_lister(self.synced.place, IndexOrigin(allow_empty=True), self._session)[0]

    def _note_stored(self, kept: Mapping[str, tuple[os.stat_result, bytes]]) -> int:
        """Note what S3 has stored since the files were written that are here; return how many others it has.

        A file that is older than its object must not replace it: another host may have gone on from there. One that was
        written, renamed or copied since the job began is newer, whatever the two clocks say. Size and time do not tell
        that a file was brought back, for a service has whole seconds: its stamp does, which a rename takes along.
        """
        try:
            snapshot_fd = self._list()
        except FastfuseError as error:
            self._warn(f"what {self.synced.place} has is not known, and files here may replace newer ones: {error}")
            return 0
        table = open_snapshot(snapshot_fd).table
        os.close(snapshot_fd)
        missing = 0
        for ref in table.refs():
            path = ref.key.removeprefix(self.synced.place.path)
            if path not in kept:
                missing += 1
                continue
            status, stamp = kept[path]
            if self._began_ns is not None and status.st_ctime_ns >= self._began_ns:
                continue
            is_same = (status.st_size, status.st_mtime_ns) == (ref.size_bytes, ref.modified_ns)
            if is_same and stamp == version_of(ref):
                self._sent[path] = _version(status)  # it was brought back
            elif ref.modified_ns > status.st_mtime_ns:
                self._older[path] = _version(status)
        return missing

    async def look(self, writer: ObjectWriter) -> None:
        """Send what is new or has changed; what cannot be sent is told, and tried again."""
        before = self._sends
        try:
            await trio.to_thread.run_sync(self._send_each, writer, False)
        except Exception as error:  # noqa: BLE001 - told
            self._tell_failure(f"{self.synced.name}: {as_failure(error)}; it is tried again")
            return
        # A file that still changes is not tried: a look at it alone does not tell that the failure is over.
        if self._failures and (self._sends > before or self._seen.items() <= self._sent.items()):
            self._failures.clear()
            _log.info("%s: files are sent again", self.synced.name)

    def _tell_failure(self, text: str) -> None:
        now_s = time.monotonic()
        if text not in self._failures or now_s >= self._failures[text] + _TOLD_EVERY_S:
            self._failures[text] = now_s
            _log.warning("%s", text)

    async def finish(self, writer: ObjectWriter) -> None:
        """Send everything that is there, now that the command has ended, and tell how that went."""
        try:
            await trio.to_thread.run_sync(self._send_each, writer, True)
        except Exception as error:  # noqa: BLE001 - told
            self._tell(self.synced.name, error=as_failure(error))
            return
        files, size_bytes = len(self._sent_paths), self._sent_bytes
        said = {"said": f"{format_size(size_bytes)} were sent, files: {files:,}"} if files else {}
        sent = {"S3Uri": str(self.synced.place), "Files": files, "Bytes": size_bytes}
        self._tell(self.synced.name, sent=sent, **said)

    def _send_each(self, writer: ObjectWriter, is_last: bool) -> None:
        """Send all that can be sent; after that, raise what was not, and why."""
        seen, unsent = {}, Unsent()
        now_s = trio.from_thread.run_sync(trio.current_time)  # a time in which the job is stopped does not count
        for found in walk(self._directory, self._base, self._warn, unsent.add):
            if found.is_link:
                self._warn(f"{str(self._directory / found.path)!r} is a symbolic link, and S3 has none: it is left out")
            if not found.is_file:
                continue
            version = seen[found.path] = _version(found.status)
            is_complete = self.synced.are_checkpoints and self._seen.get(found.path) == version
            is_due = not self.synced.are_checkpoints and now_s >= self._due_s.get(found.path, 0.0)
            if (is_last or is_complete or is_due) and self._sent.get(found.path) != version:
                unsent.send(found.path, partial(self._send, writer, found, is_last=is_last))
        self._seen = seen
        if self.synced.are_checkpoints:
            self._warn_of_unfinished(set(unsent.paths), now_s)
        if unsent.paths:
            sent = sum(self._sent.get(path) == version for path, version in seen.items())
            raise unsent.error(f"{sent:,} of {len(seen):,} files are there")

    def _warn_of_unfinished(self, unsent: Set[str], now_s: float) -> None:
        """Warn of each file that is not in S3 as it is because it is never complete; other reasons are told as such."""
        waiting = [path for path, version in self._seen.items() if self._sent.get(path) != version]
        self._unfinished = {path: self._unfinished.get(path, now_s) for path in waiting if path not in unsent}
        for path, since_s in self._unfinished.items():
            if now_s - since_s >= _UNFINISHED_S:
                self._warn(
                    f"{str(self._directory / path)!r} is not in S3 as it is now: for {_UNFINISHED_S / 60:.0f} min it "
                    "was open for writing, or changed. It is sent once it is closed and stays as it is, or else at the "
                    "end. Write a checkpoint to another name and rename it; TensorBoardOutputConfig is for logs"
                )

    async def _send(self, writer: ObjectWriter, found: Found, *, is_last: bool) -> None:
        path = self._directory / found.path
        key = key_of(self.synced.place, found.path, path)
        try:
            file = open_found(found)
        except FileNotFoundError:  # since we looked
            return
        except OSError as error:
            raise unreadable(path, error) from error
        with file:
            # The version comes first: whoever begins to write after either look makes it another one.
            version = _version(os.fstat(file.fileno()))
            if not is_last and self.synced.are_checkpoints and _is_being_written(file.fileno()):
                return
            made = writer.beside(key)
            made.metadata = {_WRITTEN: str(version[2])}
            if await self._is_older(made, version, found.path):
                self._sent[found.path] = version
                return
            content = _content(file, version, path, must_stay=self.synced.are_checkpoints)
            await made.stream(content, is_checked=self._is_alone)
        self._sent_paths.add(found.path)
        self._sent_bytes += version[1]
        self._sends += 1
        self._sent[found.path] = version
        self._due_s[found.path] = trio.current_time() + version[1] / _LOG_BYTES_PER_S

    async def _is_older(self, writer: ObjectWriter, version: _Version, path: str) -> bool:
        """Return whether S3 has stored an object since the file was written; the log tells if it is another one."""
        if self._older.get(path) != version:
            return False
        if not await _is_of(writer, version):
            advice = "" if self._began_ns is not None else ". Run without --keep to begin with what is in S3"
            self._warn(
                f"{str(self._directory / path)!r} does not replace {writer.key!r} in S3, which was stored after the "
                f"file was written: another host may have gone on from there{advice}"
            )
        return True

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("%s", text)


def _version(status: os.stat_result) -> _Version:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _stamp_of(found: Found) -> bytes:
    """Return which version of an object was brought back into the file; empty if none, or if that is not known."""
    with suppress(OSError), open_found(found) as file:
        return read_stamp(file.fileno())[0]
    return b""


def _is_being_written(fd: int) -> bool:
    """Return whether somebody has the file open for writing, or mapped so; fcntl(2), "Leases"."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        return True
    except OSError:  # another user's file, or a file system without leases
        return False
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


async def _is_of(writer: ObjectWriter, version: _Version) -> bool:
    """Return whether the object says that it was made of this version of the file."""
    with suppress(AccessError, RefusedError):
        state = await writer.state()
        return state is not None and state.metadata.get(_WRITTEN) == str(version[2])
    return False


async def _content(file: BinaryIO, version: _Version, path: Path, *, must_stay: bool) -> AsyncIterator[bytes]:
    """Yield what the file had when `version` was seen."""
    async for piece in content_of(file, version[1], path):
        yield piece
    if must_stay and _version(os.fstat(file.fileno())) != version:
        raise written_to(path)

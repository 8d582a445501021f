"""Writes what a job has made to S3, in a process of its own, each object whole or not at all.

One thread reads the disk and hands pieces to the S3 client, at most as fast as S3 takes them. An archive ends only
after its last file was read: whatever fails before aborts the upload.

An archive is a gzipped tar as a stream, which takes little memory and no disk: a model may be larger than what is free.
It is one gzip member (RFC 1952), for not every reader takes several. Its deflate blocks are made side by side, one
thread for each usable CPU, and joined at byte boundaries as pigz does: one thread compresses 30 MB/s of weights.
"""

import logging
import math
import os
import struct
import tarfile
import time
import zlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

from fastfuse.cgroup import usable_cpus
from fastfuse.errors import (
    FastfuseError,
    ForbiddenObjectError,
    MissingObjectError,
    OutputError,
    RefusedError,
    first_of,
)
from fastfuse.filesystem.processes.children import STOPPING
from fastfuse.index.sources.uri import S3Uri
from fastfuse.objects import MAX_KEY_BYTES
from fastfuse.s3.aws import S3Session
from fastfuse.s3.client import S3Client
from fastfuse.s3.retries import Retries
from fastfuse.s3.upload import ObjectWriter
from fastfuse.sagemaker.outputs.found import Found, content_of, open_found, piece_bytes_of, unreadable, walk
from fastfuse.sizes import format_size

_log = logging.getLogger(__name__)

_BLOCK_BYTES = 1 << 20
# These compress 1 GB/s of weights; each holds blocks of its own.
_MOST_THREADS = 32
# Weights hardly get smaller at any level; see docs/MEASUREMENTS.md, "Model archive".
_LEVEL = 1
# ID, deflate, no flags, no time (the same files make the same archive), fastest method, Unix.
_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\x03"
# An empty deflate block that is the last one.
_LAST_BLOCK = b"\x03\x00"


def write_archive(
    directory: Path,
    found: Iterable[Found],
    piece_bytes: int,
    write: Callable[[bytes], object],
    report: Callable[[int], object],
) -> None:
    """Call `write` with the pieces of a gzipped tar of all that was `found` in `directory`, links as links.

    Each piece but the last has `piece_bytes` or a block more. `report` is called with the bytes of the tar that are
    being compressed or done.

    Raises:
        OutputError: a file cannot be read, or got shorter meanwhile; the archive is not complete then.
    """
    packed = _Gzip(piece_bytes, write, report)
    try:
        with tarfile.TarFile(fileobj=packed, mode="w", copybufsize=_BLOCK_BYTES) as archive:  # type: ignore[arg-type]
            for one in found:
                try:
                    _add(archive, one)
                except OSError as error:
                    raise unreadable(directory / one.path, error) from error
        packed.finish()
    finally:
        packed.close()


def _add(archive: tarfile.TarFile, found: Found) -> None:
    if not found.is_file:
        archive.addfile(archive.gettarinfo(str(found.place), found.path))
        return
    with open_found(found) as file:
        archive.addfile(archive.gettarinfo(arcname=found.path, fileobj=file), file)


class _Gzip:
    """A file for `tarfile` to write to, which passes the compressed bytes on."""

    def __init__(self, piece_bytes: int, write: Callable[[bytes], object], report: Callable[[int], object]) -> None:
        self._piece_bytes = piece_bytes
        self._write = write
        self._report = report
        threads = min(math.ceil(usable_cpus()), _MOST_THREADS)
        self._pool = ThreadPoolExecutor(threads)
        # This many keep every thread busy while the oldest block is passed on.
        self._most_ahead = 2 * threads
        self._ahead: deque[Future[bytes]] = deque()
        self._begun = bytearray()
        self._crc = self._size_bytes = 0
        # The begin of the next piece.
        self._packed = bytearray(_HEADER)

    def tell(self) -> int:
        return self._size_bytes

    def write(self, data: bytes) -> int:
        self._size_bytes += len(data)
        self._begun += data
        if len(self._begun) >= _BLOCK_BYTES:
            self._start()
        return len(data)

    def finish(self) -> None:
        self._start()
        while self._ahead:
            self._pass_on()
        self._write(bytes(self._packed) + _LAST_BLOCK + struct.pack("<II", self._crc, self._size_bytes & 0xFFFFFFFF))

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _start(self) -> None:
        block, self._begun = bytes(self._begun), bytearray()
        self._crc = zlib.crc32(block, self._crc)
        self._report(self._size_bytes)
        self._ahead.append(self._pool.submit(_deflate, block))
        if len(self._ahead) > self._most_ahead:
            self._pass_on()

    def _pass_on(self) -> None:
        self._packed += self._ahead.popleft().result()
        if len(self._packed) >= self._piece_bytes:
            piece, self._packed = bytes(self._packed), bytearray()
            self._write(piece)


def _deflate(block: bytes) -> bytes:
    """Return deflate blocks that end at a byte, and none of which is the last."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(block) + packer.flush(zlib.Z_SYNC_FLUSH)


# The files that an error names of those that were not sent.
_SHOWN = 3
# The service may take the next file.
_OF_ONE = (OutputError, ForbiddenObjectError, MissingObjectError, RefusedError)
_ARCHIVE = ".tar.gz"
# The header of a file in the archive takes less.
_HEAD_BYTES = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """Something that the job has made."""

    # The name in messages: "model".
    name: str
    # A directory; or a file, if `data` has its content.
    place: Path
    # The object; ending in "/", the prefix of the files of the directory.
    uri: S3Uri
    data: bytes | None = None
    # The status of the job. An archive of a run that ended better is not replaced: this one gets a name with the time.
    status: str = "Completed"
    # False where other hosts write below the same prefix: they may replace an object at once.
    is_alone: bool = True

    @property
    def is_prefix(self) -> bool:
        """True if each file becomes an object of its own, below `uri`."""
        return self.uri.path.endswith("/")


# The metadata of an archive that has its job's status, and whose archives a run with each may replace. SageMaker, too,
# takes what a stopped job has saved for a model.
_STATUS = "fastfuse-job-status"
_REPLACES = {"Failed": (), "Stopped": ("Failed", "Stopped")}

# A function of the name of an output, and of "progress", "said", "sent" (the entry of the record) or "error".
Tell = Callable[..., None]


async def send_outputs(
    outgoing: Sequence[Outgoing],
    base: Path,
    session: S3Session,
    kms_key_id: str,
    tell: Tell,
    *,
    silent_s: float = 0.0,
) -> None:
    """Send one after the other, also after one has failed. A signal ends it; nothing half sent stays in the bucket.

    What is sent lies below `base`. Another process has waited in vain for an answer for `silent_s`.
    An outage is outlived: a job is over, and what it has made may be lost with its host.
    """
    client, retries = S3Client(session), Retries()
    retries.silent_s = silent_s
    with trio.open_signal_receiver(*STOPPING) as signals:
        async with trio.open_nursery() as nursery, AsyncExitStack() as exits:
            nursery.start_soon(_end_at_signal, signals, nursery.cancel_scope)
            exits.push_async_callback(client.aclose)
            for one in outgoing:
                try:
                    writer = ObjectWriter(
                        *(client, exits, one.uri.bucket, one.uri.path),
                        kms_key_id=kms_key_id,
                        retries=retries,
                        outlives_outages=True,
                    )
                    sent = await _Sending(one, base, writer, tell).run()
                    tell(one.name, sent=sent, **_said(one, sent))
                except Exception as error:  # noqa: BLE001 - told
                    tell(one.name, error=as_failure(error))
            tell("", silent_s=retries.silent_s)
            nursery.cancel_scope.cancel()


def _said(outgoing: Outgoing, sent: Mapping[str, Any]) -> dict[str, str]:
    if outgoing.data is not None:
        return {}
    if not sent["Files"]:
        return {"said": f"{outgoing.place} is empty, and nothing is uploaded"}
    return {"said": f"{sent['Files']:,} files, {format_size(sent['Bytes'])} at {sent['S3Uri']}"}


async def _end_at_signal(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    await anext(signals)
    scope.cancel()


class _Sending:
    """The way of one directory into S3."""

    def __init__(self, outgoing: Outgoing, base: Path, writer: ObjectWriter, tell: Tell) -> None:
        self._outgoing = outgoing
        self._base = base
        self._writer = writer
        self._tell = tell
        self._files = self._entries = self._total_bytes = 0

    async def run(self) -> dict[str, Any]:
        """Send it, and return its entry in the record; without any file or link, nothing is sent."""
        uri, data, writer = self._outgoing.uri, self._outgoing.data, self._writer
        if data is not None:
            return self._entry(uri, await writer.stream(_once(data)))
        await trio.to_thread.run_sync(self._survey)
        if not self._files:
            return self._entry(uri)
        if self._outgoing.is_prefix:
            await self._send_files(writer)
            return self._entry(uri)
        writer = await self._beside_better(writer)
        writer.metadata = {_STATUS: self._outgoing.status}
        etag = await self._send_archive(writer)
        return self._entry(S3Uri(uri.bucket, writer.key), etag)

    def _entry(self, uri: S3Uri, etag: str = "") -> dict[str, Any]:
        entry = {"S3Uri": str(uri), "Files": self._files, "Bytes": self._total_bytes}
        return entry | ({"ETag": etag} if etag else {})

    async def _beside_better(self, writer: ObjectWriter) -> ObjectWriter:
        """Return a writer of another archive if that of a run that ended better is there, or may be."""
        uri, status, name = self._outgoing.uri, self._outgoing.status, self._outgoing.name
        if status not in _REPLACES:
            return writer
        await writer.find_region()  # without it nothing can be sent
        with suppress(FastfuseError):
            if (found := await writer.state()) is None:
                return writer
            if (earlier := found.metadata.get(_STATUS, "")) in _REPLACES[status]:
                self._tell(name, said=f"{uri} is of a run with the status {earlier}, and is replaced")
                return writer
        begin = writer.key.removesuffix(_ARCHIVE)
        free = writer.beside(f"{begin}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}{_ARCHIVE}")
        _log.warning(
            "%s may be of a run that ended better, and stays: this run has the status %s, and its %s goes to %s",
            *(uri, status, name, S3Uri(uri.bucket, free.key)),
        )
        return free

    def _survey(self) -> None:
        """Count the files, and warn of what is left out; it is walked through again to be sent."""
        warn = partial(_log.warning, "%s")
        # Single files are sent as far as they can be (`_send_files`); an archive is whole, or not made.
        fail = {"fail": lambda *_: None} if self._outgoing.is_prefix else {}
        for found in walk(self._outgoing.place, self._base, warn, **fail):
            self._entries += 1
            if not found.is_directory:
                self._files += 1
                self._total_bytes += found.status.st_size if found.is_file else 0

    def _report(self, done_bytes: int) -> None:
        self._tell(self._outgoing.name, progress=(min(done_bytes, self._total_bytes), self._total_bytes))

    async def _send_archive(self, writer: ObjectWriter) -> str:
        place, base = self._outgoing.place, self._base
        piece_bytes = piece_bytes_of(self._total_bytes + self._total_bytes // 1000 + self._entries * _HEAD_BYTES)
        sending, receiving = trio.open_memory_channel[bytes](0)

        def write(piece: bytes) -> None:
            trio.from_thread.run(sending.send, piece)

        async def make() -> None:
            await trio.to_thread.run_sync(write_archive, place, walk(place, base), piece_bytes, write, self._report)
            # A failure leaves it open: the end of the channel is the end of a whole archive.
            await sending.aclose()

        async with receiving, trio.open_nursery() as nursery:
            nursery.start_soon(make)
            return await writer.stream(receiving)

    async def _send_files(self, writer: ObjectWriter) -> None:
        """Send all files that can be sent; after that, raise which were not, and why."""
        done_bytes, unsent = 0, Unsent()

        def send_each() -> None:
            nonlocal done_bytes
            for found in walk(self._outgoing.place, self._base, fail=unsent.add):
                if found.is_directory:
                    continue
                unsent.send(found.path, partial(self._send_file, writer, found))
                done_bytes += found.status.st_size if found.is_file else 0
                self._report(done_bytes)

        await trio.to_thread.run_sync(send_each)
        if unsent.paths:
            sent = max(0, self._files - len(unsent.paths))
            raise unsent.error(f"{sent:,} of {self._files:,} files were sent")

    async def _send_file(self, writer: ObjectWriter, found: Found) -> None:
        path = self._outgoing.place / found.path
        if found.is_link:
            raise OutputError(
                f"{str(path)!r} is a symbolic link, and S3 has none",
                hint="put the file in the place of the link, or set CompressionType to GZIP",
            )
        key = key_of(self._outgoing.uri, found.path, path)
        try:
            file = open_found(found)
        except OSError as error:
            raise unreadable(path, error) from error
        with file:
            content = content_of(file, os.fstat(file.fileno()).st_size, path)
            await writer.beside(key).stream(content, is_checked=self._outgoing.is_alone)


class Unsent:
    """The files that were not sent, and why."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self._first: FastfuseError | None = None
        # The error that the next file would meet, too.
        self._of_all: FastfuseError | None = None

    def send(self, path: str, send: Callable[[], Awaitable[None]]) -> None:
        """Call `send` for a file, from a thread of trio's; not if it would meet the error of one before."""
        if self._of_all is not None:
            self.add(path)
            return
        try:
            trio.from_thread.run(send)
        except Exception as error:  # noqa: BLE001 - raised in the end
            self.add(path, as_failure(error))

    def add(self, path: str, error: FastfuseError | None = None) -> None:
        """Note that a file, or a whole directory, was not sent; without an error, it was not tried."""
        self.paths.append(path)
        # A reason of the service's is told before one of a file.
        if self._first is None or (isinstance(self._first, OutputError) and not isinstance(error, OutputError | None)):
            self._first = error
        if error is not None and not isinstance(error, _OF_ONE):
            self._of_all = error

    def error(self, sent: str) -> OutputError:
        """Return the error that names the files; `sent` tells how many were sent."""
        reason = self._of_all or self._first
        assert reason is not None
        more = f" and {len(self.paths) - _SHOWN:,} more" if self.paths[_SHOWN:] else ""
        return OutputError(f"{sent}, not {', '.join(map(repr, self.paths[:_SHOWN]))}{more}: {reason}", hint=reason.hint)


def as_failure(error: Exception) -> FastfuseError:
    """Return the reason why something was not sent; the log tells one that is unforeseen."""
    first = first_of(error)
    if isinstance(first, FastfuseError):
        return first
    _log.error("something was not sent for an unforeseen reason", exc_info=first)
    return OutputError(f"unforeseen: {first!r}", hint="report it with the log")


def key_of(prefix: S3Uri, below: str, path: Path) -> str:
    """Return the key below `prefix` of the file `path`, which lies at `below`.

    Raises:
        OutputError: its name cannot be a key.
    """
    key = prefix.path + below
    try:
        size_bytes = len(key.encode())
    except UnicodeEncodeError as error:
        raise OutputError(f"the name {str(path)!r} is not UTF-8, as keys are", hint="rename the file") from error
    if size_bytes > MAX_KEY_BYTES:
        text = f"the key of {str(path)!r} would have {size_bytes:,} bytes, and S3 takes {MAX_KEY_BYTES:,}"
        raise OutputError(text, hint="give the file a shorter name")
    return key


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data

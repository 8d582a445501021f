"""Writes what a job has made to S3, in a process of its own, each object whole or not at all.

One thread reads the disk and hands pieces to the S3 client, at most as fast as S3 takes them. An archive ends only
after its last file was read: whatever fails before aborts the upload.
"""

import math
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import trio

from fastfuse.errors import FastfuseError, OutputError, first_of
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from fastfuse.s3.upload import ObjectWriter
from fastfuse.sagemaker.outputs.archive import Found, open_found, unreadable, walk, write_archive
from fastfuse.sagemaker.outputs.record import Artifact
from fastfuse.sizes import format_size

__all__ = ["Outgoing", "SendTask", "Tell", "key_of", "piece_bytes_of", "send_outputs"]

# The size of a piece; those in flight take 100 MiB of memory. S3 takes 10,000 pieces of an object.
_PIECE_BYTES = 16 << 20
_MOST_PIECES = 9_000
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


@dataclass(frozen=True, slots=True)
class SendTask:
    """The work of one process."""

    outgoing: tuple[Outgoing, ...]
    # The places lie below it.
    base: Path
    connection: ConnectionConfig
    kms_key_id: str


# A function of the name of an output, and of "progress", "said", "sent" (the fields of `Artifact`) or "error".
Tell = Callable[..., None]


def send_outputs(task: SendTask, tell: Tell) -> None:
    """Send one after the other, also after one has failed. SIGTERM ends it; nothing half sent stays in the bucket."""
    trio.run(_send_all, task, tell)


async def _send_all(task: SendTask, tell: Tell) -> None:
    client = S3Client(S3Session(task.connection))
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery, AsyncExitStack() as exits:
            nursery.start_soon(_end_at_signal, signals, nursery.cancel_scope)
            exits.push_async_callback(client.aclose)
            for outgoing in task.outgoing:
                try:
                    sent = await _Sending(task, outgoing, client, exits, tell).run()
                    tell(outgoing.name, sent=asdict(sent), **_said(outgoing, sent))
                except FastfuseError as error:
                    tell(outgoing.name, error=error)
            nursery.cancel_scope.cancel()


def _said(outgoing: Outgoing, sent: Artifact) -> dict[str, str]:
    if outgoing.data is not None:
        return {}
    if not sent.files:
        return {"said": f"{outgoing.place} is empty, and nothing is uploaded"}
    return {"said": f"{sent.files:,} files, {format_size(sent.total_bytes)} at {outgoing.uri}"}


async def _end_at_signal(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    await anext(signals)
    scope.cancel()


class _Sending:
    """The way of one directory into S3."""

    def __init__(self, task: SendTask, outgoing: Outgoing, client: S3Client, exits: AsyncExitStack, tell: Tell) -> None:
        self._task = task
        self._outgoing = outgoing
        self._client = client
        self._exits = exits
        self._tell = tell
        self._files = self._entries = self._total_bytes = 0

    async def run(self) -> Artifact:
        """Send it."""
        if self._outgoing.data is None:
            await trio.to_thread.run_sync(self._survey)
            if not self._files:
                return Artifact(uri=str(self._outgoing.uri), files=0, total_bytes=0)
        uri = self._outgoing.uri
        region = await self._client.region(uri.bucket)
        session, kms_key_id = self._client.session, self._task.kms_key_id
        writer = ObjectWriter(session, self._exits, uri.bucket, uri.path, region, kms_key_id=kms_key_id)
        try:
            if self._outgoing.data is not None:
                etag = await writer.stream(_once(self._outgoing.data))
            else:
                etag = await (self._send_files(writer) if uri.path.endswith("/") else self._send_archive(writer))
        except ExceptionGroup as group:
            error = first_of(group)
            raise error from error.__cause__
        return Artifact(uri=str(uri), files=self._files, total_bytes=self._total_bytes, etag=etag)

    def _survey(self) -> None:
        """Count the files."""
        for found in walk(self._outgoing.place, self._task.base):
            self._entries += 1
            if found.is_link and self._outgoing.uri.path.endswith("/"):
                raise OutputError(
                    f"{str(self._outgoing.place / found.path)!r} is a symbolic link, and S3 has none",
                    hint="put the file in the place of the link, or set CompressionType to GZIP",
                )
            if not found.is_directory:
                self._files += 1
                self._total_bytes += found.status.st_size if found.is_file else 0

    def _report(self, done_bytes: int) -> None:
        self._tell(self._outgoing.name, progress=(min(done_bytes, self._total_bytes), self._total_bytes))

    async def _send_archive(self, writer: ObjectWriter) -> str:
        place, base = self._outgoing.place, self._task.base
        most_bytes = self._total_bytes + self._total_bytes // 1000 + self._entries * _HEAD_BYTES
        sending, receiving = trio.open_memory_channel[bytes](0)

        def make() -> None:
            pieces = _Pieces(piece_bytes_of(most_bytes), lambda piece: trio.from_thread.run(sending.send, piece))
            write_archive(place, walk(place, base), pieces.write, self._report)
            pieces.finish()

        async def make_in_thread() -> None:
            await trio.to_thread.run_sync(make)
            # A failure leaves it open: the end of the channel is the end of a whole archive.
            await sending.aclose()

        async with receiving, trio.open_nursery() as nursery:
            nursery.start_soon(make_in_thread)
            return await writer.stream(receiving)

    async def _send_files(self, writer: ObjectWriter) -> str:
        done_bytes = 0

        def send_each() -> None:
            nonlocal done_bytes
            for found in walk(self._outgoing.place, self._task.base):
                if found.is_file:
                    trio.from_thread.run(self._send_file, writer, found)
                    done_bytes += found.status.st_size
                    self._report(done_bytes)

        await trio.to_thread.run_sync(send_each)
        return ""

    async def _send_file(self, writer: ObjectWriter, found: Found) -> None:
        path = self._outgoing.place / found.path
        key = key_of(self._outgoing.uri, found.path, path)
        try:
            with open_found(found) as file:
                await writer.beside(key).stream(_read(file, piece_bytes_of(found.status.st_size)))
        except OSError as error:
            raise unreadable(path, error) from error


def key_of(prefix: S3Uri, below: str, path: Path) -> str:
    """Return the key below `prefix` of the file `path`, which lies at `below`.

    Raises:
        OutputError: its name cannot be a key.
    """
    try:
        return (prefix.path + below).encode().decode()
    except UnicodeEncodeError as error:
        raise OutputError(f"the name {str(path)!r} is not UTF-8, as keys are", hint="rename the file") from error


class _Pieces:
    """Makes pieces of one size of whatever is written."""

    def __init__(self, piece_bytes: int, hand_over: Callable[[bytes], object]) -> None:
        self._piece_bytes = piece_bytes
        self._hand_over = hand_over
        self._begun = bytearray()

    def write(self, data: bytes) -> None:
        self._begun += data
        if len(self._begun) >= self._piece_bytes:
            self.finish()

    def finish(self) -> None:
        piece, self._begun = bytes(self._begun), bytearray()
        self._hand_over(piece)


def piece_bytes_of(total_bytes: int) -> int:
    """Return a size of which S3 takes as many pieces as there may be."""
    return max(_PIECE_BYTES, math.ceil(total_bytes / _MOST_PIECES))


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _read(file: BinaryIO, piece_bytes: int) -> AsyncIterator[bytes]:
    while piece := await trio.to_thread.run_sync(file.read, piece_bytes):
        yield piece

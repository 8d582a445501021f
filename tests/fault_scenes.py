"""The situations of tests/test_fault_matrix.py: a server with a few objects, and each way in which they are read."""

import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from bench.s3server import LoopbackServer
from fastfuse.filesystem.in_hand import ReadsInHand
from fastfuse.filesystem.operations import MountOperations
from fastfuse.filesystem.reads import Reads
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.inodes.table import ROOT, InodeTable
from fastfuse.index.inodes.tree import Refusals
from fastfuse.index.listing import page as listing_page
from fastfuse.index.listing.lister import list_source
from fastfuse.index.snapshot import Snapshot, save_snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.metrics import Counters
from fastfuse.objects import ObjectRef
from fastfuse.readahead import ReadaheadConfig, ReadEngine
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.buffers import PartBuffers
from fastfuse.s3.client import S3Client
from fastfuse.s3.retries import Retries
from fastfuse.sagemaker.description.channel import Channel, InputMode
from fastfuse.sagemaker.download.file_channel import DownloadSettings, download_channel
from fastfuse.sagemaker.pipe.content import sequence_of
from fastfuse.sagemaker.pipe.pipe_channel import PipeSettings, PipeStream

__all__ = ["OBJECTS", "SITUATIONS", "Scene", "Situation"]

MIB = 1 << 20
# Of `one` everything is one GET; of `two` each part is.
OBJECTS = {"one": os.urandom(MIB), "two": os.urandom(2 * MIB), "small": os.urandom(5000)}
CONFIG = ReadaheadConfig.within(64 * MIB, part_size_bytes=MIB, max_parts_in_flight=16)


class Scene:
    """A server, a client of it whose requests end by `deadline_s`, and where files and FIFOs are made."""

    def __init__(
        self,
        server: LoopbackServer,
        connection: ConnectionConfig,
        directory: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.server = server
        self.connection = connection
        self.directory = directory
        self.counters = Counters()
        self._retries = Retries(self.counters)
        monkeypatch.setattr(listing_page, "LIST_DEADLINE_S", connection.deadline_s)

    def ref(self, key: str) -> ObjectRef:
        stored = self.server.buckets["bucket"].view().lookup(key.encode())
        assert stored is not None
        return ObjectRef("bucket", key, stored.size_bytes, stored.etag, stored.modified_s * 10**9)

    def table(self, *keys: str) -> InodeTable:
        builder = TableBuilder("bucket", "")
        for ref in map(self.ref, sorted(keys)):
            builder.add([ref.key.encode()], [ref.size_bytes], [ref.modified_ns], [ref.etag], [ref.storage_class])
        return builder.build()[0]

    @asynccontextmanager
    async def client(self) -> AsyncIterator[S3Client]:
        buffers = PartBuffers(part_bytes=MIB, limit_bytes=64 * MIB)
        session = S3Session(self.connection)
        client = S3Client(session, buffers=buffers, counters=self.counters, retries=self._retries)
        try:
            yield client
        finally:
            with trio.CancelScope(shield=True):
                await client.aclose()

    async def read(self, key: str, start: int, end: int) -> bytes:
        """Read bytes of a file as the kernel's requests do, one after the other."""
        table, operations = self.table(*OBJECTS), MountOperations(self.counters, uid=0, gid=0)
        inode = table.lookup(ROOT, key.encode())
        assert inode is not None
        step = min(end - start, MIB // 8)
        async with self.client() as client, trio.open_nursery() as nursery:
            engine = ReadEngine(client, CONFIG, nursery, lambda: table)
            operations.serve(table, engine)
            reads = Reads(operations, engine, self.counters, ReadsInHand(), nursery)
            pieces = [bytes(await reads.read(inode, at, step)) for at in range(start, end, step)]
            nursery.cancel_scope.cancel()
        return b"".join(pieces)

    async def list(self) -> int:
        async with self.client() as client:
            listed = await list_source(client, S3Uri.parse("s3://bucket/"), retries=self._retries)
        return listed.table.metadata.file_count

    async def download(self) -> bytes:
        """Run a channel in mode File, as its process does."""
        fd = os.memfd_create("test")
        table = self.table("one")
        save_snapshot(Snapshot(source="s3://bucket/", listed_at_ns=1, table=table, refusals=Refusals()), fd)
        settings = DownloadSettings(
            directory=self.directory, base=self.directory.parent, part_size_bytes=MIB, memory_target_bytes=64 * MIB
        )
        try:
            await trio.to_thread.run_sync(
                lambda: download_channel(fd, self.connection, settings, lambda _: None, self.counters)
            )
        finally:
            os.close(fd)
        return (self.directory / "one").read_bytes()

    async def stream(self) -> bytes:
        """Run the first epoch of a channel in mode Pipe, as its process does; raise the failure that it keeps."""
        channel = Channel(name="train", input_mode=InputMode.PIPE, source=S3Uri.parse("s3://bucket/"))
        settings = PipeSettings(
            channel=channel, connection=self.connection, directory=self.directory, base=self.directory.parent,
            part_size_bytes=MIB, memory_target_bytes=64 * MIB, counters=self.counters,
        )  # fmt: skip
        has_ended = trio.Event()

        def report(stream: PipeStream) -> None:
            if stream.failure is not None or stream.written_bytes == len(OBJECTS["one"]):
                has_ended.set()

        stream = PipeStream(sequence_of(self.table("one"), channel), settings, report)
        read: list[bytes] = []
        reader = threading.Thread(target=lambda: read.append((self.directory / "train_0").read_bytes()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.run, reader.start)
            await has_ended.wait()
            nursery.cancel_scope.cancel()
        await trio.to_thread.run_sync(reader.join)
        await stream.aclose()
        if stream.failure is not None:
            raise stream.failure
        return read[0]


@dataclass(frozen=True, slots=True)
class Situation:
    """One column of the matrix: `run` returns whether everything that was read is right."""

    name: str
    run: Callable[[Scene], Awaitable[bool]]
    # The object that is read; empty for a listing.
    key: str = ""
    # The place of the read that meets the failure; None where parts are fetched at the same time.
    offset: int | None = 0
    # So many requests are answered before one meets the failure.
    skip: int = 0
    # Whether the kernel asks.
    is_mounted: bool = False

    @property
    def is_read(self) -> bool:
        return bool(self.key)

    @property
    def operation(self) -> str:
        return "GetObject" if self.is_read else "ListObjectsV2"


async def _listing(scene: Scene) -> bool:
    return await scene.list() == len(OBJECTS)


async def _first_read(scene: Scene) -> bool:
    return await scene.read("one", 0, 4096) == OBJECTS["one"][:4096]


async def _sequential(scene: Scene) -> bool:
    return await scene.read("two", 0, 2 * MIB) == OBJECTS["two"]


async def _random(scene: Scene) -> bool:
    start = MIB + MIB // 2
    return await scene.read("two", start, start + 4096) == OBJECTS["two"][start : start + 4096]


async def _small(scene: Scene) -> bool:
    return await scene.read("small", 0, len(OBJECTS["small"])) == OBJECTS["small"]


async def _download(scene: Scene) -> bool:
    return await scene.download() == OBJECTS["one"]


async def _pipe(scene: Scene) -> bool:
    return await scene.stream() == OBJECTS["one"]


SITUATIONS = (
    Situation("listing", _listing),
    Situation("first_read", _first_read, "one", is_mounted=True),
    Situation("sequential_stream", _sequential, "two", offset=None, skip=1, is_mounted=True),
    Situation("random_read", _random, "two", offset=MIB + MIB // 2, is_mounted=True),
    Situation("small_file", _small, "small", is_mounted=True),
    Situation("file_download", _download, "one"),
    Situation("pipe", _pipe, "one", offset=None),
)

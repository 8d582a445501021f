"""The process of one channel in Pipe mode: epoch after epoch, until it is told to stop."""

import gc
import logging
import os
import signal
from collections.abc import Callable

import trio

from fastfuse import awake
from fastfuse.cache.directory import open_or_none
from fastfuse.cache.reader import cached
from fastfuse.cache.settings import data_bytes
from fastfuse.errors import FastfuseError, SourceError, first_of
from fastfuse.filesystem.processes.children import STOPPING
from fastfuse.filesystem.processes.privileges import worker_uid
from fastfuse.index.snapshot import open_snapshot
from fastfuse.metrics import Counters
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.readahead import ReadaheadConfig, ReadEngine
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import RangeReader
from fastfuse.s3.buffers import PartBuffers
from fastfuse.s3.client import S3Client
from fastfuse.s3.retries import Retries
from fastfuse.s3.routes import read_files
from fastfuse.sagemaker.description.channel import LocalDirectory
from fastfuse.sagemaker.files import open_directory, path_of
from fastfuse.sagemaker.local_files import FileReader
from fastfuse.sagemaker.pipe.content import Lines, Objects, sequence_of
from fastfuse.sagemaker.pipe.epoch import EpochWriter, Lookahead
from fastfuse.sagemaker.pipe.fifo import Fifo, remove_stale
from fastfuse.sagemaker.run_settings import ChannelTask

_log = logging.getLogger(__name__)

_REPORT_EVERY_S = 1.0


def stream_channel(
    snapshot_fd: int,
    task: ChannelTask,
    counters: Counters,
    *,
    ready: Callable[[], None],
    report: Callable[["PipeStream"], None],
) -> None:
    """Stream the objects of the snapshot until it is told to stop, in a process that was just forked.

    `counters` count each GET. `ready` is called when the first FIFO is there, `report` about every second and after
    each epoch.

    An epoch that fails has no end, because a FIFO cannot carry an error and its end would be a short epoch. It waits
    until the caller, told by `report`, has stopped the reader and then this process.

    Raises:
        FastfuseError: the channel cannot be streamed; or, once it is told to stop, why an epoch has failed.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    table = open_snapshot(snapshot_fd).table
    os.close(snapshot_fd)
    stream = PipeStream(sequence_of(table, task.channel, task.epoch_shard), task, counters, report)
    stream.load()
    gc.freeze()
    awake.run(_run_until_told, stream, ready)
    if stream.failure is not None:
        raise stream.failure


async def _run_until_told(stream: "PipeStream", ready: Callable[[], None]) -> None:
    with trio.open_signal_receiver(*STOPPING) as signals:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.run, ready)
                await anext(signals)
                nursery.cancel_scope.cancel()
        except ExceptionGroup as group:
            raise first_of(group) from None


class PipeStream:
    """The state of the stream, which reads for the engine and counts what it fetches."""

    def __init__(
        self,
        sequence: Objects | Lines,
        task: ChannelTask,
        counters: Counters,
        report: Callable[["PipeStream"], None],
    ) -> None:
        # Why the open epoch will have no end: its reader waits until somebody stops it. None while all is well.
        self.failure: FastfuseError | None = None
        # The epoch that is read, or waits for its reader.
        self.epoch = 0
        self.retries = Retries(counters)
        self._sequence = sequence
        self._task = task
        self._counters = counters
        settings = task.settings
        is_local = isinstance(task.channel.source, LocalDirectory)
        # The local tier keeps objects of S3.
        self._cache = None if is_local else settings.cache
        self._config = ReadaheadConfig.within(
            data_bytes(task.memory_target_bytes, self._cache),
            part_size_bytes=settings.part_size_bytes,
            # The engine leaves a quarter to readers of other files, of which there are none.
            max_parts_in_flight=-(-settings.connection.max_connections * 4 // 3) + 1,
        )
        self._buffers = buffers = PartBuffers(
            part_bytes=settings.part_size_bytes, limit_bytes=self._config.memory_limit_bytes
        )
        self._session = S3Session(settings.connection)
        self._reader: RangeReader
        if is_local:
            self._reader = FileReader(buffers, counters)
        else:
            self._reader = S3Client(self._session, buffers=buffers, counters=counters, retries=self.retries)
        self._report = report
        self._lookahead: Lookahead | None = None
        # The open FIFOs, earliest first.
        self._fifos: list[Fifo] = []
        # They are made in it, wherever its path may lead later.
        self._directory_fd = -1
        # The seconds that readers waited in epochs that have ended.
        self._waited_s = 0.0

    def load(self) -> None:
        """Read and load now what requests and renewals need: the command may replace or remove any package.

        Raises:
            ConfigurationError: a file of the configuration, an authority or a key cannot be read.
        """
        if isinstance(self._reader, S3Client):
            read_files(self._session)
            awake.run(self._session.load_renewal)

    @property
    def waited_s(self) -> float:
        """The seconds in which a reader was there and nothing for it."""
        return self._waited_s + (self._lookahead.waited_s if self._lookahead else 0.0)

    @property
    def is_waiting(self) -> bool:
        return self._lookahead is not None and self._lookahead.is_waiting

    async def run(self, ready: Callable[[], None]) -> None:
        """Stream epoch after epoch until cancelled; an epoch that fails is the last and does not end."""
        paths, cache = self._task.settings.paths, open_or_none(self._cache, worker_uid())
        self._reader = cached(
            self._reader, cache, self._buffers, self._counters, self._session, self._task.memory_target_bytes
        )
        try:
            async with trio.open_nursery() as nursery:
                engine = ReadEngine(self, self._config, nursery, lambda: self._sequence.table)
                self._directory_fd = open_directory(paths.data, paths.base)
                remove_stale(path_of(self._directory_fd), self._task.channel.name)
                self._make_fifo(self.epoch)
                ready()
                nursery.start_soon(self._report_often)
                await self._stream(engine)
        finally:
            for fifo in self._fifos:
                fifo.close()
            if self._directory_fd >= 0:
                os.close(self._directory_fd)
            if self._cache is not None:
                with trio.CancelScope(shield=True):
                    await self.aclose()  # what waits for the disk

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        self._counters.count("fastfuse_fetched_parts", value="prefetched")
        try:
            return await self._reader.get(ref, start, end)
        finally:
            # Heard when this task, which goes on to put the bytes where they belong, waits again.
            if self._lookahead is not None:
                self._lookahead.wake()

    async def aclose(self) -> None:
        await self._reader.aclose()

    async def _report_often(self) -> None:
        while True:
            await trio.sleep(_REPORT_EVERY_S)
            self._report(self)

    async def _stream(self, engine: ReadEngine) -> None:
        try:
            while True:
                await self._stream_epoch(engine)
                self._report(self)
                self.epoch += 1
        except Exception as error:  # noqa: BLE001 - of whatever kind: the reader must not take it for an end
            cause = first_of(error)
            self.failure = cause if isinstance(cause, FastfuseError) else _unforeseen(cause)
            _log.error(
                "epoch %d of channel %s has failed, and its reader waits: %s",
                *(self.epoch, self._task.channel.name, self.failure),
                exc_info=None if self.failure is cause else cause,
            )
            self._report(self)
            await trio.sleep_forever()

    async def _stream_epoch(self, engine: ReadEngine) -> None:
        fifo = self._fifos[0]
        self._lookahead = lookahead = Lookahead(engine, self._config)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._look_ahead, lookahead)
                await fifo.opened()
                # Before this epoch ends, for readers that look for it then, or open it even before.
                self._make_fifo(self.epoch + 1)
                lookahead.begin()
                await self._write_epoch(fifo, lookahead)
                if fifo.note_openings():
                    _log.warning(
                        "%s was opened more than once: each reader got only a part of the epoch", repr(str(fifo.path))
                    )
                nursery.cancel_scope.cancel()
        finally:
            lookahead.close()
        self._waited_s += lookahead.waited_s
        self._lookahead = None
        fifo.close()
        self._fifos.remove(fifo)
        self._task.guard.let_go(self._task.channel.name)

    async def _look_ahead(self, lookahead: Lookahead) -> None:
        await trio.lowlevel.wait_readable(self._task.begin_fd)
        await lookahead.run(self._sequence.files(self.epoch))

    async def _write_epoch(self, fifo: Fifo, lookahead: Lookahead) -> None:
        channel = self._task.channel

        async def write(data: Buffer) -> None:
            await fifo.write(data)
            # Readers have taken them, or they lie in the FIFO.
            self._counters.count("fastfuse_read_served_bytes", len(data))

        writer = EpochWriter(lookahead, write, is_gzip=channel.is_gzip, wraps_records=channel.wraps_records)
        try:
            await writer.run(self._sequence.items(self.epoch))
        except BrokenPipeError:
            fifo.hide()
            if fifo.has_reader():
                raise SourceError(
                    f"{str(fifo.path)!r} was closed before its end and then opened again, where it would go on in the "
                    "middle",
                    hint="who closes an epoch early reads the next one",
                ) from None
            _log.info("epoch %d of channel %s: its reader has closed it early", self.epoch, channel.name)

    def _make_fifo(self, epoch: int) -> None:
        path = self._task.settings.paths.data / f"{self._task.channel.name}_{epoch}"
        fifo = Fifo(path, directory=path_of(self._directory_fd))
        self._fifos.append(fifo)
        self._task.guard.hold(self._task.channel.name, fifo.fileno())


def _unforeseen(error: Exception) -> FastfuseError:
    return FastfuseError(f"{type(error).__name__}: {error}", hint="the log has more of it; please report it")

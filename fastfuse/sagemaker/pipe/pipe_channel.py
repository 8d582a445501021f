"""The process of one channel in Pipe mode: epoch after epoch, until it is told to stop."""

import gc
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trio

from fastfuse.errors import FastfuseError, SourceError, first_of
from fastfuse.index.snapshot import open_snapshot
from fastfuse.index.sources.shard import Shard
from fastfuse.malloc import tune_malloc
from fastfuse.metrics import Counters
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.readahead import ReadaheadConfig, ReadEngine
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig, RangeReader
from fastfuse.s3.buffers import PartBuffers
from fastfuse.s3.client import S3Client
from fastfuse.sagemaker.description.channel import Channel, LocalDirectory
from fastfuse.sagemaker.local_files import FileReader
from fastfuse.sagemaker.pipe.epoch import EpochWriter, Lookahead
from fastfuse.sagemaker.pipe.fifo import Fifo, Guard, remove_stale
from fastfuse.sagemaker.pipe.sequence import Lines, Objects, sequence_of
from fastfuse.sagemaker.script.files import open_directory, path_of

__all__ = ["PipeProgress", "PipeSettings", "stream_channel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeSettings:
    """One channel in Pipe mode, and what its stream may use."""

    channel: Channel
    # This host's part, taken anew of the whole channel in each epoch; None: the snapshot holds what is streamed.
    shard: Shard | None = None
    # The directory of the FIFOs, `channel.name`_0, `channel.name`_1 ...
    directory: Path
    # No symbolic link below it is followed; None: the directory before `directory`.
    base: Path | None = None
    memory_target_bytes: int = 1 << 30
    part_size_bytes: int = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeProgress:
    """Sums since the channel began, over all epochs."""

    # The epoch that is read, or waits for its reader.
    epoch: int
    # Streamed to the end; an object counts in every epoch.
    objects: int
    # Bytes that readers have taken, or that lie in the FIFO.
    written_bytes: int
    fetched_bytes: int
    requests: int
    # Seconds in which a reader was there and nothing for it, and whether that is so now.
    waited_s: float
    is_waiting: bool
    # Why this epoch will have no end: its reader waits until somebody stops it. None while all is well.
    failure: FastfuseError | None = None


_log = logging.getLogger(__name__)

_REPORT_EVERY_S = 1.0


def stream_channel(
    snapshot_fd: int,
    connection: ConnectionConfig,
    settings: PipeSettings,
    *,
    ready: Callable[[], None],
    report: Callable[[PipeProgress], None],
    guard: Guard | None = None,
    begin_fd: int | None = None,
    counters: Counters | None = None,
) -> None:
    """Stream the objects of the snapshot until SIGTERM or SIGINT, in a process that was just forked.

    `ready` is called when the first FIFO is there, `report` about every second and after each epoch. Prefetching waits
    until `begin_fd` is readable, if it is given. `counters` count each GET.

    An epoch that fails has no end, because a FIFO cannot carry an error and its end would be a short epoch. It waits
    until the caller, told by `report`, has stopped the reader and then this process.

    Raises:
        FastfuseError: the channel cannot be streamed; or, once it is told to stop, why an epoch has failed.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    tune_malloc()
    table = open_snapshot(snapshot_fd).table
    os.close(snapshot_fd)
    sequence = sequence_of(table, settings.channel, settings.shard)
    channel = _Channel(sequence, settings, connection, counters, report, guard, begin_fd)
    gc.freeze()
    trio.run(_run_until_told, channel, ready)
    if channel.failure is not None:
        raise channel.failure


async def _run_until_told(channel: "_Channel", ready: Callable[[], None]) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(channel.run, ready)
                await anext(signals)
                nursery.cancel_scope.cancel()
        except ExceptionGroup as group:
            raise first_of(group) from None


def _reader_of(
    channel: Channel, connection: ConnectionConfig, buffers: PartBuffers, counters: Counters | None
) -> RangeReader:
    if isinstance(channel.source, LocalDirectory):
        return FileReader(buffers)
    return S3Client(S3Session(connection), buffers=buffers, counters=counters)


class _CountingReader:
    """A reader that counts what is fetched and reports the end of each GET."""

    def __init__(self, reader: RangeReader, ended: Callable[[], None]) -> None:
        self._reader = reader
        self._ended = ended
        self.requests = self.fetched_bytes = 0

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        """See `RangeReader.get`."""
        self.requests += 1
        try:
            data = await self._reader.get(ref, start, end)
        finally:
            # Heard when this task, which goes on to put the bytes where they belong, waits again.
            self._ended()
        self.fetched_bytes += end - start
        return data

    async def aclose(self) -> None:
        await self._reader.aclose()


class _Channel:
    """The state of the stream; `failure` is why the open epoch will have no end."""

    def __init__(
        self,
        sequence: Objects | Lines,
        settings: PipeSettings,
        connection: ConnectionConfig,
        counters: Counters | None,
        report: Callable[[PipeProgress], None],
        guard: Guard | None,
        begin_fd: int | None,
    ) -> None:
        self.failure: FastfuseError | None = None
        self._sequence = sequence
        self._settings = settings
        self._config = ReadaheadConfig.within(
            settings.memory_target_bytes,
            part_size_bytes=settings.part_size_bytes,
            # The engine leaves a quarter to readers of other files, of which there are none.
            max_parts_in_flight=-(-connection.max_connections * 4 // 3) + 1,
        )
        # Pages are lent to readers, who may keep them.
        self._buffers = PartBuffers(
            part_bytes=settings.part_size_bytes, limit_bytes=self._config.memory_limit_bytes, is_written_once=True
        )
        reader = _reader_of(settings.channel, connection, self._buffers, counters)
        self._reader = _CountingReader(reader, self._wake)
        self._report = report
        self._guard = guard
        self._begin_fd = begin_fd
        self._lookahead: Lookahead | None = None
        # The open FIFOs, earliest first.
        self._fifos: list[Fifo] = []
        # They are made in it, wherever its path may lead later.
        self._directory_fd = -1
        self._epoch = self._objects = self._written_bytes = 0
        # Counts epochs that have ended.
        self._waited_s = 0.0

    async def run(self, ready: Callable[[], None]) -> None:
        """Stream epoch after epoch until cancelled; an epoch that fails is the last and does not end."""
        try:
            async with trio.open_nursery() as nursery:
                engine = ReadEngine(self._reader, self._config, nursery, lambda: self._sequence.table)
                directory = self._settings.directory
                self._directory_fd = open_directory(directory, self._settings.base or directory.parent)
                remove_stale(path_of(self._directory_fd), self._settings.channel.name)
                self._make_fifo(self._epoch)
                ready()
                nursery.start_soon(self._report_often)
                await self._stream(engine)
        finally:
            for fifo in self._fifos:
                fifo.close()
            if self._directory_fd >= 0:
                os.close(self._directory_fd)

    async def _stream(self, engine: ReadEngine) -> None:
        try:
            while True:
                await self._stream_epoch(engine)
                self._tell()
                self._epoch += 1
        except Exception as error:  # noqa: BLE001 - of whatever kind: the reader must not take it for an end
            cause = first_of(error)
            self.failure = cause if isinstance(cause, FastfuseError) else _unforeseen(cause)
            _log.error(
                "epoch %d of channel %s has failed, and its reader waits: %s",
                *(self._epoch, self._settings.channel.name, self.failure),
                exc_info=None if self.failure is cause else cause,
            )
            self._tell()
            await trio.sleep_forever()

    async def _stream_epoch(self, engine: ReadEngine) -> None:
        fifo = self._fifos[0]
        self._lookahead = lookahead = Lookahead(engine, self._config)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._look_ahead, lookahead)
                await fifo.opened()
                # Before this epoch ends, for readers that look for it then, or open it even before.
                self._make_fifo(self._epoch + 1)
                lookahead.begin()
                await self._write_epoch(fifo, lookahead)
                if fifo.was_opened_again():
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
        if self._guard is not None:
            self._guard.let_go()

    async def _look_ahead(self, lookahead: Lookahead) -> None:
        if self._begin_fd is not None:
            await trio.lowlevel.wait_readable(self._begin_fd)
        await lookahead.run(self._sequence.files(self._epoch))

    async def _write_epoch(self, fifo: Fifo, lookahead: Lookahead) -> None:
        async def write(data: Buffer) -> None:
            await fifo.write(data)
            self._written_bytes += len(data)

        writer = EpochWriter(
            lookahead=lookahead,
            write=write,
            finished=self._finished,
            is_gzip=self._settings.channel.is_gzip,
            wraps_records=self._settings.channel.wraps_records,
        )
        try:
            await writer.run(self._sequence.items(self._epoch))
        except BrokenPipeError:
            fifo.hide()
            if fifo.has_reader():
                raise SourceError(
                    f"{str(fifo.path)!r} was closed before its end and then opened again, where it would go on in the "
                    "middle",
                    hint="who closes an epoch early reads the next one",
                ) from None
            _log.info(
                "epoch %d of channel %s: its reader has closed it early", self._epoch, self._settings.channel.name
            )

    def _make_fifo(self, epoch: int) -> None:
        path = self._settings.directory / f"{self._settings.channel.name}_{epoch}"
        fifo = Fifo(path, self._buffers.lent_from, directory=path_of(self._directory_fd))
        self._fifos.append(fifo)
        if self._guard is not None:
            self._guard.hold(fifo.fileno())

    def _finished(self) -> None:
        self._objects += 1

    def _wake(self) -> None:
        if self._lookahead is not None:
            self._lookahead.wake()

    async def _report_often(self) -> None:
        while True:
            await trio.sleep(_REPORT_EVERY_S)
            self._tell()

    def _tell(self) -> None:
        lookahead = self._lookahead
        self._report(
            PipeProgress(
                epoch=self._epoch,
                objects=self._objects,
                written_bytes=self._written_bytes,
                fetched_bytes=self._reader.fetched_bytes,
                requests=self._reader.requests,
                waited_s=self._waited_s + (lookahead.waited_s if lookahead else 0.0),
                is_waiting=lookahead is not None and lookahead.is_waiting,
                failure=self.failure,
            )
        )


def _unforeseen(error: Exception) -> FastfuseError:
    return FastfuseError(f"{type(error).__name__}: {error}", hint="the log has more of it; please report it")

"""The process of one channel in Pipe mode: epoch after epoch, until it is told to stop."""

import gc
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import trio

from fastfuse.errors import FastfuseError
from fastfuse.listing.snapshot import open_snapshot
from fastfuse.malloc import tune_malloc
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.readahead import ReadaheadConfig, ReadEngine
from fastfuse.sagemaker.pipe.epoch import EpochWriter
from fastfuse.sagemaker.pipe.fifo import Fifo, remove_stale
from fastfuse.sagemaker.pipe.guard import Guard
from fastfuse.sagemaker.pipe.lookahead import File, Lookahead
from fastfuse.sagemaker.pipe.sequence import Sequence, sequence_of
from fastfuse.sagemaker.pipe.settings import PipeProgress, PipeSettings
from fastfuse.store.base import ConnectionConfig, RangeReader
from fastfuse.store.router import RoutingReader, open_reader

__all__ = ["stream_channel"]

_log = logging.getLogger(__name__)

_REPORT_EVERY_S = 1.0
# What is fetched before anybody has opened the FIFO: enough to begin at full speed, and little to have wasted after the
# last epoch.
_UNREAD_DIVISOR = 16
# As `fastfuse mount`: the S3 client's buffers and the allocator's slack.
_CLIENT_OVERHEAD_BYTES = 80 << 20


def stream_channel(
    snapshot_fd: int,
    connection: ConnectionConfig,
    settings: PipeSettings,
    *,
    ready: Callable[[], None],
    report: Callable[[PipeProgress], None],
    guard: Guard | None = None,
) -> None:
    """Stream the objects of the snapshot until SIGTERM or SIGINT; for a process that was just forked.

    `ready` is called when the first epoch's FIFO is there, `report` about every second and whenever an epoch is over.

    An epoch that fails has no end. A FIFO cannot carry an error, and its end would be one more short epoch for the
    reader; so that waits until somebody who was told by `report` has stopped it, and then this process.

    Raises:
        FastfuseError: the channel cannot be streamed; or, once it is told to stop, why an epoch has failed.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    tune_malloc()
    gc.freeze()
    table = open_snapshot(snapshot_fd).table
    os.close(snapshot_fd)
    sequence = sequence_of(table, settings)
    trio.run(_run, _Channel(sequence, settings, connection, ready, report, guard))


async def _run(channel: "_Channel") -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.run)
            async for _ in signals:
                break
            nursery.cancel_scope.cancel()
    if channel.failure is not None:
        raise channel.failure


class _CountingReader:
    """Counts what is fetched, and tells when a GET has ended."""

    def __init__(self, reader: RangeReader, ended: Callable[[], None]) -> None:
        self._reader = reader
        self._ended = ended
        self.requests = self.fetched_bytes = 0

    async def get_range(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        """See `RangeReader.get_range`."""
        self.requests += 1
        try:
            data = await self._reader.get_range(ref, start, end)
        finally:
            # Heard when this task, which goes on to put the bytes where they belong, waits again.
            self._ended()
        self.fetched_bytes += end - start
        return data

    async def aclose(self) -> None:
        await self._reader.aclose()


class _Channel:
    def __init__(
        self,
        sequence: Sequence,
        settings: PipeSettings,
        connection: ConnectionConfig,
        ready: Callable[[], None],
        report: Callable[[PipeProgress], None],
        guard: Guard | None,
    ) -> None:
        self._sequence = sequence
        self._settings = settings
        self._config = _readahead_config(settings, connection)
        self._connection = connection
        self._ready = ready
        self._report = report
        self._guard = guard
        self._lookahead: Lookahead | None = None
        self._reader = _CountingReader(open_reader(connection), self._wake)
        self._epoch = settings.first_epoch
        self._objects = self._written_bytes = 0
        # Why the epoch that is open has no end.
        self.failure: Exception | None = None

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            engine = ReadEngine(self._reader, self._config, nursery, _no_listing)
            nursery.start_soon(self._report_often)
            with ExitStack() as fifos:
                await self._stream(engine, fifos)

    def _wake(self) -> None:
        if self._lookahead is not None:
            self._lookahead.wake()

"""The processes of a job's channels, one each, side by side, as their parent sees them."""

import logging
import os
import signal
import time
from collections.abc import Iterator, Sequence

from fastfuse.errors import FastfuseError, ServiceError
from fastfuse.filesystem.children import heard
from fastfuse.filesystem.recorder import Recorder
from fastfuse.index.origin import SourceKind
from fastfuse.metrics import OUTCOMES, Counters
from fastfuse.sagemaker.description.channel import Channel, InputMode
from fastfuse.sagemaker.outputs.lineage import Listing
from fastfuse.sagemaker.outputs.record import ChannelAccount
from fastfuse.sagemaker.running.budget import Usage
from fastfuse.sagemaker.running.child_process import ChildProcess
from fastfuse.sagemaker.running.phases import Phases
from fastfuse.sagemaker.running.serving import ChannelTask, serve_channel

__all__ = ["ChannelProcess", "usage_lines"]


class ChannelProcess(ChildProcess):
    """The process of one channel: preparing, ready, over."""

    def __init__(self, task: ChannelTask, counters: Counters) -> None:
        self.channel: Channel = task.channel
        self.is_ready = False
        self.is_stopping = False
        self.error: FastfuseError | None = None
        self._listing: Listing | None = None
        # Read here even after a death.
        self._counters = counters
        # A channel that is put in place has none.
        target_bytes = task.settings.memory_target_bytes.get(self.channel.name, 0)
        counters.set(counters.slot("fastfuse_memory_target_bytes"), target_bytes)
        self._recorder = Recorder(counters)
        super().__init__(lambda: self._serve(task))

    def _serve(self, task: ChannelTask) -> None:
        for handler in logging.getLogger().handlers:
            handler.addFilter(self._name_channel)
        os._exit(serve_channel(task, self._counters, self._told.writing_fd))

    def _name_channel(self, record: logging.LogRecord) -> bool:
        record.channel = self.channel.name
        return True

    def listen(self, phases: Phases) -> None:
        """Take in what the process has said, and what it has counted until now."""
        super().listen(phases)
        if self.exit_code is None:
            self._recorder.look(time.monotonic(), time.time())

    def stop(self) -> None:
        """Tell the process to end; a second call makes it not wait for open files."""
        self.is_stopping = True
        super().stop()

    def refresh(self) -> None:
        """List a mounted channel again (clause L6); other modes have nothing to refresh."""
        if self.exit_code is None and self.is_ready and self.channel.input_mode is InputMode.FAST_FILE:
            os.kill(self.pid, signal.SIGHUP)

    @property
    def failure(self) -> FastfuseError | None:
        """The reason why the channel stopped serving, with its name.

        It is None while the channel serves, or if it was told to end, finished its work, or was unmounted from outside.
        """
        if self.error is not None:
            return type(self.error)(f"channel {self.channel.name}: {self.error}", hint=self.error.hint)
        if self.exit_code is None or self.is_stopping or self._is_rightly_over:
            return None
        hint = "out of memory?" if self.exit_code == -signal.SIGKILL else "the log has the reason"
        return ServiceError(f"channel {self.channel.name}: its process {self.how_it_ended}", hint=hint)

    @property
    def _is_rightly_over(self) -> bool:
        return self.exit_code == 0 and self.is_ready and self.channel.input_mode is not InputMode.PIPE

    def usage(self) -> Usage:
        """Return what the channel took from S3 until now."""
        counters = self._counters
        gets = sum(counters.get("fastfuse_fetch_requests", outcome) for outcome in OUTCOMES)
        indexing = counters.get("fastfuse_index_requests")
        is_listed = self.channel.source_kind is SourceKind.PREFIX
        return Usage(
            fetched_bytes=counters.get("fastfuse_fetched_bytes"),
            # Of a manifest, every object is asked for its size.
            gets=gets + (0 if is_listed else indexing),
            lists=indexing if is_listed else 0,
        )

    def account(self) -> ChannelAccount:
        """Return what the record of the job says of the channel."""
        samples = self._recorder.record(time.time())
        return ChannelAccount(channel=self.channel, usage=self.usage(), listing=self._listing, samples=samples)

    def _hear(self, line: bytes, phases: Phases) -> None:
        try:
            message = heard(line)
        except FastfuseError as error:
            self.error = error
            return
        if "progress" in message:
            phases.progress(self.channel.name, *message["progress"])
        if "listing" in message:
            self._listing = Listing(**message["listing"])
        if "ready" in message:
            self.is_ready = True
            phases.say(f"{self.channel.name} ({self.channel.input_mode}): {message['ready']}")


def usage_lines(channels: Sequence[ChannelProcess]) -> Iterator[str]:
    """Yield what each channel took and cost, and what all of them did."""
    usages = [channel.usage() for channel in channels]
    for process, usage in zip(channels, usages, strict=True):
        yield f"{process.channel.name} ({process.channel.input_mode}): {usage}"
    if len(usages) > 1:
        yield f"all channels: {sum(usages[1:], usages[0])}"

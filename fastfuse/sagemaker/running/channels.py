"""The processes of a job's channels, one each, side by side, as their parent sees them.

Each forks others, which die with it. Each has a process group of its own: the terminal's Ctrl-C is for the command, and
channels go on until the parent stops them. Standard error comes through a pipe, line by line, so that lines of two
processes never mix.
"""

import fcntl
import logging
import os
import signal
from typing import Any

from fastfuse.errors import FastfuseError, ServiceError
from fastfuse.index.origin import SourceKind
from fastfuse.metrics import OUTCOMES, Counters
from fastfuse.mount.children import fork_child, heard
from fastfuse.sagemaker.description.channel import Channel, InputMode
from fastfuse.sagemaker.outputs.lineage import Listing
from fastfuse.sagemaker.outputs.record import ChannelAccount
from fastfuse.sagemaker.running.budget import Usage
from fastfuse.sagemaker.running.phases import Phases
from fastfuse.sagemaker.running.serving import ChannelTask, serve_channel

__all__ = ["ChannelProcess", "LinePipe"]

_READ_BYTES = 65536


class LinePipe:
    """A pipe from a child to its parent. SIGIO tells the process that made it that there is something to read."""

    def __init__(self) -> None:
        self._reading_fd, self.writing_fd = os.pipe()
        fcntl.fcntl(self._reading_fd, fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(self._reading_fd, fcntl.F_GETFL)
        fcntl.fcntl(self._reading_fd, fcntl.F_SETFL, flags | os.O_NONBLOCK | os.O_ASYNC)
        self._begun = b""

    def close_writing(self) -> None:
        """Close the parent's writing end after the fork: the pipe ends with its last writer."""
        os.close(self.writing_fd)

    def lines(self) -> list[bytes]:
        """Return the whole lines that came since, without newlines; never wait."""
        received = [self._begun]
        while chunk := self._receive():
            received.append(chunk)
        *lines, self._begun = b"".join(received).split(b"\n")
        return lines

    def close(self) -> list[bytes]:
        """Close the pipe and return the last lines, with one that never ended."""
        last = self.lines()
        os.close(self._reading_fd)
        return [*last, self._begun] if self._begun else last

    def _receive(self) -> bytes:
        try:
            return os.read(self._reading_fd, _READ_BYTES)
        except BlockingIOError:
            return b""


class ChannelProcess:
    """The process of one channel: preparing, ready, over."""

    def __init__(self, task: ChannelTask, counters: Counters) -> None:
        self.channel: Channel = task.channel
        # None while it lives; negative for a signal.
        self.exit_code: int | None = None
        self.is_ready = False
        self.is_stopping = False
        self.error: FastfuseError | None = None
        self._listing: Listing | None = None
        # Read here even after a death.
        self._counters = counters
        self._told, self._log = LinePipe(), LinePipe()
        self.pid = fork_child(lambda: self._work(task))
        self._told.close_writing()
        self._log.close_writing()

    def _work(self, task: ChannelTask) -> None:
        os.setpgid(0, 0)
        os.dup2(self._log.writing_fd, 2)
        for handler in logging.getLogger().handlers:
            handler.addFilter(self._name_channel)
        os._exit(serve_channel(task, self._counters, self._told.writing_fd))

    def _name_channel(self, record: logging.LogRecord) -> bool:
        record.channel = self.channel.name
        return True

    def listen(self, phases: Phases) -> None:
        """Take in what the process has said until now."""
        if self.exit_code is None:
            self._take(self._told.lines(), self._log.lines(), phases)

    def ended(self, exit_code: int, phases: Phases) -> None:
        """Note that the process was reaped."""
        self.exit_code = exit_code
        self._take(self._told.close(), self._log.close(), phases)

    def stop(self) -> None:
        """Tell the process to end; a second call makes it not wait for open files."""
        self.is_stopping = True
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGTERM)

    def refresh(self) -> None:
        """List a mounted channel again (clause L6); other modes have nothing to refresh."""
        if self.exit_code is None and self.is_ready and self.channel.input_mode is InputMode.FAST_FILE:
            os.kill(self.pid, signal.SIGHUP)

    def kill(self) -> None:
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGKILL)

    @property
    def failure(self) -> FastfuseError | None:
        """The reason why the channel stopped serving, with its name.

        It is None while the channel serves, or if it was told to end, finished its work, or was unmounted from outside.
        """
        if self.error is not None:
            return type(self.error)(f"channel {self.channel.name}: {self.error}", hint=self.error.hint)
        if self.exit_code is None or self.is_stopping or self._is_rightly_over:
            return None
        how = f"was killed by signal {-self.exit_code}" if self.exit_code < 0 else f"exited with {self.exit_code}"
        hint = "out of memory?" if self.exit_code == -signal.SIGKILL else "the log has the reason"
        return ServiceError(f"channel {self.channel.name}: its process {how}", hint=hint)

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
        return ChannelAccount(channel=self.channel, usage=self.usage(), listing=self._listing)

    def _take(self, told: list[bytes], log: list[bytes], phases: Phases) -> None:
        for line in log:
            phases.relay(line)
        for message in told:
            try:
                self._hear(heard(message), phases)
            except FastfuseError as error:
                self.error = error

    def _hear(self, message: dict[str, Any], phases: Phases) -> None:
        if "progress" in message:
            phases.progress(self.channel.name, *message["progress"])
        if "listing" in message:
            self._listing = Listing(**message["listing"])
        if "ready" in message:
            self.is_ready = True
            phases.say(f"{self.channel.name} ({self.channel.input_mode}): {message['ready']}")

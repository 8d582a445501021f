"""The child processes of a run as their parent sees them: one for each channel, side by side.

A child says what it does in lines through a pipe, and logs as its parent does. It has a process group of its own, and
takes orders from its parent alone: Ctrl-C, or a SIGTERM to every process of the job, is for the command, and a child
goes on until the parent stops it. Processes that it forks die with it.
"""

import json
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from fastfuse.errors import FastfuseError, ServiceError, about
from fastfuse.filesystem.figures.recorder import Recorder, moment
from fastfuse.filesystem.processes.children import (
    DIES_WITHIN_S,
    STOP_ORDER,
    NoRoomError,
    error_message,
    fork_child,
    heard,
)
from fastfuse.filesystem.processes.sockets import raise_sigio
from fastfuse.index.origin import SourceKind
from fastfuse.metrics import Counters
from fastfuse.sagemaker.description.channel import Channel, InputMode
from fastfuse.sagemaker.outputs.record import ChannelAccount, Usage
from fastfuse.sagemaker.run_settings import ChannelTask
from fastfuse.sagemaker.running.phases import Phases
from fastfuse.sagemaker.running.serving import serve_channel

_READ_BYTES = 65536


def fork_apart(work: Callable[[], object]) -> int:
    """Fork a child in a process group of its own, as `fork_child` does, and return its pid."""

    def work_apart() -> None:
        os.setpgid(0, 0)
        # A terminal may stop whoever writes to it from another group than that of the command (stty tostop).
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        work()

    return fork_child(work_apart, stops_at={STOP_ORDER})


class ChildProcess:
    """A child from its fork to its end; a subclass hears what it says beside its errors."""

    def __init__(self, work: Callable[[], int | None]) -> None:
        """Fork a child that does `work` and exits with its result. It inherits what the object has until now."""
        # None while it lives; negative for a signal.
        self.exit_code: int | None = None
        self._killed_s = math.inf
        # The last error that it has told, by the name of what it is about.
        self.errors: dict[str, FastfuseError] = {}
        self._told_fd, self._telling_fd = os.pipe()
        os.set_blocking(self._told_fd, False)
        raise_sigio(self._told_fd)
        # The beginning of a line of which the end has not come.
        self._begun = b""
        try:
            self.pid = fork_apart(lambda: self._work(work))
        except NoRoomError:
            os.close(self._told_fd)
            raise
        finally:
            os.close(self._telling_fd)

    def _work(self, work: Callable[[], int | None]) -> None:
        try:
            exit_code = work()
        except FastfuseError as error:
            self.tell(error=error)
            exit_code = error.exit_code
        os._exit(exit_code or 0)

    def tell(self, name: str = "", error: FastfuseError | None = None, **message: Any) -> None:  # noqa: ANN401 - JSON
        """Say something about `name` to the parent; the child calls this."""
        line = json.dumps(message).encode() if error is None else error_message(error)
        os.write(self._telling_fd, name.encode() + b"\t" + line + b"\n")

    def listen(self, phases: Phases) -> None:
        if self.exit_code is None:
            self._take(phases)

    def ended(self, exit_code: int, phases: Phases) -> None:
        if self.exit_code is not None:
            return  # the kernel has given its pid to an orphan of the command
        self.exit_code = exit_code
        with suppress(ProcessLookupError, PermissionError):  # nobody is left, or only another user's, as of sudo
            os.killpg(self.pid, signal.SIGKILL)  # a `credential_process` that hangs
        self._take(phases)
        os.close(self._told_fd)

    def stop(self) -> None:
        self.send(STOP_ORDER)

    def kill(self) -> None:
        self._killed_s = min(self._killed_s, time.monotonic())
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        if self.exit_code is None:
            os.kill(self.pid, number)

    @property
    def is_over(self) -> bool:
        """True if nobody waits for it any more: it has ended, or was killed and does not end."""
        return self.exit_code is not None or time.monotonic() >= self._killed_s + DIES_WITHIN_S

    @property
    def how_it_ended(self) -> str:
        if self.exit_code is None:
            return "was killed and does not end: a disk that hangs may hold it"
        return f"was killed by signal {-self.exit_code}" if self.exit_code < 0 else f"exited with {self.exit_code}"

    def _take(self, phases: Phases) -> None:
        """Take in the whole lines that came since, and wait for none."""
        received = [self._begun]
        with suppress(BlockingIOError):
            while chunk := os.read(self._told_fd, _READ_BYTES):
                received.append(chunk)
        *lines, self._begun = b"".join(received).split(b"\n")
        for line in lines:
            # Bytes up to the first tab name what the rest is about.
            name, _, message = line.partition(b"\t")
            try:
                self._hear(name.decode(), heard(message), phases)
            except FastfuseError as error:
                self.errors[name.decode()] = error

    def _hear(self, name: str, message: dict[str, Any], phases: Phases) -> None:
        """Take in what the process has said about `name`."""


class ChannelProcess(ChildProcess):
    """The process of one channel: preparing, ready, over."""

    def __init__(self, task: ChannelTask, counters: Counters) -> None:
        self.channel: Channel = task.channel
        self.is_ready = False
        self.is_stopping = False
        self._listing: dict[str, object] = {}
        # Else the index takes a HEAD of each object of a manifest, for its size, or GETs of the files of an inventory.
        self._has_lists = task.channel.source_kind is SourceKind.PREFIX and task.origin.inventory is None
        # Read here even after a death.
        self._counters = counters
        # A channel that is put in place has none.
        target_bytes = task.settings.memory_target_bytes.get(self.channel.name, 0)
        counters.set("fastfuse_memory_target_bytes", target_bytes)
        self._recorder = Recorder(counters)
        super().__init__(lambda: self._serve(task))

    def _serve(self, task: ChannelTask) -> int:
        for handler in logging.getLogger().handlers:
            handler.addFilter(self._name_channel)
        return serve_channel(task, self._counters, self.tell)

    def _name_channel(self, record: logging.LogRecord) -> bool:
        record.channel = self.channel.name
        return True

    def listen(self, phases: Phases) -> None:
        super().listen(phases)
        if self.exit_code is None:
            self._recorder.look(time.monotonic(), moment())

    def stop(self) -> None:
        self.is_stopping = True
        super().stop()

    def refresh(self) -> None:
        """List a mounted channel again (clause L6); other modes have nothing to refresh."""
        if self.is_ready and self.channel.input_mode is InputMode.FAST_FILE:
            self.send(signal.SIGHUP)

    @property
    def failure(self) -> FastfuseError | None:
        """The reason why the channel stopped serving, with its name.

        It is None while the channel serves, or if it was told to end, finished its work, or was unmounted from outside.
        """
        if (error := self.errors.get("")) is not None:
            return about(f"channel {self.channel.name}", error)
        is_rightly_over = self.exit_code == 0 and self.is_ready and self.channel.input_mode is not InputMode.PIPE
        if self.exit_code is None or self.is_stopping or is_rightly_over:
            return None
        hint = "out of memory?" if self.exit_code == -signal.SIGKILL else "the log has the reason"
        return ServiceError(f"channel {self.channel.name}: its process {self.how_it_ended}", hint=hint)

    def usage(self) -> Usage:
        counters = self._counters
        charged = counters.get("fastfuse_answered_gets") - counters.get("fastfuse_refused_gets")
        indexing = counters.get("fastfuse_index_requests")
        return Usage(
            fetched_bytes=counters.get("fastfuse_fetched_bytes"),
            gets=charged + (0 if self._has_lists else indexing),
            lists=indexing if self._has_lists else 0,
        )

    def account(self) -> ChannelAccount:
        samples = self._recorder.record(moment())
        return ChannelAccount(channel=self.channel, usage=self.usage(), listing=self._listing, samples=samples)

    def _hear(self, name: str, message: dict[str, Any], phases: Phases) -> None:
        if "progress" in message:
            phases.progress(self.channel.name, *message["progress"])
        if "listing" in message:
            self._listing = message["listing"]
        if "ready" in message:
            self.is_ready = True
            phases.say(f"{self.channel.name} ({self.channel.input_mode}): {message['ready']}")


def usage_lines(channels: Sequence[ChannelProcess]) -> Iterator[str]:
    """Yield what each channel took and cost, and what all of them did."""
    usages = [channel.usage() for channel in channels]
    for process, usage in zip(channels, usages, strict=True):
        yield f"{process.channel.name} ({process.channel.input_mode}): {usage}"
    if len(usages) > 1:
        yield f"all channels: {Usage(*map(sum, zip(*usages, strict=True)))}"

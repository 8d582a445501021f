"""The processes that send what a job has made to S3, as their parent sees them."""

import json
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fastfuse.errors import FastfuseError, OutputError
from fastfuse.index.sources.uri import S3Uri
from fastfuse.mount.children import error_message, fork_child, heard
from fastfuse.sagemaker.outputs.record import Artifact
from fastfuse.sagemaker.outputs.sending import Outgoing, SendTask, Tell, send_outputs
from fastfuse.sagemaker.outputs.syncing import SyncTask, sync_directories
from fastfuse.sagemaker.running.channels import LinePipe
from fastfuse.sagemaker.running.phases import Phases
from fastfuse.sizes import format_size

__all__ = ["Syncer", "Uploader"]

_log = logging.getLogger(__name__)

_REPORT_EVERY_S = 0.2


class _OutputProcess:
    """A process that works with what a job has made; it says things by name, and its log passes through its parent."""

    def __init__(self, work: Callable[[Tell], None], uris: Mapping[str, S3Uri]) -> None:
        self._uris = uris
        # None while it lives; negative for a signal.
        self.exit_code: int | None = None
        # By name: what S3 holds, as `Sent`.
        self.sent: dict[str, Mapping[str, Any]] = {}
        self._errors: dict[str, FastfuseError] = {}
        self._told, self._log = LinePipe(), LinePipe()
        self.pid = fork_child(lambda: self._work(work))
        self._told.close_writing()
        self._log.close_writing()

    def _work(self, work: Callable[[Tell], None]) -> None:
        # The terminal's Ctrl-C is for the parent.
        os.setpgid(0, 0)
        os.dup2(self._log.writing_fd, 2)
        reported_s = 0.0

        def tell(name: str, error: FastfuseError | None = None, **message: Any) -> None:  # noqa: ANN401 - JSON
            nonlocal reported_s
            if "progress" in message:
                now_s = time.monotonic()
                if now_s - reported_s < _REPORT_EVERY_S:
                    return
                reported_s = now_s
            # Bytes up to the first tab name what the rest is about.
            line = json.dumps(message).encode() if error is None else error_message(error)
            os.write(self._told.writing_fd, name.encode() + b"\t" + line + b"\n")

        try:
            work(tell)
        except FastfuseError as error:
            tell("", error)
            os._exit(error.exit_code)

    def listen(self, phases: Phases) -> None:
        """Take in what the process has said until now."""
        if self.exit_code is None:
            self._take(self._told.lines(), self._log.lines(), phases)

    def ended(self, exit_code: int, phases: Phases) -> None:
        """Note that the process was reaped."""
        self.exit_code = exit_code
        self._take(self._told.close(), self._log.close(), phases)

    def stop(self) -> None:
        """Tell the process to end and to leave nothing half sent."""
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGKILL)

    def artifacts(self) -> dict[str, Artifact]:
        """Return, by name, what was sent of the directories that were not empty."""
        return {
            name: Artifact(uri=self._uris[name], files=sent["files"], total_bytes=sent["bytes"], etag=sent["etag"])
            for name, sent in self.sent.items()
            if sent["files"]
        }

    def _how_it_ended(self) -> str:
        assert self.exit_code is not None
        how = f"was killed by signal {-self.exit_code}" if self.exit_code < 0 else f"exited with {self.exit_code}"
        return f"the process that uploads {how}"

    def _take(self, told: list[bytes], log: list[bytes], phases: Phases) -> None:
        for line in log:
            phases.relay(line)
        for line in told:
            name, _, message = line.partition(b"\t")
            try:
                self._hear(name.decode(), heard(message), phases)
            except FastfuseError as error:
                self._errors[name.decode()] = error

    def _hear(self, name: str, message: dict[str, Any], phases: Phases) -> None:
        if "progress" in message:
            phases.progress(name, *message["progress"])
        if "sent" in message:
            self.sent[name] = message["sent"]


class Uploader(_OutputProcess):
    """A process that lives until everything is sent or has failed."""

    def __init__(self, task: SendTask) -> None:
        self._task = task
        self._is_stopping = False
        super().__init__(partial(send_outputs, task), {outgoing.name: outgoing.uri for outgoing in task.outgoing})

    def stop(self) -> None:
        self._is_stopping = True
        super().stop()

    def failures(self) -> dict[str, OutputError]:
        """Return, by name, why something is not in S3, and where it still lies. Call it after the end."""
        return {
            outgoing.name: self._failure(outgoing) for outgoing in self._task.outgoing if outgoing.name not in self.sent
        }

    def _failure(self, outgoing: Outgoing) -> OutputError:
        error, hint = self._errors.get(outgoing.name), ""
        if error is not None:
            reason, hint = str(error), error.hint
        elif self._is_stopping:
            reason = "the upload was told to stop"
        else:
            reason = self._how_it_ended()
        return OutputError(
            f"the {outgoing.name} is not in S3 at {outgoing.uri}, and still lies in {outgoing.place}: {reason}",
            hint=hint,
        )

    def _hear(self, name: str, message: dict[str, Any], phases: Phases) -> None:
        super()._hear(name, message, phases)
        if "sent" not in message:
            return
        sent = message["sent"]
        outgoing = next(one for one in self._task.outgoing if one.name == name)
        if outgoing.data is not None:
            return
        if sent["files"]:
            phases.say(f"{name}: {sent['files']:,} files, {format_size(sent['bytes'])} at {outgoing.uri}")
        else:
            phases.say(f"{name}: {outgoing.place} is empty, and nothing is uploaded")


class Syncer(_OutputProcess):
    """A process that lives as long as the job, and sends what is left at its end."""

    def __init__(self, task: SyncTask) -> None:
        self._task = task
        # What S3 has is in place.
        self.is_ready = False
        self._is_finishing = False
        super().__init__(partial(sync_directories, task), {place.name: place.prefix for place in task.places})

    def finish(self) -> None:
        """Tell the process that the command has ended; a second call ends it at once."""
        self._is_finishing = True
        self.stop()

    @property
    def failure(self) -> FastfuseError | None:
        """The reason why it ended before it was told to."""
        if self.exit_code is None or self._is_finishing:
            return None
        return self._errors.get("") or OutputError(f"{self._names} are no longer uploaded: {self._how_it_ended()}")

    @property
    def _names(self) -> str:
        return " and ".join(place.name for place in self._task.places)

    def failures(self) -> dict[str, OutputError]:
        """Return, by name, why something is not in S3, and where it still lies. Call it after the end."""
        found = {}
        for place in self._task.places:
            if place.name not in self.sent:
                error = self._errors.get(place.name)
                reason = self._how_it_ended() if error is None else str(error)
                where = f"in S3 at {place.prefix}, and still lie in {place.directory}"
                found[place.name] = OutputError(
                    f"the {place.name} are not all {where}: {reason}",
                    hint="" if error is None else error.hint,
                )
        return found

    def _hear(self, name: str, message: dict[str, Any], phases: Phases) -> None:
        super()._hear(name, message, phases)
        if "ready" in message:
            self.is_ready = True
        if "said" in message:
            phases.say(f"{name}: {message['said']}")
        if "sent" in message and message["sent"]["files"]:
            sent = message["sent"]
            phases.say(f"{name}: {format_size(sent['bytes'])} were sent, files: {sent['files']:,}")

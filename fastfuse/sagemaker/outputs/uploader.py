"""The process that sends what a job has made to S3, as its parent sees it, and what the parent asks of it."""

import json
import logging
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from fastfuse.errors import FastfuseError, OutputError
from fastfuse.mount.children import error_message, fork_child, heard
from fastfuse.sagemaker.outputs.record import Artifact
from fastfuse.sagemaker.outputs.sending import Outgoing, SendTask, send_outputs
from fastfuse.sagemaker.running.channels import LinePipe
from fastfuse.sagemaker.running.phases import Phases
from fastfuse.sizes import format_size

__all__ = ["Uploader"]

_log = logging.getLogger(__name__)

_REPORT_EVERY_S = 0.2


class Uploader:
    """A process that lives until everything is sent or has failed."""

    def __init__(self, task: SendTask) -> None:
        self._task = task
        # None while it lives; negative for a signal.
        self.exit_code: int | None = None
        # By name: what S3 holds, as `Sent`.
        self.sent: dict[str, Mapping[str, Any]] = {}
        self._errors: dict[str, FastfuseError] = {}
        self._is_stopping = False
        self._told, self._log = LinePipe(), LinePipe()
        self.pid = fork_child(self._work)
        self._told.close_writing()
        self._log.close_writing()

    def _work(self) -> None:
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

        send_outputs(self._task, tell)

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
        self._is_stopping = True
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGKILL)

    def artifacts(self) -> dict[str, Artifact]:
        """Return, by name, what S3 holds of the directories that were not empty."""
        uris = {outgoing.name: outgoing.uri for outgoing in self._task.outgoing}
        return {
            name: Artifact(uri=uris[name], files=sent["files"], total_bytes=sent["bytes"], etag=sent["etag"])
            for name, sent in self.sent.items()
            if sent["files"]
        }

    def failures(self) -> dict[str, OutputError]:
        """Return, by name, why something is not in S3, and where it still lies. Call it after the end."""
        return {
            outgoing.name: self._failure(outgoing) for outgoing in self._task.outgoing if outgoing.name not in self.sent
        }

    def _failure(self, outgoing: Outgoing) -> OutputError:
        assert self.exit_code is not None
        error, hint = self._errors.get(outgoing.name), ""
        if error is not None:
            reason, hint = str(error), error.hint
        elif self._is_stopping:
            reason = "the upload was told to stop"
        elif self.exit_code < 0:
            reason = f"the process that uploads was killed by signal {-self.exit_code}"
        else:
            reason = f"the process that uploads exited with {self.exit_code}"
        return OutputError(
            f"the {outgoing.name} is not in S3 at {outgoing.uri}, and still lies in {outgoing.place}: {reason}",
            hint=hint,
        )

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
        if "sent" not in message:
            return
        sent = self.sent[name] = message["sent"]
        outgoing = next(one for one in self._task.outgoing if one.name == name)
        if outgoing.data is not None:
            return
        if sent["files"]:
            phases.say(f"{name}: {sent['files']:,} files, {format_size(sent['bytes'])} at {outgoing.uri}")
        else:
            phases.say(f"{name}: {outgoing.place} is empty, and nothing is uploaded")

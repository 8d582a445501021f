"""The processes that send what a job has made to S3, as their parent sees them."""

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fastfuse.errors import FastfuseError, OutputError
from fastfuse.filesystem.children import error_message, heard
from fastfuse.index.sources.uri import S3Uri
from fastfuse.sagemaker.outputs.record import Artifact
from fastfuse.sagemaker.outputs.sending import SendTask, Tell, send_outputs
from fastfuse.sagemaker.outputs.syncing import SyncTask, sync_directories
from fastfuse.sagemaker.running.child_process import ChildProcess
from fastfuse.sagemaker.running.phases import Phases
from fastfuse.sizes import format_size

__all__ = ["Syncer", "Uploader"]

_log = logging.getLogger(__name__)

_REPORT_EVERY_S = 0.2


class _OutputProcess(ChildProcess):
    """A process that works with what a job has made, and says things by name."""

    def __init__(self, work: Callable[[Tell], None], uris: Mapping[str, S3Uri]) -> None:
        self._uris = uris
        # The fields of `Sent`, by name.
        self.sent: dict[str, Mapping[str, Any]] = {}
        self._errors: dict[str, FastfuseError] = {}
        super().__init__(lambda: self._tell_of(work))

    def _tell_of(self, work: Callable[[Tell], None]) -> None:
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

    def artifacts(self) -> dict[str, Artifact]:
        """Return, by name, what was sent of the directories that were not empty."""
        return {
            name: Artifact(uri=self._uris[name], files=sent["files"], total_bytes=sent["bytes"], etag=sent["etag"])
            for name, sent in self.sent.items()
            if sent["files"]
        }

    @property
    def _end(self) -> str:
        """The reason why it did not do more."""
        return f"the process that uploads {self.how_it_ended}"

    def _failure(self, name: str, where: str) -> OutputError:
        """Return the error for the directory `name`, of which `where` says what S3 lacks and where that still lies."""
        error = self._errors.get(name)
        reason = self._end if error is None else str(error)
        return OutputError(f"the {name} {where}: {reason}", hint="" if error is None else error.hint)

    def _hear(self, line: bytes, phases: Phases) -> None:
        name, _, message = line.partition(b"\t")
        try:
            self._take_in(name.decode(), heard(message), phases)
        except FastfuseError as error:
            self._errors[name.decode()] = error

    def _take_in(self, name: str, message: dict[str, Any], phases: Phases) -> None:
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

    @property
    def _end(self) -> str:
        return "the upload was told to stop" if self._is_stopping else super()._end

    def failures(self) -> dict[str, OutputError]:
        """Return, by name, why something is not in S3, and where it still lies. Call it after the end."""
        return {
            one.name: self._failure(one.name, f"is not in S3 at {one.uri}, and still lies in {one.place}")
            for one in self._task.outgoing
            if one.name not in self.sent
        }

    def _take_in(self, name: str, message: dict[str, Any], phases: Phases) -> None:
        super()._take_in(name, message, phases)
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
        # The checkpoints that S3 had are in place.
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
        return self._errors.get("") or OutputError(f"{self._names} are no longer uploaded: {self._end}")

    @property
    def _names(self) -> str:
        return " and ".join(place.name for place in self._task.places)

    def failures(self) -> dict[str, OutputError]:
        """Return, by name, why something is not in S3, and where it still lies. Call it after the end."""
        return {
            one.name: self._failure(one.name, f"are not all in S3 at {one.prefix}, and still lie in {one.directory}")
            for one in self._task.places
            if one.name not in self.sent
        }

    def _take_in(self, name: str, message: dict[str, Any], phases: Phases) -> None:
        super()._take_in(name, message, phases)
        if "ready" in message:
            self.is_ready = True
        if "said" in message:
            phases.say(f"{name}: {message['said']}")
        if "sent" in message and message["sent"]["files"]:
            sent = message["sent"]
            phases.say(f"{name}: {format_size(sent['bytes'])} were sent, files: {sent['files']:,}")

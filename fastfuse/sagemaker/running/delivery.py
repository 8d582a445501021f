"""Sends a job's files to S3: checkpoints while it runs, model and output at its end, and its record.

Processes of their own do the work (`outputs`); here is what their parent sees of them.
"""

import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fastfuse.errors import FastfuseError, OutputError
from fastfuse.filesystem.children import error_message, heard
from fastfuse.index.sources.uri import S3Uri
from fastfuse.sagemaker.outputs.record import RECORD_NAME, Artifact
from fastfuse.sagemaker.outputs.sending import Outgoing, SendTask, Tell, send_outputs
from fastfuse.sagemaker.outputs.syncing import SyncedPlace, SyncTask, sync_directories
from fastfuse.sagemaker.running.job_processes import ChildProcess
from fastfuse.sagemaker.running.phases import Phase, Phases
from fastfuse.sagemaker.running.serving import RunSettings
from fastfuse.sizes import format_size

__all__ = ["Delivery", "Syncer", "Uploader"]

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


_log = logging.getLogger(__name__)

# The time between two looks where no signal comes.
_LOOK_EVERY_S = 1.0
# The time that aborting an upload may take.
_END_S = 10.0


class Delivery:
    """The processes that send, and what S3 holds in the end.

    `take_signal` waits for so many seconds at most, and returns whether a signal told us to stop.
    """

    def __init__(self, settings: RunSettings, phases: Phases, take_signal: Callable[[float], bool]) -> None:
        self._settings = settings
        self._phases = phases
        self._take_signal = take_signal
        self._syncer: Syncer | None = None
        self._uploader: Uploader | None = None
        self._is_lost_told = False
        # The content of S3, by name.
        self.artifacts: dict[str, Artifact] = {}

    def say_where(self) -> None:
        """Tell where everything will go."""
        job = self._settings.job
        if job.output is not None:
            self._phases.say(f"Model and output go to {job.output.place} at the end")
        for synced in job.synced:
            self._phases.say(f"Files in {self._settings.paths.of(synced.local_path)} go to {synced.place}")
        if job.arn:
            self._phases.say("The job ran in SageMaker: its model is not replaced, and nothing is uploaded")

    def begin(self) -> None:
        """Bring checkpoints back, and send new ones from then on."""
        settings = self._settings
        if not settings.job.synced:
            return
        places = []
        for synced in settings.job.synced:
            directory = settings.paths.of(synced.local_path)
            base = settings.paths.base if directory.is_relative_to(settings.paths.base) else directory
            place = SyncedPlace(
                name=synced.name,
                directory=directory,
                base=base,
                prefix=synced.place,
                are_checkpoints=synced.are_checkpoints,
            )
            places.append(place)
        task = SyncTask(places=tuple(places), connection=settings.connection, part_size_bytes=settings.part_size_bytes)
        self._syncer = Syncer(task)

    @property
    def is_ready(self) -> bool:
        """True once the checkpoints are there."""
        return self._syncer is None or self._syncer.is_ready

    @property
    def failure(self) -> FastfuseError | None:
        """The reason why checkpoints are not there, or are no longer sent."""
        return None if self._syncer is None else self._syncer.failure

    def listen(self) -> None:
        """Take in what the processes have said, and tell the loss of one."""
        for process in filter(None, (self._syncer, self._uploader)):
            process.listen(self._phases)
        if self.is_ready and self.failure is not None and not self._is_lost_told:
            self._is_lost_told = True
            _log.error("%s", self.failure)

    def ended(self, pid: int, exit_code: int) -> None:
        """Note that a process was reaped."""
        for process in filter(None, (self._syncer, self._uploader)):
            if process.pid == pid and process.exit_code is None:
                process.ended(exit_code, self._phases)

    def deliver(self) -> list[FastfuseError]:
        """Send what is left, now that the command has ended, and return what is not in S3."""
        output, cluster, paths = self._settings.job.output, self._settings.cluster, self._settings.paths
        if output is None and self._syncer is None:
            return []
        what = "the rest of the files" if output is None else f"model and output to {output.place}"
        self._phases.enter(Phase.UPLOADING, f"Uploading {what}")
        failures: list[FastfuseError] = []
        if self._syncer is not None:
            # Beside the model: a host that is taken away in two minutes has them in S3 first.
            self._syncer.finish()
        if output is not None:
            model = Outgoing(name="model", place=paths.model, uri=output.model(cluster))
            data = Outgoing(name="output", place=paths.output_data, uri=output.output(cluster))
            failures += self._send(output.kms_key_id, model, data)
        if self._syncer is not None:
            failures += self._end(self._syncer)
        return failures

    def deliver_record(self, data: bytes) -> None:
        """Send the record of the job; the log tells a failure, for the record is also here."""
        output = self._settings.job.output
        if output is not None:
            uri, place = output.record(self._settings.cluster), self._settings.paths.output / RECORD_NAME
            for failure in self._send(output.kms_key_id, Outgoing(name="record", place=place, uri=uri, data=data)):
                _log.error("%s", failure)

    def give_up(self) -> None:
        """End what was begun for a job that did not start."""
        if self._syncer is not None:
            self._syncer.kill()
            while self._syncer.exit_code is None:
                self._take_signal(_LOOK_EVERY_S)

    def _send(self, kms_key_id: str, *outgoing: Outgoing) -> list[FastfuseError]:
        settings = self._settings
        task = SendTask(
            outgoing=outgoing, base=settings.paths.base, connection=settings.connection, kms_key_id=kms_key_id
        )
        self._uploader = Uploader(task)
        return self._end(self._uploader)

    def _end(self, process: Syncer | Uploader) -> list[FastfuseError]:
        """Wait for the end of a process, which a second signal hastens; return what it could not send."""
        kill_at_s = math.inf
        signals = 0
        while process.exit_code is None:
            if self._take_signal(_LOOK_EVERY_S):
                signals += 1
                if signals == 1:
                    self._phases.say("The upload goes on; another signal ends it")
                else:
                    process.stop()
                    kill_at_s = min(kill_at_s, time.monotonic() + _END_S)
            if time.monotonic() >= kill_at_s:
                process.kill()
        self.artifacts |= process.artifacts()
        return [*process.failures().values()]

"""Sends a job's files to S3: checkpoints while it runs, model and output at its end, and its record."""

import logging
import math
import time
from collections.abc import Callable

from fastfuse.errors import FastfuseError
from fastfuse.sagemaker.outputs.places import model_uri, output_uri, record_uri
from fastfuse.sagemaker.outputs.record import RECORD_NAME, Artifact
from fastfuse.sagemaker.outputs.sending import Outgoing, SendTask
from fastfuse.sagemaker.outputs.syncing import SyncedPlace, SyncTask
from fastfuse.sagemaker.outputs.uploader import Syncer, Uploader
from fastfuse.sagemaker.running.phases import Phase, Phases
from fastfuse.sagemaker.running.serving import RunSettings

__all__ = ["Delivery"]

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
            model = Outgoing(name="model", place=paths.model, uri=model_uri(output, cluster))
            data = Outgoing(name="output", place=paths.output_data, uri=output_uri(output, cluster))
            failures += self._send(output.kms_key_id, model, data)
        if self._syncer is not None:
            failures += self._end(self._syncer)
        return failures

    def deliver_record(self, data: bytes) -> None:
        """Send the record of the job; the log tells a failure, for the record is also here."""
        output = self._settings.job.output
        if output is not None:
            uri, place = record_uri(output, self._settings.cluster), self._settings.paths.output / RECORD_NAME
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

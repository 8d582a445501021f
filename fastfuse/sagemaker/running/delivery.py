"""Sends a job's files to S3: checkpoints while it runs, model and output at its end, and its record.

Processes of their own do the work (`outputs`); here is what their parent sees of them.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from fastfuse import awake
from fastfuse.errors import FastfuseError, OutputError
from fastfuse.filesystem.processes.children import NoRoomError
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.routes import read_files
from fastfuse.s3.upload import load_writer
from fastfuse.sagemaker.outputs.record import ETAGS_NAME, RECORD_NAME
from fastfuse.sagemaker.outputs.sending import Outgoing, Tell, send_outputs
from fastfuse.sagemaker.outputs.syncing import sync_directories
from fastfuse.sagemaker.run_settings import RunSettings
from fastfuse.sagemaker.running.job_processes import ChildProcess
from fastfuse.sagemaker.running.phases import Phase, Phases

_log = logging.getLogger(__name__)

# The time between two looks where no signal comes.
_LOOK_EVERY_S = 1.0
# The time between two processes that send checkpoints, after the first that was lost.
_AGAIN_AFTER_S = 60.0
# The time that aborting an upload may take.
_END_S = 10.0
# The time that the record has after a second signal: it is small, and tells what was not uploaded.
_RECORD_S = 5.0


class Sender(ChildProcess):
    """A process that sends to S3 what a job has made, and says things by name."""

    def __init__(self, work: Callable[[Tell], None], lacks: Mapping[str, str]) -> None:
        """Fork it. `lacks` says by name, for errors, what S3 lacks until it is sent, and where that still lies."""
        # The job may begin: its outputs can be written, and the checkpoints that S3 had are in place.
        self.is_ready = False
        # The time for which it has waited for an answer in vain.
        self.silent_s = 0.0
        # The content of S3, by name.
        self.artifacts: dict[str, dict[str, Any]] = {}
        self._lacks = lacks
        self._is_cut_off = False
        super().__init__(lambda: work(self.tell))

    def cut_off(self) -> None:
        """Stop it, whatever is left to be sent."""
        self._is_cut_off = True
        self.stop()

    @property
    def _end(self) -> str:
        """The reason why it did not do more."""
        return "the upload was told to stop" if self._is_cut_off else f"the process that uploads {self.how_it_ended}"

    @property
    def failure(self) -> FastfuseError | None:
        """The reason why it ended too early."""
        if self.exit_code in {None, 0}:
            return None
        lost = f"the process that checks the job's outputs {self.how_it_ended}"
        if self.is_ready and self._lacks:
            lost = f"{' and '.join(self._lacks)} are no longer uploaded: {self._end}"
        return self.errors.get("") or OutputError(lost)

    def failures(self) -> list[FastfuseError]:
        """Return why something is not in S3, and where it still lies. Call it after the end."""
        missing = {name: lack for name, lack in self._lacks.items() if name not in self.artifacts}
        return [
            _not_sent(name, lack, self.errors.get(name) or self.errors.get("") or OutputError(self._end))
            for name, lack in missing.items()
        ]

    def _hear(self, name: str, message: dict[str, Any], phases: Phases) -> None:
        self.is_ready = self.is_ready or "ready" in message
        self.silent_s = message.get("silent_s", self.silent_s)
        if "progress" in message:
            phases.progress(name, *message["progress"])
        if "said" in message:
            phases.say(f"{name}: {message['said']}")
        if "sent" in message:
            self.artifacts[name] = message["sent"]


def _not_sent(name: str, lack: str, error: FastfuseError) -> FastfuseError:
    return OutputError(f"the {name} {lack}: {error}", hint=error.hint)


class Delivery:
    """The processes that send, and what S3 holds in the end.

    `take_signal` waits for so many seconds at most, and returns whether a signal told us to stop.
    """

    def __init__(self, settings: RunSettings, phases: Phases, take_signal: Callable[[float], bool]) -> None:
        self._settings = settings
        # Outputs are written without a key of the customer's, and checkpoints that come back were.
        self._session = S3Session(replace(settings.connection, sse_c_key_file=None))
        self._phases = phases
        self._take_signal = take_signal
        # The first sends checkpoints and logs while the job runs, the second model and output at its end.
        self._syncer: Sender | None = None
        self._uploader: Sender | None = None
        # When the first of them was ready: nothing of the job runs before that.
        self._began_ns: int | None = None
        # When another process may be started for one that is lost: never once the job ends.
        self._again_at_s = 0.0
        # Those that came while something was uploaded at the end.
        self._signals = 0
        # The content of S3, by name.
        self.artifacts: dict[str, dict[str, Any]] = {}

    def say_where(self) -> None:
        """Say which of several hosts this is, and where its files go."""
        job, cluster = self._settings.job, self._settings.cluster
        if (count := len(cluster.hosts)) > 1:
            self._phases.say(f"This is {cluster.current_host} of {count} hosts")
        if job.instance_count > 1 and job.instance_count != count:
            _log.warning(
                "the job's InstanceCount is %d, and the number of its hosts here is %d: if that is wrong, say which of "
                "all hosts this is with --host I/N, or start as many with the launcher",
                *(job.instance_count, count),
            )
        if job.output is not None:
            self._phases.say(f"Model and output go to {job.output.place} at the end")
        for synced in job.synced:
            self._phases.say(f"Files in {self._settings.paths.of(synced.local_path)} go to {synced.place}")

    def not_done(self) -> str:
        """Return the end of a message about what keeps the job's files from S3."""
        job, paths = self._settings.job, self._settings.paths
        places = [] if job.output is None else [paths.model, paths.output_data]
        places += self._settings.synced_places
        if not places:
            return ""
        *most, last = map(str, places)
        shown = f"{', '.join(most)} and {last}" if most else last
        return f": what the job has made may not be in S3, and lies in {shown}"

    @property
    def _processes(self) -> list[Sender]:
        return [process for process in (self._syncer, self._uploader) if process is not None]

    def begin(self) -> None:
        """Check that outputs can be written, bring checkpoints back, and send new ones from then on.

        Raises:
            ConfigurationError: a file of the configuration, an authority or a key cannot be read.
        """
        job, session = self._settings.job, self._session
        places = [(one.field, one.place, "") for one in job.synced]
        if job.output is not None:
            places.append(("OutputDataConfig", job.output.model(self._settings.cluster), job.output.kms_key_id))
        if places:
            # The processes that send have all that they need from here on: the command may remove any package.
            read_files(session)
            awake.run(load_writer, session)
            awake.run(session.load_renewal)
        # Without a command nothing will be made.
        self._begin_syncing(places if self._settings.command else [])

    def _begin_syncing(self, checked: Sequence[tuple[str, S3Uri, str]] = ()) -> None:
        settings, synced = self._settings, self._settings.job.synced
        if synced or checked:
            lacks = {
                one.name: f"are not all in S3 at {one.place}, and still lie in {settings.paths.of(one.local_path)}"
                for one in synced
            }
            is_alone, began_ns = settings.cluster.is_alone, self._began_ns
            work = partial(sync_directories, synced, checked, settings.paths, self._session, settings.part_size_bytes)
            self._syncer = Sender(partial(work, began_ns=began_ns, is_alone=is_alone), lacks)

    @property
    def pids(self) -> list[int]:
        """The processes that check and send, of which some may have ended."""
        return [process.pid for process in self._processes]

    @property
    def is_ready(self) -> bool:
        return self._syncer is None or self._syncer.is_ready

    @property
    def failure(self) -> FastfuseError | None:
        """The reason why outputs cannot be written, or why checkpoints are not there or are no longer sent."""
        return None if self._syncer is None else self._syncer.failure

    def listen(self) -> None:
        """Take in what the processes have said, and start another one in the place of one that is lost."""
        for process in self._processes:
            process.listen(self._phases)
        if self._began_ns is None and self.is_ready:
            self._began_ns = time.time_ns()
        is_lost = self._began_ns is not None and self.failure is not None
        if is_lost and time.monotonic() >= self._again_at_s:
            self._begin_again()

    def _begin_again(self) -> None:
        self._again_at_s = time.monotonic() + _AGAIN_AFTER_S
        _log.error("%s; another process goes on with it", self.failure)
        with suppress(NoRoomError, OSError):  # later, perhaps
            self._begin_syncing()

    def ended(self, pid: int, exit_code: int) -> None:
        for process in self._processes:
            if process.pid == pid:
                process.ended(exit_code, self._phases)

    def deliver(self, status: str) -> list[FastfuseError]:
        """Send what is left, now that the command has ended with this status, and return what is not in S3.

        Archives of runs that ended better are not replaced.
        """
        output, cluster, paths = self._settings.job.output, self._settings.cluster, self._settings.paths
        if output is None and self._syncer is None:
            return []
        what = "the rest of the files" if output is None else f"model and output to {output.place}"
        self._phases.enter(Phase.UPLOADING, f"Uploading {what}")
        failures: list[FastfuseError] = []
        if self.failure is not None:
            self._begin_again()
        self._again_at_s = math.inf
        if self._syncer is not None:
            # A signal would end one that has just begun again.
            while not self.is_ready and self._syncer.exit_code is None and self._signals < 2:
                self._heed_signal()
            # Beside the model: a host that is taken away in two minutes has them in S3 first.
            self._syncer.stop()
        if output is not None:
            made = partial(Outgoing, status=status, is_alone=cluster.is_alone)
            model = made(name="model", place=paths.model, uri=output.model(cluster))
            data = made(name="output", place=paths.output_data, uri=output.output(cluster))
            failures += self._send(output.kms_key_id, model, data)
        if self._syncer is not None:
            failures += self._end(self._syncer)
        return failures

    def deliver_record(self, data: bytes) -> None:
        """Send the record of the job, and the ETags; the log tells a failure, for they are also here."""
        output, cluster, place = self._settings.job.output, self._settings.cluster, self._settings.paths.output
        if output is None:
            return
        sent = [Outgoing(name="record", place=place / RECORD_NAME, uri=output.record(cluster), data=data)]
        if self._settings.records_etags:
            sent.append(Outgoing(name="list of ETags", place=place / ETAGS_NAME, uri=output.etags(cluster)))
        for failure in self._send(output.kms_key_id, *sent, patience_s=_RECORD_S):
            _log.error("%s", failure)

    def give_up(self) -> None:
        """End what was begun for a job that did not start; an upload that is under way is aborted."""
        # A stop of the container waits for 10 s by default.
        self._again_at_s, kill_at_s = math.inf, time.monotonic() + _END_S / 2
        for process in self._processes:
            while not process.is_over:
                process.stop()  # the second time, without sending the rest
                if self._take_signal(_LOOK_EVERY_S) or time.monotonic() >= kill_at_s:
                    process.kill()

    def _send(self, kms_key_id: str, *outgoing: Outgoing, patience_s: float = 0.0) -> list[FastfuseError]:
        base = self._settings.paths.base
        lacks = {
            one.name: f"is not {'all ' if one.is_prefix else ''}in S3 at {one.uri}, and still lies in {one.place}"
            for one in outgoing
        }
        # The record does not wait once more for what the model has waited for in vain.
        silent_s = 0.0 if self._uploader is None else self._uploader.silent_s
        send = partial(send_outputs, outgoing, base, self._session, kms_key_id, silent_s=silent_s)
        try:
            self._uploader = Sender(lambda tell: awake.run(send, tell), lacks)
        except (NoRoomError, OSError) as error:
            failure = error if isinstance(error, FastfuseError) else OutputError(f"no process can be made: {error}")
            return [_not_sent(name, lack, failure) for name, lack in lacks.items()]
        return self._end(self._uploader, patience_s=patience_s)

    def _heed_signal(self) -> None:
        if self._take_signal(_LOOK_EVERY_S):
            self._signals += 1
            if self._signals == 1:
                self._phases.say("The upload goes on; another signal ends it")

    def _end(self, process: Sender, *, patience_s: float = 0.0) -> list[FastfuseError]:
        """Wait for the end of a process, and return what it could not send.

        The second signal since the uploads began stops the process `patience_s` later, and what is sent after it.
        """
        stop_at_s = kill_at_s = math.inf
        while not process.is_over:
            self._heed_signal()
            now_s = time.monotonic()
            if self._signals > 1:
                stop_at_s = min(stop_at_s, now_s + patience_s)
            if now_s >= kill_at_s:
                process.kill()
            elif now_s >= stop_at_s and kill_at_s == math.inf:
                process.cut_off()
                kill_at_s = now_s + _END_S
        self.artifacts |= {name: artifact for name, artifact in process.artifacts.items() if artifact["Files"]}
        return process.failures()

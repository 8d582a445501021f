"""The parent of a job: it prepares the channels side by side, runs the command, and takes everything down again.

It is small and has one thread, because it forks for as long as it lives. Its signals are blocked and taken one at a
time; children announce what they say by a signal, too (SIGIO).

States: starting -> downloading -> training -> stopping -> uploading -> gone. A channel that fails before the command
starts ends the run. A failure later does not disturb other channels: the command itself sees a mount's errors. A FIFO
cannot carry an error, so the command is told to stop when a stream fails.
"""

import logging
import math
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

from fastfuse.errors import FastfuseError, MountError, OutputError
from fastfuse.filesystem.figures.endpoint import MetricsEndpoint
from fastfuse.filesystem.processes.children import STOP_ORDER, Terminals, ended_children, ignore_unheeded, next_signal
from fastfuse.filesystem.processes.sockets import raise_sigio
from fastfuse.metrics import READ_ERRNOS, Counters, mount_labels
from fastfuse.sagemaker.description.channel import Channel, Handling, InputMode, TrainingJob
from fastfuse.sagemaker.environment import count_gpus, script_environment, service_environment
from fastfuse.sagemaker.files import claim_base_dir, directory_at, note_run, put_aside, write_job_files
from fastfuse.sagemaker.outputs.record import job_record, read_failure, write_record
from fastfuse.sagemaker.pipe.fifo import Guard
from fastfuse.sagemaker.run_settings import ChannelTask, RunSettings
from fastfuse.sagemaker.running.delivery import Delivery
from fastfuse.sagemaker.running.guardian import Guardian, sweep
from fastfuse.sagemaker.running.job_processes import ChannelProcess, fork_apart, usage_lines
from fastfuse.sagemaker.running.phases import Outcome, Phase, Phases, Stop, failed, worst
from fastfuse.sagemaker.running.sharing import Members, claim_or_join, has_ended, tell_outcome
from fastfuse.sagemaker.training import CommandProcess, HostNames, adopt_orphans, find_command, ignored_signals

_log = logging.getLogger(__name__)

_STOPPING = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT}
# Those that warn a training script. Slurm sends one of them (`--signal`), and to us alone.
_WARNING = {signal.SIGUSR1, signal.SIGUSR2}
# The order to stop is a child's: blocked in us, it waits until a child that was just forked can take it.
_SIGNALS = _STOPPING | _WARNING | {signal.SIGHUP, signal.SIGCHLD, signal.SIGIO, STOP_ORDER}
# <asm-generic/siginfo.h>: the kernel sent the signal, for a terminal's Ctrl-C or hangup, to the whole process group.
_SI_KERNEL = 0x80
# The time that a channel may need to end after the grace period of its open files.
_TAKE_DOWN_S = 15.0
# Signals announce every event; this catches one that came between two of them.
_LOOK_EVERY_S = 1.0


def run(settings: RunSettings) -> int:
    """Run the job and return the command's exit code; without a command, return 0 once the channels were told to stop.

    Raises:
        FastfuseError: the job could not be prepared, or a stream broke off. Nothing is left behind.
    """
    return _Run(settings).run()


def _opening_lines(job: TrainingJob, channels: tuple[Channel, ...]) -> Iterator[str]:
    """Yield what this host prepares of the job, and what it does not do as SageMaker does."""
    names = ", ".join(f"{channel.name} ({channel.input_mode})" for channel in channels) or "this host gets none"
    yield f"Preparing {len(channels)} channel{'s' * (len(channels) != 1)}: {names}"
    yield from (str(field) for field in job.fields if field.handling is not Handling.DONE)
    if assumed := [channel for channel in channels if channel.is_mode_assumed]:
        names = ", ".join(channel.name for channel in assumed)
        yield f"No InputMode is given for {names}: {assumed[0].input_mode} is taken"


class _Run:
    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        # It names what is put aside, and the note of this run, below the base directory.
        self._name = settings.job.name or time.strftime("run-%Y%m%d-%H%M%S", time.gmtime())
        self._phases = Phases(is_json=settings.is_json)
        self._names = HostNames(settings.cluster, settings.addresses)
        self._counters = {
            one.name: Counters(labels=mount_labels(settings.paths.channel(one.name), one.bucket))
            for one in settings.channels
        }
        self._endpoint = MetricsEndpoint(settings.metrics_listen, self._counters, fork_apart)
        self._channels: list[ChannelProcess] = []
        self._command: CommandProcess | None = None
        self._guardian: Guardian | None = None
        # The runs that share our channels, or the run whose channels we share; None unless the run is shared.
        self._members: Members | None = None
        self._owner: socket.socket | None = None
        self._started_at = time.time()
        self._terminals = Terminals()
        # A signal that the caller ignores (nohup, a shell's background) stays ignored: blocked, it would be taken.
        self._signals = _SIGNALS - ignored_signals()
        # The first reason to stop. A Ctrl-C is one if the command ends by then, or later by it.
        self._stop: Stop | None = None
        self._interrupted_until_s = -math.inf
        self._lost: set[str] = set()  # channels that ended by themselves and were logged
        runtime_s = settings.job.max_runtime_s
        # MaxRuntimeInSeconds counts from the start, downloads included, as SageMaker's TrainingStartTime.
        self._end_at_s = math.inf if runtime_s is None else time.monotonic() + runtime_s
        self._was_ready = False  # from then on the job may have made something
        self._delivery = Delivery(settings, self._phases, self._take_signal)

    def run(self) -> int:
        ignore_unheeded()
        first, *others = _opening_lines(self._settings.job, self._settings.channels)
        self._phases.enter(Phase.STARTING, first)
        self._delivery.say_where()
        for line in (*others, *self._names.lines()):
            self._phases.say(line)
        try:
            outcome = self._run_and_take_down()
        except FastfuseError as error:
            outcome = failed(error)
        self._phases.enter(outcome.phase, outcome.text)
        for line in (self._phases.timings(), *usage_lines(self._channels)):
            self._phases.say(line)
        if outcome.error is not None:
            raise outcome.error
        return outcome.exit_code

    def _run_and_take_down(self) -> Outcome:
        settings = self._settings
        program = find_command(settings.command, settings.environment) if settings.command else ""
        claimed = claim_or_join(settings) if settings.is_shared else claim_base_dir(settings.paths)
        if not isinstance(claimed, int):
            return self._run_as_member(claimed, program)
        with ExitStack() as exits:
            exits.callback(os.close, claimed)
            if settings.is_shared:
                input_fd = exits.enter_context(directory_at(settings.paths.input, settings.paths.base))
                self._members = Members(settings, input_fd)
            # After the claim: of the runs that share the channels, one can have the address.
            exits.callback(self._endpoint.close)
            self._endpoint.open()
            self._make_place()
            outcome = self._run_in_place(program)
            self._record(outcome)
            return outcome

    def _run_as_member(self, owner: socket.socket, program: str) -> Outcome:
        signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        self._owner = owner
        raise_sigio(owner)
        adopt_orphans()
        outcome = self._train(program, self._environment())
        tell_outcome(owner, outcome)
        return outcome

    def _make_place(self) -> None:
        settings = self._settings
        # A run whose whole control group was killed at once left these.
        sweep(settings.channels, settings.paths.data)
        aside = put_aside(
            settings.paths,
            self._name,
            keeps=settings.keeps,
            fetches_code=settings.job.fetches_code,
            synced=settings.synced_places,
        )
        if aside is not None:
            self._phases.say(f"What the earlier run left is in {aside}")
        write_job_files(settings.job, settings.cluster, settings.paths)

    def _record(self, outcome: Outcome) -> None:
        """Write the record of the job, here and beside its outputs, and print why the script says it failed."""
        settings = self._settings
        is_script = outcome.exit_code != 0 and self._command is not None
        failure = read_failure(settings.paths, self._started_at) if is_script else ""
        if failure:
            self._phases.say(f"the script's failure: {failure}")
        accounts = [channel.account() for channel in self._channels]
        record = job_record(
            *(settings.job, settings.cluster, accounts),
            status=outcome.phase.status,
            secondary_status=outcome.phase.value,
            exit_code=outcome.exit_code,
            failure_reason=failure or (outcome.text if outcome.phase is Phase.FAILED else ""),
            times=(self._started_at, time.time()),
            phase_s=self._phases.seconds(),
            artifacts=self._delivery.artifacts,
        )
        with suppress(OSError):  # again, for the script may have removed everything; as told next
            note_run(settings.paths, self._name, settings.synced_places)
        data = write_record(record, self._phases.begins, accounts, settings.paths)
        if self._was_ready:
            self._delivery.deliver_record(data)

    def _run_in_place(self, program: str) -> Outcome:
        settings = self._settings
        # They stay blocked until the end: a late signal must not replace the exit code.
        signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        adopt_orphans()
        self._guardian = Guardian(
            settings.channels,
            settings.paths.data,
            stop_timeout_s=settings.stop_timeout_s,
            not_done=self._delivery.not_done(),
            listener=self._endpoint.listener,
        )
        begin_fd = os.eventfd(0)  # all channels are ready; their processes inherit it
        try:
            try:
                outcome = self._run_to_the_end(program, self._guardian.guard, begin_fd)
            except Exception as error:  # noqa: BLE001 - logged
                # A defect of ours, or a limit that was met meanwhile, must not cost the job its model.
                _log.exception("the run failed")
                outcome = failed(FastfuseError(f"unforeseen: {error!r}", hint="report it with the lines above"))
            return self._deliver(outcome) if self._was_ready else outcome
        finally:
            if not self._was_ready:
                self._delivery.give_up()
            self._guardian.dismiss()
            os.close(begin_fd)

    def _run_to_the_end(self, program: str, guard: Guard, begin_fd: int) -> Outcome:
        try:
            environment = self._prepare(guard, begin_fd)
            stop = self._get_ready()
            if stop is not None:
                return Outcome(stop.phase, f"{stop.text} before everything was ready", 128 + stop.number)
            self._was_ready = True
            os.eventfd_write(begin_fd, 1)
            if self._members is not None:
                self._members.welcome()
            return self._train(program, environment) if self._settings.command else self._stay_up()
        except FastfuseError as error:
            return failed(error)
        finally:
            if self._members is not None:
                self._members.close()  # first: whoever is let in reads from the channels
            self._take_down()

    def _prepare(self, guard: Guard, begin_fd: int) -> dict[str, str]:
        """Begin to prepare the channels, and return the environment of the command."""
        settings = self._settings
        for channel in settings.channels:
            task = ChannelTask(channel, settings, begin_fd, guard)
            self._channels.append(ChannelProcess(task, self._counters[channel.name]))
        self._delivery.begin()
        self._phases.enter(Phase.DOWNLOADING, "Preparing the input data")
        # Meanwhile, for a driver with many GPUs takes seconds to answer.
        return self._environment() if settings.command else {}

    def _environment(self) -> dict[str, str]:
        """Return the environment of the command: our own and the job's."""
        settings = self._settings
        cpus, gpus = len(os.sched_getaffinity(0)), count_gpus()
        made = script_environment(settings.job, settings.cluster, settings.paths, cpu_count=cpus, gpu_count=gpus)
        return {**settings.environment, **service_environment(settings.environment, settings.connection), **made}

    def _get_ready(self) -> Stop | None:
        """Wait until every channel can be read; return why not if we are told to stop first."""
        while not (self._delivery.is_ready and all(channel.is_ready for channel in self._channels)):
            self._take_signal(self._look_again_s)
            for failure in (*self._failures(), self._delivery.failure):
                if failure is not None:
                    raise failure
            if (stop := self._reason_to_stop()) is not None:
                return stop
        return None

    def _reason_to_stop(self) -> Stop | None:
        """Return why the job has to end now, if it has to."""
        if self._stop is None and time.monotonic() >= self._end_at_s:
            text = f"after MaxRuntimeInSeconds, which is {self._settings.job.max_runtime_s}"
            self._stop = Stop(Phase.MAX_RUNTIME_EXCEEDED, text)
        return self._stop

    @property
    def _look_again_s(self) -> float:
        """The longest wait for a signal: until the next look around, or until the job has to end."""
        return max(0.0, min(_LOOK_EVERY_S, self._end_at_s - time.monotonic()))

    def _train(self, program: str, environment: dict[str, str]) -> Outcome:
        """Run the command from its start to its end; raise the failure of a stream, for which it was told to end."""
        settings = self._settings
        self._phases.enter(Phase.TRAINING, f"Running {settings.command[0]}")
        command = self._command = CommandProcess(program, settings.command, environment, self._names)
        if self._guardian is not None:
            self._guardian.heed(command.pid)
        broken: list[FastfuseError] = []
        while not command.is_over:
            self._take_signal(self._look_again_s if command.left_s is None else min(command.left_s, _LOOK_EVERY_S))
            if command.left_s is None and (stop := self._reason_to_stop()) is not None:
                self._phases.say(f"The command is told to end {stop.text}")
                command.stop(signal.SIGTERM, settings.stop_timeout_s)
            self._note_losses()
            if not broken and (broken := self._losses()):
                _log.error("%s; the command cannot know, and is told to end", broken[0])
                command.stop(signal.SIGTERM, settings.stop_timeout_s)
            command.enforce()
        if self._interrupted_until_s > (-math.inf if command.exit_code == 128 + signal.SIGINT else time.monotonic()):
            self._stop = self._stop or Stop(Phase.STOPPED, "by SIGINT", signal.SIGINT)
        while command.press_leftovers(settings.stop_timeout_s, [*self._delivery.pids, self._endpoint.pid]):
            self._take_signal(_LOOK_EVERY_S)
        self._outlast_members()
        if broken:
            raise broken[0]
        phase, text = Phase.FAILED if command.exit_code else Phase.COMPLETED, command.describe_end()
        text += self._failed_reads() if command.exit_code else ""
        if self._stop is not None:
            phase, text = self._stop.phase, f"{self._stop.text}: {text}"
        outcome = Outcome(phase, text, command.exit_code)
        return outcome if self._members is None else worst(outcome, self._members.outcomes)

    def _failed_reads(self) -> str:
        """Return which reads failed, as the command may have because of them; the log has the object of each kind."""
        return "".join(
            f"; reads of channel {name} failed with {number}, for the reason in the log"
            for name, counters in self._counters.items()
            for number in READ_ERRNOS
            if counters.get("fastfuse_errors", number)
        )

    def _losses(self) -> list[FastfuseError]:
        """Return the losses that the command cannot see for itself: of a stream, or of the run that has the mounts."""
        if self._owner is not None and has_ended(self._owner):
            return [MountError(f"the run that prepared the channels has ended{self._delivery.not_done()}")]
        return self._failures(InputMode.PIPE)

    def _outlast_members(self) -> None:
        """Keep the channels up for the runs that share them, which stop their commands as we do ours."""
        if self._members is None:
            return
        if self._members.look():
            self._phases.say("Keeping the channels up for the other runs of this host")
        end_at_s = math.inf
        while self._members.look() and time.monotonic() < end_at_s:
            self._take_signal(_LOOK_EVERY_S)
            if end_at_s == math.inf and self._reason_to_stop() is not None:
                end_at_s = time.monotonic() + self._settings.stop_timeout_s

    def _stay_up(self) -> Outcome:
        """Serve without a command until we are told to stop, or no channel serves any more; raise what failed then."""
        self._phases.enter(Phase.TRAINING, "All channels are ready; SIGTERM or Ctrl-C ends it")
        while self._reason_to_stop() is None and any(channel.exit_code is None for channel in self._channels):
            self._take_signal(self._look_again_s)
            self._note_losses()
        for failure in self._failures():
            raise failure
        stop = self._reason_to_stop() or Stop(Phase.COMPLETED, "nothing is left to be served")
        return Outcome(stop.phase, stop.text, 0)

    def _take_signal(self, timeout_s: float) -> bool:
        """Wait for the next signal, do what it asks for, and take in what children say and how they end.

        Return whether the signal tells us to stop.
        """
        caught = next_signal(self._signals, timeout_s)
        self._reap()
        for channel in self._channels:
            channel.listen(self._phases)
        self._delivery.listen()
        if self._members is not None:
            self._members.look()
        self._endpoint.go_on()
        has_hung_up = self._terminals.have_hung_up()
        if caught is None or caught.si_signo not in _STOPPING | _WARNING | {signal.SIGHUP}:
            return False
        number = signal.Signals(caught.si_signo)
        if number in _WARNING:
            if self._command is not None:
                self._command.send(number)
            return False
        is_lost = number == signal.SIGHUP and has_hung_up
        if number == signal.SIGHUP and not is_lost:
            for channel in self._channels:
                channel.refresh()
            return False
        has_it = is_lost or caught.si_code == _SI_KERNEL
        if number == signal.SIGINT and has_it and self._command is not None and not self._command.is_over:
            # An interactive command goes on: Ctrl-C interrupts what it does.
            self._interrupted_until_s = time.monotonic() + self._settings.stop_timeout_s
            return False
        self._stop = self._stop or Stop(Phase.STOPPED, f"by {number.name}", number)
        if self._command is not None:
            self._command.stop(number, self._settings.stop_timeout_s, has_it=has_it)
        return True

    def _reap(self) -> None:
        for pid, exit_code in ended_children():
            if self._command is not None and pid == self._command.pid:
                self._command.ended(exit_code)
            for channel in self._channels:
                if channel.pid == pid:
                    channel.ended(exit_code, self._phases)
            self._delivery.ended(pid, exit_code)
            self._endpoint.child_ended(pid, exit_code)

    def _failures(self, mode: InputMode | None = None) -> list[FastfuseError]:
        found = (channel.failure for channel in self._channels if mode in {None, channel.channel.input_mode})
        return [failure for failure in found if failure is not None]

    def _note_losses(self) -> None:
        """Log once of each channel that it ended by itself; readers of its mount get errors."""
        for channel in self._channels:
            name = channel.channel.name
            if channel.exit_code is None or name in self._lost:
                continue
            self._lost.add(name)
            if channel.failure is not None:
                _log.error("%s; the other channels go on", channel.failure)
            elif channel.channel.input_mode is InputMode.FAST_FILE:
                _log.error("channel %s was unmounted; the other channels go on", name)

    def _take_down(self) -> None:
        """End every channel, by force if need be, and clear what it leaves."""
        alive = [channel for channel in self._channels if channel.exit_code is None]
        if alive:
            self._phases.enter(Phase.STOPPING, f"Taking down {', '.join(channel.channel.name for channel in alive)}")
        if self._command is not None:
            self._command.kill()  # still there only if we fail for an unforeseen reason
        for channel in self._channels:
            channel.stop()
        kill_at_s = time.monotonic() + self._settings.grace_s + _TAKE_DOWN_S
        while awaited := [channel for channel in self._channels if not channel.is_over]:
            is_told_again = self._take_signal(_LOOK_EVERY_S)
            for channel in awaited:
                if time.monotonic() >= kill_at_s:
                    channel.kill()
                elif is_told_again:  # do not wait for open files
                    channel.stop()
        for channel in self._channels:
            if channel.exit_code is None:
                _log.error("channel %s: its process %s", channel.channel.name, channel.how_it_ended)
        sweep(self._settings.channels, self._settings.paths.data)

    def _deliver(self, outcome: Outcome) -> Outcome:
        """Send what the job has made to S3, however it ended; return an outcome with the error if that fails."""
        try:
            failures = self._delivery.deliver(outcome.phase.status)
        except Exception as error:  # noqa: BLE001 - logged
            _log.exception("the upload failed")
            failures = [OutputError(f"unforeseen: {error!r}{self._delivery.not_done()}")]
        if not failures:
            return outcome
        failures += [outcome.error] if outcome.error is not None else []
        for failure in failures[1:]:
            _log.error("%s", failure)
        self._phases.say(f"{outcome.phase}: {outcome.text}")  # whatever the command returned
        return failed(failures[0])

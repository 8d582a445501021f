"""The phases of a job with their seconds, as SageMaker's console prints them, the progress of transfers, and the end.

Names and UTC times are those of ``SecondaryStatusTransitions``
(https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_SecondaryStatusTransition.html).

A terminal that is gone, or that nobody reads, holds nothing up.
"""

import logging
import signal
import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple

from fastfuse.errors import FastfuseError
from fastfuse.filesystem.figures.recorder import moment
from fastfuse.index.progress import progress_line
from fastfuse.log import UnblockedStderr
from fastfuse.sizes import format_size

_log = logging.getLogger(__name__)


class Phase(StrEnum):
    """The phases of a job, and the ways in which it ends."""

    STARTING = "Starting"
    DOWNLOADING = "Downloading"
    TRAINING = "Training"
    STOPPING = "Stopping"
    UPLOADING = "Uploading"
    COMPLETED = "Completed"
    FAILED = "Failed"
    STOPPED = "Stopped"
    MAX_RUNTIME_EXCEEDED = "MaxRuntimeExceeded"

    @property
    def status(self) -> str:
        """The ``TrainingJobStatus`` of a job that ended so."""
        return "Stopped" if self is Phase.MAX_RUNTIME_EXCEEDED else self.value


class Outcome(NamedTuple):
    """The way in which the run ended."""

    phase: Phase
    text: str
    exit_code: int
    # Raised in the end.
    error: FastfuseError | None = None


def failed(error: FastfuseError) -> Outcome:
    """Return the outcome of a run that `error` ended."""
    return Outcome(Phase.FAILED, str(error), error.exit_code, error)


def worst(own: Outcome, others: Iterable[Outcome]) -> Outcome:
    """Return the outcome of a host whose commands ended in these ways; the exit code is our `own` unless that is 0."""
    best_first = ("Completed", "Stopped", "Failed")
    found = max((own, *others), key=lambda one: best_first.index(one.phase.status))
    return found._replace(exit_code=own.exit_code or found.exit_code)


class Stop(NamedTuple):
    """The reason why the job has to end: a signal, or the clock."""

    phase: Phase
    text: str
    number: signal.Signals = signal.SIGTERM


class Phases:
    """The current phase of a job, and the seconds of those before."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        self._stderr = UnblockedStderr()
        # Each phase with its begin, in seconds since 1970.
        self.begins: list[tuple[str, float]] = []
        self._took_s: dict[Phase, float] = {}
        self._now: Phase | None = None
        self._since_s = time.monotonic()
        # A function tells of each transfer, under the name of what is transferred.
        self._progress: dict[str, Callable[[Callable[[], str]], None]] = {}

    def enter(self, phase: Phase, text: str) -> None:
        """Begin `phase` and stop the clock of the one before."""
        now_s = time.monotonic()
        if self._now is not None:
            self._took_s[self._now] = self._took_s.get(self._now, 0.0) + now_s - self._since_s
        if phase is not self._now:
            self.begins.append((phase.value, moment()))
        self._now, self._since_s = phase, now_s
        self.say(text)

    def say(self, text: str) -> None:
        assert self._now is not None
        if self._is_json:
            _log.info("%s", text, extra={"phase": self._now.value})
        else:
            self._stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} {self._now} - {text}")

    def timings(self) -> str:
        return ", ".join(f"{phase} {took_s:.1f} s" for phase, took_s in self._took_s.items())

    def seconds(self) -> dict[str, float]:
        assert self._now is not None
        now = {self._now: self._took_s.get(self._now, 0.0) + time.monotonic() - self._since_s}
        return {phase.value: took_s for phase, took_s in (self._took_s | now).items()}

    def progress(self, name: str, done_bytes: int, total_bytes: int) -> None:
        """Say now and then how far a download or an upload is."""
        if name not in self._progress:
            self._progress[name] = progress_line(name, self.say)
        percent = f" ({done_bytes / total_bytes:.0%})" if total_bytes else ""
        self._progress[name](lambda: f"{format_size(done_bytes)} of {format_size(total_bytes)}{percent}")

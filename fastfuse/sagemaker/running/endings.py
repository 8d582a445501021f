"""How a run ends, and why."""

import signal
from typing import NamedTuple

from fastfuse.errors import FastfuseError
from fastfuse.sagemaker.running.phases import Phase


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


class Stop(NamedTuple):
    """The reason why the job has to end: a signal, or the clock."""

    phase: Phase
    text: str
    number: signal.Signals = signal.SIGTERM

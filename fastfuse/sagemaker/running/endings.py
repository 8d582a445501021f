"""How a run ends, and why."""

import signal
from collections.abc import Iterable
from typing import NamedTuple

from fastfuse.errors import FastfuseError
from fastfuse.sagemaker.running.phases import Phase

_BEST_FIRST = ("Completed", "Stopped", "Failed")


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
    found = max((own, *others), key=lambda one: _BEST_FIRST.index(one.phase.status))
    return found._replace(exit_code=own.exit_code or found.exit_code)


class Stop(NamedTuple):
    """The reason why the job has to end: a signal, or the clock."""

    phase: Phase
    text: str
    number: signal.Signals = signal.SIGTERM

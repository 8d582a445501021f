"""The clock of trio's loops, while this process runs and while it is stopped."""

from functools import partial
from math import inf
from pathlib import Path

import pytest

from fastfuse import awake
from fastfuse.awake import LONGEST_STEP_S, AwakeClock


@pytest.mark.parametrize(
    ("looks_s", "shown_s"),
    [
        ([float(second) for second in range(60)], 59.0),
        # A busy machine delays the loop.
        ([LONGEST_STEP_S, 2 * LONGEST_STEP_S], 2 * LONGEST_STEP_S),
        # The process is stopped, once or again.
        ([1.0, 3600.0], 1.0 + LONGEST_STEP_S),
        ([1.0, 3600.0, 3601.0], 2.0 + LONGEST_STEP_S),
        ([1.0, 3600.0, 7200.0], 1.0 + 2 * LONGEST_STEP_S),
    ],
)
def test_a_time_in_which_the_process_was_stopped_does_not_pass(
    looks_s: list[float], shown_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awake, "perf_counter", partial(next, iter([0.0, *looks_s])))
    clock = AwakeClock()
    assert [clock.current_time() for _ in looks_s][-1] == shown_s


@pytest.mark.parametrize("deadline_s", [100.0, inf])
def test_a_loop_looks_often_enough_while_it_waits_for_long(deadline_s: float) -> None:
    assert AwakeClock().deadline_to_sleep_time(AwakeClock().current_time() + deadline_s) < LONGEST_STEP_S


def test_every_loop_with_requests_that_a_job_waits_for_has_this_clock() -> None:
    """Those of the doctor, of advice, of credentials and of trials are asked again if they come to nothing."""
    root = Path(awake.__file__).parent
    running = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        for line in path.read_text().splitlines()
        if "trio.run(" in line
    }
    assert running == {
        "advise/probe.py",
        "awake.py",
        "doctor/steps.py",
        "filesystem/kernel/session.py",
        "filesystem/processes/credential_finder.py",
    }

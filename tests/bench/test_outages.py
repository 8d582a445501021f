"""That the measurement counts what it says, and tells what is bad; how good the figures are is no test's matter."""

import subprocess
import sys
from typing import Any

import pytest

from bench.outages import main, outage_findings, throttling_findings

# Fewer files, and shorter times around what is measured.
_SMALL = """
import sys
from bench import outages
from bench.soak.data import Kind
outages._KIND, outages._FIRST_S, outages._AROUND_S = Kind("small/", 2000, 4096, 16_384), 0.1, 0.3
sys.exit(outages.main(sys.argv[1:]))
"""


@pytest.mark.fuse
def test_a_short_throttling_and_a_short_outage_are_measured() -> None:
    words = [sys.executable, "-c", _SMALL, "--throttle", "200", "--seconds", "1", "--outage", "0.5", "--refusal", "0.2"]
    done = subprocess.run([*words, "--readers", "4"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 1), done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("finding: ")]
    throttling, outage, refusal = lines
    assert throttling.startswith("throttling: per_s 200, goodput ")
    assert "failed 0" in throttling
    assert outage.startswith("outage: seconds 0.5, errors {}, first_error_after_s None")
    assert refusal.startswith("refusal: seconds 0.2, errors {}, first_error_after_s None")


GOOD_THROTTLING = {"goodput": 1.0, "waste": 0.04, "failed": 0}
SHORT: dict[str, Any] = {
    "seconds": 50, "errors": {}, "failed_within_s": None, "errors_after_it_was_back": 0,
    "waiting_reads_ended_within_s": 4.0, "new_reads_after_it": 9, "slowest_new_read_s": 0.1,
}  # fmt: skip
LONG = SHORT | {"seconds": 100, "errors": {"EIO": 16}, "failed_within_s": 60.0, "waiting_reads_ended_within_s": None}


@pytest.mark.parametrize("bad", [{}, {"goodput": 0.89}, {"waste": 0.051}, {"failed": 1}])
def test_a_rate_that_is_not_used_or_passed_is_a_finding(bad: dict[str, float]) -> None:
    assert len(throttling_findings(GOOD_THROTTLING | bad)) == len(bad)


@pytest.mark.parametrize(
    ("figures", "bad"),
    [
        (SHORT, {}),
        (SHORT, {"errors": {"EIO": 1}, "failed_within_s": 49.0}),
        (SHORT, {"waiting_reads_ended_within_s": 11.0}),
        (SHORT, {"new_reads_after_it": 0}),
        (SHORT, {"slowest_new_read_s": 2.5}),
        (LONG, {}),
        (LONG, {"errors": {"ESTALE": 1}}),
        (LONG, {"errors": {}}),
        (LONG, {"failed_within_s": 120.0}),
        (LONG, {"errors_after_it_was_back": 1}),
    ],
)
def test_what_an_outage_may_not_lead_to_is_a_finding(figures: dict[str, Any], bad: dict[str, Any]) -> None:
    assert len(outage_findings(figures | bad)) == bool(bad)


def test_nothing_to_measure_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "say what to measure with --throttle, --outage or --refusal" in capsys.readouterr().err

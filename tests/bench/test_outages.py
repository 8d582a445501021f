"""That the measurement counts what it says, and tells what is bad; how good the figures are is no test's matter."""

import subprocess
import sys

import pytest

from bench.outages import main

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


def test_nothing_to_measure_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "say what to measure with --throttle, --outage or --refusal" in capsys.readouterr().err

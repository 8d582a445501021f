"""The smallest matrix, to see that the bench measures what it says; how fast anything is, is not a test's matter."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.candidates import CANDIDATES, Limits
from bench.report import verdicts
from bench.suite import Plan, Run
from bench.workloads import WORKLOADS, Scale
from fastfuse.testing import Pace

SMALLEST = ["--runs", "1", "--shard-size", "3MiB", "--small-files", "16", "--random-reads", "8"]
SMALLEST += ["--first-byte-ms", "0", "--rate", "0", "--memory-target", "128MiB", "--server-processes", "1"]


@pytest.mark.fuse
def test_every_candidate_reads_every_workload_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "results" / "out"
    assert main([*SMALLEST, "--workloads", "all", "--output", str(output)]) == 0
    document = json.loads(output.with_suffix(".json").read_text())
    figures = {(run["workload"], run["candidate"]): run for run in document["runs"]}
    assert set(figures) == {(workload, candidate) for workload in WORKLOADS for candidate in CANDIDATES}
    expected_bytes = {
        "sequential-1": 3 << 20, "sequential-4": 12 << 20, "warm-4": 12 << 20, "random-4": 8 * 128 * 1024,
        "small-8": 16 * 39_000, "small-shuffled-8": 16 * 39_000,
    }  # fmt: skip
    assert {workload: run["size_bytes"] for (workload, _), run in figures.items()} == expected_bytes
    assert {run["files"] for (workload, name), run in figures.items() if "small" in workload and name != "raw"} == {16}
    assert all(0 < run["span_s"] <= run["span_p99_s"] <= run["elapsed_s"] for run in figures.values())
    assert all(0 <= run["cpu_s"] < 60 for run in figures.values())
    assert all(10 << 20 < run["peak_bytes"] < 1 << 30 for run in figures.values())
    assert capsys.readouterr().out == output.with_suffix(".md").read_text() + "\n"


def test_a_workload_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--workloads", "sequential-2"])
    assert "no such workload or candidate: sequential-2" in capsys.readouterr().err


class TestVerdicts:
    PLAN = Plan(
        workloads=[WORKLOADS["sequential-1"]],
        candidates=["raw", "fastfuse"],
        runs=3,
        scale=Scale(),
        pace=Pace(),
        limits=Limits(memory_target_bytes=1 << 30),
    )
    RAW = Run(
        workload="sequential-1", candidate="raw", size_bytes=10**9, elapsed_s=1.0, files=0, spans=1, cpu_s=1.0,
        peak_bytes=1, first_byte_s=0.0, span_s=1.0, span_p99_s=1.0,
    )  # fmt: skip

    @pytest.mark.parametrize(("elapsed_s", "is_met"), [((1.0, 2.5, 9.0), True), ((1.0, 3.0, 3.0), False)])
    def test_the_medians_of_the_runs_are_compared(self, elapsed_s: tuple[float, ...], is_met: bool) -> None:
        runs = [self.RAW, *(replace(self.RAW, candidate="fastfuse", elapsed_s=each_s) for each_s in elapsed_s)]
        speed, _ = verdicts(runs, self.PLAN)
        assert (speed.text.startswith("sequential-1: fastfuse / raw = 0."), speed.is_met) == (True, is_met)

    @pytest.mark.parametrize(("over_bytes", "is_met"), [(0, True), (1, False)])
    def test_the_highest_peak_of_memory_counts(self, over_bytes: int, is_met: bool) -> None:
        limit_bytes = (1 << 30) + 150 * (1 << 20)
        runs = [replace(self.RAW, candidate="fastfuse", peak_bytes=size) for size in (1, limit_bytes + over_bytes, 1)]
        (memory,) = verdicts(runs, self.PLAN)
        assert memory.is_met == is_met

    def test_what_was_not_measured_has_no_verdict(self) -> None:
        assert verdicts([self.RAW], self.PLAN) == []

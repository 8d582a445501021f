"""What is made of runs that nobody measured: verdicts, tables, plots."""

import sys
from pathlib import Path

import pytest

from bench import plots
from bench.report import as_markdown
from bench.results import Results, Run
from bench.suite import Measured, Plan
from bench.verdicts import Verdict, verdicts

MIB = 1 << 20


def run(profile: str, workload: str, candidate: str, *, mb_per_s: float = 1000.0, **figures: float) -> Run:
    """A GB in 100 reads."""
    values = {"size_bytes": 10**9, "elapsed_s": 1000 / mb_per_s, "spans": 100, "fetched_bytes": 10**9}
    return Run(profile=profile, workload=workload, candidate=candidate, **(values | figures))  # type: ignore[arg-type]


def judged(*runs: Run, about: str) -> Verdict:
    """The one verdict whose text has `about` in it."""
    (found,) = (verdict for verdict in verdicts(Results(runs)) if about in verdict.text)
    return found


def test_what_was_not_measured_has_no_verdict() -> None:
    assert verdicts(Results([])) == []
    assert verdicts(Results([run("fast", "sequential-1", "raw"), run("fast", "sequential-1", "fastfuse")])) == []


@pytest.mark.parametrize(("unchecked", "is_met"), [(250, True), (251, False)])
def test_the_best_rclone_is_the_one_to_beat(unchecked: float, is_met: bool) -> None:
    cell = ("s3", "sequential-1")
    speeds = {"fastfuse": 1000.0, "rclone": 100.0, "rclone-unchecked": unchecked}
    verdict = judged(*(run(*cell, name, mb_per_s=speed) for name, speed in speeds.items()), about="rclone")
    assert (verdict.bound, verdict.is_met) == (4.0, is_met)
    assert verdict.text.endswith(f"rclone-unchecked {unchecked}")


ONE, FOUR, FIRST = ("s3", "sequential-1"), ("s3", "sequential-4"), ("s3", "first-byte")
# The highest peak of memory counts, and one request in a second epoch is one too many.
HELD = {
    "64 files open": [run("s3", "open-64", "fastfuse-512MiB", peak_bytes=peak) for peak in (1, 512 * MIB, 1)],
    "first byte": [run(*FIRST, "fastfuse", first_byte_s=0.039), run(*FIRST, "raw", span_s=0.030)],
    "requests": [run("s3", "warm-4", "fastfuse", requests=0) for _ in range(2)],
    "fastfuse-512MiB 900": [run(*FOUR, "fastfuse"), run(*FOUR, "fastfuse-512MiB", mb_per_s=900)],
    "raw client": [run(*ONE, "fastfuse", cpu_s=1.5, readers_cpu_s=5.0), run(*ONE, "raw", cpu_s=1.0)],
    "random-4-256k: bytes": [run("s3", "random-4-256k", "fastfuse", fetched_bytes=1.14e9)],
    "eighths-8: bytes": [run("s3", "eighths-8", "fastfuse", fetched_bytes=1.01e9)],
    "again-1: bytes": [run("s3", "again-1", "fastfuse", fetched_bytes=0.339e9)],
}
MISSED = {
    "64 files open": [run("s3", "open-64", "fastfuse-512MiB", peak_bytes=peak) for peak in (1, 512 * MIB + 1, 1)],
    "first byte": [run(*FIRST, "fastfuse", first_byte_s=0.039), run(*FIRST, "raw", span_s=0.029)],
    "requests": [run("s3", "warm-4", "fastfuse", requests=requests) for requests in (0, 0, 1)],
    "fastfuse-512MiB 890": [run(*FOUR, "fastfuse"), run(*FOUR, "fastfuse-512MiB", mb_per_s=890)],
    "raw client": [run(*ONE, "fastfuse", cpu_s=1.6, readers_cpu_s=5.0), run(*ONE, "raw", cpu_s=1.0)],
    "random-4-256k: bytes": [run("s3", "random-4-256k", "fastfuse", fetched_bytes=1.16e9)],
    "eighths-8: bytes": [run("s3", "eighths-8", "fastfuse", fetched_bytes=1.03e9)],
    "again-1: bytes": [run("s3", "again-1", "fastfuse", fetched_bytes=0.341e9)],
}


def test_each_target_is_met_up_to_its_bound() -> None:
    assert {about: judged(*runs, about=about).is_met for about, runs in HELD.items()} == dict.fromkeys(HELD, True)
    assert {about: judged(*runs, about=about).is_met for about, runs in MISSED.items()} == dict.fromkeys(MISSED, False)


@pytest.mark.parametrize(("workload", "readers", "read_bytes", "least"), [
    ("random-4-256k", 4, 256 << 10, 0.85), ("small-16-shuffled", 16, 39_000, 0.8), ("small-1", 1, 39_000, 20),
])  # fmt: skip
def test_reads_one_by_one_are_compared_with_what_the_delay_allows(
    workload: str, readers: int, read_bytes: int, least: float
) -> None:
    wait_s = 0.020 + read_bytes / 90e6
    for share, is_met in ((least + 0.01, True), (least - 0.01, False)):
        # 100 reads take this long at that share of the bound.
        elapsed_s = 100 / (share * readers / wait_s)
        verdict = judged(run("s3", workload, "fastfuse", elapsed_s=elapsed_s), about="a GET at a time")
        assert (round(verdict.value, 2), verdict.is_met) == (round(share, 2), is_met)


MEASURED = Measured(
    runs=[
        run("s3", "sequential-1", "raw", mb_per_s=2000, cpu_s=1.0),
        run("s3", "sequential-1", "fastfuse", mb_per_s=900, cpu_s=1.25, readers_cpu_s=0.5, peak_bytes=3 << 20),
        run("s3", "sequential-1", "fastfuse", mb_per_s=900, cpu_s=1.25, readers_cpu_s=0.5, peak_bytes=3 << 20),
        run("fast", "small-1", "fastfuse", span_s=0.0015, cpu_s=0.1),
    ],
    notes={"goofys": "is not on the PATH"},
)


def test_tables_have_medians_ratios_and_cpu_times_after_targets_and_what_is_left_out() -> None:
    head, bulk, small = as_markdown(MEASURED, Plan(cells=[]), {"cores": "4"}, 120).split("## Server ")
    assert head.startswith("cores 4.\n")
    assert "4 runs in 2.0 minutes" in head
    assert "| throughput | s3 sequential-1: fastfuse 900 MB/s / raw 2000 | 0.45 | ≥ 0.5 | **missed** |" in head
    assert "| CPU | s3 sequential-1: daemon 1.25 s/GB / raw client 1.00 | 1.25 | ≤ 1.5 | met |" in head
    assert "- left out: goofys is not on the PATH" in head
    assert "| runs | MB/s | fastfuse / it | first byte ms | CPU s/GB | readers' CPU s/GB | server's CPU s/GB |" in bulk
    assert "| raw | 1 | 2,000 | 0.45 | 0.0 | 1.00 | 0.00 | 0.00 | 2.0 | 0 | 0 | 1.00 |\n" in bulk
    assert "| fastfuse | 2 | 900 | 1.00 | 0.0 | 1.25 | 0.50 | 0.00 | 1.6 | 3 | 0 | 1.00 |\n" in bulk
    assert "| runs | files/s | fastfuse / it | first byte ms | median ms | p99 ms | CPU ms each |" in small
    assert "| fastfuse | 1 | 100 | 1.00 | 0.00 | 1.50 | 0.0 | 1.00 | 0.00 | 0.00 | 0.1 | 0 | 0 | 1.00 |\n" in small


def test_without_matplotlib_there_are_no_plots_and_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    results = Results([run("s3", "sequential-1", "fastfuse")])
    assert "matplotlib is not installed" in plots.write(results, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []

"""What is made of runs that nobody measured: verdicts and tables."""

from bench.report import as_markdown
from bench.results import Run
from bench.suite import Measured, Plan

MIB = 1 << 20


def run(profile: str, workload: str, candidate: str, *, mb_per_s: float = 1000.0, **figures: float) -> Run:
    """A GB in 100 reads."""
    values = {"size_bytes": 10**9, "elapsed_s": 1000 / mb_per_s, "spans": 100, "fetched_bytes": 10**9}
    return Run(profile=profile, workload=workload, candidate=candidate, **(values | figures))  # type: ignore[arg-type]


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

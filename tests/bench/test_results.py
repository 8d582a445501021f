from bench.results import Results
from tests.bench.runs import run


def test_figures_go_by_bytes_by_reads_and_by_time() -> None:
    one = run("s3", "sequential-1", "fastfuse", mb_per_s=500, cpu_s=3.0, readers_cpu_s=1.0, server_cpu_s=0.5)
    assert (one.mb_per_s, one.spans_per_s) == (500, 50)
    assert Results([one]).median("s3", "sequential-1", "fastfuse", "cpu_s", per="gb") == 3.0
    assert Results([one]).median("s3", "sequential-1", "fastfuse", "cpu_s", per="spans") == 0.03
    assert (one.busy_cores, one.fetched_share) == (2.25, 1.0)


def test_a_median_is_of_one_candidate_in_one_cell() -> None:
    results = Results(
        [
            *(run("s3", "sequential-1", "fastfuse", mb_per_s=speed) for speed in (1000, 100, 500)),
            run("fast", "sequential-1", "fastfuse", mb_per_s=9),
            run("s3", "sequential-1", "raw", mb_per_s=8),
        ]
    )
    assert results.median("s3", "sequential-1", "fastfuse", "mb_per_s") == 500
    assert results.median("s3", "sequential-4", "fastfuse", "mb_per_s") is None
    assert results.cells() == [("s3", "sequential-1"), ("fast", "sequential-1")]
    assert results.candidates("s3", "sequential-1") == ["fastfuse", "raw"]

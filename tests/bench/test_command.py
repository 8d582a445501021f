"""Small matrices, to see that the bench measures what it says; how fast anything is, is not a test's matter."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import machine
from bench.command import main

SMALLEST = ["--quick", "--shard-size", "4MiB", "--server-processes", "1"]


def measure(output: Path, *options: str) -> dict[tuple[str, str], Any]:
    assert main([*SMALLEST, "--output", str(output), *options]) == 0
    runs = json.loads(output.with_suffix(".json").read_text())["runs"]
    return {(run["workload"], run["candidate"]): run for run in runs}


@pytest.fixture(autouse=True)
def _caches_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the whole machine's: other tests count what is asked for twice."""
    monkeypatch.setattr(machine, "drop_caches", lambda: False)


@pytest.mark.fuse
@pytest.mark.parametrize(("workload", "size_bytes"), [("sequential-4", 6 << 20), ("small-16-shuffled", 400 * 39_000)])
def test_every_candidate_reads_everything_and_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], workload: str, size_bytes: int
) -> None:
    output = tmp_path / "results" / "out"
    candidates = ["raw", "fuse-only", "fastfuse", "fastfuse-512MiB", "rclone-unchecked"]
    figures = measure(output, "--profiles", "fast-tls", "--workloads", workload, "--candidates", ",".join(candidates))
    assert set(figures) == {(workload, candidate) for candidate in candidates}
    for (_, candidate), run in figures.items():
        assert run["size_bytes"] == size_bytes
        assert 0 < run["span_s"] <= run["span_p99_s"] <= run["elapsed_s"]
        assert all(0 <= run[name] < 60 for name in ("cpu_s", "readers_cpu_s", "server_cpu_s"))
        assert 10 << 20 < run["peak_bytes"] < 1 << 30
        # Whose kernel remembers nothing fetches each byte at least once; who has no store asks for nothing.
        assert run["fetched_bytes"] == 0 if candidate == "fuse-only" else run["fetched_bytes"] >= run["size_bytes"]
    assert capsys.readouterr().out.startswith(output.with_suffix(".md").read_text())


@pytest.mark.fuse
def test_a_second_epoch_and_a_local_copy_ask_the_server_for_nothing(tmp_path: Path) -> None:
    options = ["--profiles", "fast", "--workloads", "warm-4,random-4-256k", "--candidates", "local,fastfuse"]
    figures = measure(tmp_path / "out", *options)
    assert set(figures) == {("warm-4", "local"), ("warm-4", "fastfuse"), ("random-4-256k", "fastfuse")}
    assert [figures["warm-4", name]["requests"] for name in ("local", "fastfuse")] == [0, 0]
    assert figures["random-4-256k", "fastfuse"]["requests"] > 0


@pytest.mark.parametrize("option", ["--profiles", "--workloads", "--candidates"])
def test_a_name_that_does_not_exist_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([option, "sequential-2"])
    assert "no such profile, workload or candidate: sequential-2" in capsys.readouterr().err

"""Runs candidates over workloads: each run cold and alone, the candidates in turns, so that drift hits all alike."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import machine
from bench.candidates import CANDIDATES, Limits
from bench.readers import Outcome
from bench.workloads import Scale, Workload
from fastfuse.testing.config import Pace
from fastfuse.testing.process import ServerProcess

__all__ = ["Plan", "Run", "run_suite"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure."""

    workloads: Sequence[Workload]
    candidates: Sequence[str]
    runs: int
    scale: Scale
    pace: Pace
    limits: Limits
    server_processes: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One candidate, one workload, once. CPU time and memory are those of the daemon (of the client where none is)."""

    workload: str
    candidate: str
    size_bytes: int
    elapsed_s: float
    files: int
    spans: int
    cpu_s: float
    peak_bytes: int
    # Medians and the 99th percentile over files and spans; 0 where the candidate opens no file.
    first_byte_s: float
    span_s: float
    span_p99_s: float


def run_suite(plan: Plan, on_run: Callable[[Run], None]) -> list[Run]:
    """Measure everything in `plan`; `on_run` hears of each run as it ends."""
    runs = []
    for run in _runs(plan):
        on_run(run)
        runs.append(run)
    return runs


def _runs(plan: Plan) -> Iterator[Run]:
    for workload in plan.workloads:
        source = workload.source(plan.scale)
        with ServerProcess(source, workers=plan.server_processes, pace=plan.pace) as server:
            for _ in range(plan.runs):
                for candidate in plan.candidates:
                    yield _measure(plan, workload, candidate, server)


def _measure(plan: Plan, workload: Workload, candidate: str, server: ServerProcess) -> Run:
    tasks = workload.tasks(plan.scale)
    total_bytes = sum(span.end - span.start for spans in tasks for span in spans)
    with (
        tempfile.TemporaryDirectory(prefix="fastfuse-bench-") as place,
        CANDIDATES[candidate](server, Path(place), plan.limits) as target,
    ):
        if workload.is_warm:
            target.read(tasks)
        else:
            machine.drop_caches()
        # What the run will fill: the page cache, and the daemon's own memory.
        machine.touch_memory(total_bytes + plan.limits.memory_target_bytes)
        before_s = target.cpu_s()
        outcomes = target.read(tasks)
        return _run(workload, candidate, outcomes, target.cpu_s() - before_s, target.peak_bytes())


def _run(workload: Workload, candidate: str, outcomes: list[Outcome], cpu_s: float, peak_bytes: int) -> Run:
    first_bytes_s = [time_s for outcome in outcomes for time_s in outcome.first_bytes_s]
    spans_s = [time_s for outcome in outcomes for time_s in outcome.spans_s]
    started_s = min(outcome.started_s for outcome in outcomes)
    return Run(
        workload=workload.name,
        candidate=candidate,
        size_bytes=sum(outcome.size_bytes for outcome in outcomes),
        elapsed_s=max(outcome.ended_s for outcome in outcomes) - started_s,
        files=len(first_bytes_s),
        spans=len(spans_s),
        cpu_s=cpu_s,
        peak_bytes=peak_bytes,
        first_byte_s=_quantile(first_bytes_s, 0.5),
        span_s=_quantile(spans_s, 0.5),
        span_p99_s=_quantile(spans_s, 0.99),
    )


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0

"""Runs candidates over workloads: each run cold and alone, the candidates in turns, so that drift hits all alike."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from bench import machine
from bench.candidates import CANDIDATES, Limits, Target
from bench.mounting import UnavailableError
from bench.readers import Manner, Outcome, Span
from bench.results import Run
from bench.server import Profile, Server
from bench.workloads import Scale, Workload

Tasks = Sequence[Sequence[Span]]

# No candidate held more of what it read in any run, the page cache apart.
_HELD_BYTES = 1 << 30

# At the second read of a page the kernel moves it to another of its lists, which takes longer than the copy and is the
# same for every file system: 14 GB/s through FUSE and 15 from tmpfs, and 24 and 28 at the third. So all later epochs
# are like the third.
_WARMING_READS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One workload on one kind of server, `runs` times by each candidate."""

    profile: Profile
    workload: Workload
    candidates: Sequence[str]
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure."""

    cells: Sequence[Cell]
    scale: Scale = field(default_factory=Scale)
    limits: Limits = field(default_factory=Limits)
    server_processes: int = 2


@dataclass(slots=True)
class Measured:
    """Every run, and why a candidate or a workload has none."""

    runs: list[Run] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)


def run_suite(plan: Plan, on_run: Callable[[Run], None]) -> Measured:
    """Measure everything in `plan`; `on_run` hears of each run as it ends."""
    measured = Measured()
    for cell in plan.cells:
        needs = cell.workload.needs
        if needs and find_spec(needs) is None:
            measured.notes[cell.workload.name] = f"needs the library {needs} (extra `bench`)"
            continue
        for run in _runs(plan, cell, measured.notes):
            on_run(run)
            measured.runs.append(run)
    return measured


def _runs(plan: Plan, cell: Cell, notes: dict[str, str]) -> Iterator[Run]:
    workload, scale = cell.workload, plan.scale
    limits = plan.limits if workload.is_bulk else replace(plan.limits, raw_requests=workload.readers)
    with machine.memory_directory(scale.shard_bytes) as data_place:
        data = workload.data_set(scale, data_place)
        tasks = workload.share(data, workload.readers, scale)
        with Server(data.source, profile=cell.profile, workers=plan.server_processes) as server:
            for candidate in [name for _ in range(cell.runs) for name in cell.candidates]:
                if candidate in notes:
                    continue
                with tempfile.TemporaryDirectory(prefix="fastfuse-bench-") as place, ExitStack() as stack:
                    try:
                        target = stack.enter_context(CANDIDATES[candidate](server, Path(place), limits))
                    except UnavailableError as error:
                        notes[candidate] = str(error)
                        continue
                    get_ready(workload, target, tasks)
                    run = read_once(target, tasks, workload.manner, server)
                    yield replace(
                        run,
                        profile=cell.profile.name,
                        workload=workload.name,
                        candidate=candidate,
                        # The raw client is what its reader does.
                        readers_cpu_s=0.0 if candidate == "raw" else run.readers_cpu_s,
                    )


def get_ready(workload: Workload, target: Target, tasks: Tasks) -> None:
    """Have what a run needs in memory, and nothing of what it reads unless that is a later epoch."""
    if workload.is_warm:
        for _ in range(_WARMING_READS):
            target.read(tasks, workload.manner)
    else:
        total_bytes = sum(span.end - span.start for spans in tasks for span in spans)
        machine.drop_caches()
        # What the run will fill: the page cache, and the candidate's own memory.
        machine.touch_memory(total_bytes + min(total_bytes, _HELD_BYTES))


def read_once(target: Target, tasks: Tasks, manner: Manner, server: Server) -> Run:
    """Have a candidate read `tasks`, and return the figures of the run."""
    cpu_before_s, server_before_s, before = target.cpu_s(), server.cpu_s(), server.traffic()
    outcomes = target.read(tasks, manner)
    after = server.traffic()
    return replace(
        _run_of(outcomes),
        cpu_s=target.cpu_s() - cpu_before_s,
        server_cpu_s=server.cpu_s() - server_before_s,
        peak_bytes=target.peak_bytes(),
        requests=after.requests - before.requests,
        fetched_bytes=after.sent_bytes - before.sent_bytes,
    )


def _run_of(outcomes: Sequence[Outcome]) -> Run:
    """What the readers alone can say."""
    first_bytes_s = [time_s for outcome in outcomes for time_s in outcome.times.first_bytes_s]
    spans_s = [time_s for outcome in outcomes for time_s in outcome.times.spans_s]
    started_s = min(outcome.started_s for outcome in outcomes)
    return Run(
        size_bytes=sum(outcome.size_bytes for outcome in outcomes),
        elapsed_s=max(outcome.ended_s for outcome in outcomes) - started_s,
        spans=len(spans_s),
        readers_cpu_s=sum(outcome.cpu_s for outcome in outcomes),
        first_byte_s=_quantile(first_bytes_s, 0.5),
        span_s=_quantile(spans_s, 0.5),
        span_p99_s=_quantile(spans_s, 0.99),
    )


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0

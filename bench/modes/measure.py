"""The workloads, and one run of each mode on each, cold."""

import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import machine
from bench.modes.figures import Figures
from bench.modes.job import channel, run_job
from bench.profiles import PROFILES
from bench.readers import read_raw
from bench.reading import RawAccess, Span
from bench.server import Server
from fastfuse.demo.dataset import create_shards
from fastfuse.testing.synthetic import SyntheticObjects

__all__ = ["CANDIDATES", "WORKLOADS", "Plan", "measure"]

# As many GETs at once as a channel may have, of parts as large.
_PART_BYTES = 8 << 20
_CONNECTIONS = 64
_FOLDER_FILES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured, and how often; `place` is where File mode's files go, None for memory."""

    profile: str
    runs: int
    workloads: tuple[str, ...]
    place: Path | None
    memory_target: str
    shards: int = 20
    # 20 of them are 2 GiB.
    shard_bytes: int = (2 << 30) // 20
    small_files: int = 20_000
    small_bytes: int = 39_000


@dataclass(frozen=True, slots=True)
class _Workload:
    """`candidates` beside raw GETs: mode, and what else the channel says."""

    manner: str
    candidates: dict[str, tuple[str, dict[str, Any]]]
    # Given an empty directory: what the server serves, and its files.
    make: Callable[[Plan, Path], tuple[Path | str, list[Span]]]


def _shards(plan: Plan, directory: Path) -> tuple[Path | str, list[Span]]:
    files = create_shards(directory, plan.shards, plan.shard_bytes)
    return directory, [Span(file.name, 0, file.size_bytes) for file in files]


def _small(plan: Plan, _: Path) -> tuple[Path | str, list[Span]]:
    folders = -(-plan.small_files // _FOLDER_FILES)
    objects = SyntheticObjects(
        count=plan.small_files, size_bytes=plan.small_bytes, layout="dirs", directories=folders, suffix=".jpg"
    )
    source = f"count={plan.small_files},size={plan.small_bytes},layout=dirs,dirs={folders},suffix=.jpg"
    return source, [Span(objects.key_at(index).decode(), 0, plan.small_bytes) for index in range(plan.small_files)]


WORKLOADS = {
    "tfrecords": _Workload(
        "records", {"File": ("File", {}), "FastFile": ("FastFile", {}), "Pipe": ("Pipe", {})}, _shards
    ),
    "small": _Workload(
        "files",
        {
            "File": ("File", {}),
            "FastFile": ("FastFile", {}),
            "Pipe": ("Pipe", {"RecordWrapperType": "RecordIO"}),
        },
        _small,
    ),
}
CANDIDATES = tuple(dict.fromkeys(name for workload in WORKLOADS.values() for name in workload.candidates))


def measure(plan: Plan, candidates: tuple[str, ...]) -> Iterator[Figures]:
    """Every candidate in turns, as often as the plan says; raw GETs are one of them, and are first."""
    for name in plan.workloads:
        workload = WORKLOADS[name]
        with machine.memory_directory(4 << 30) as directory:
            source, spans = workload.make(plan, directory)
            with Server(source, profile=PROFILES[plan.profile]) as server:
                chosen = [candidate for candidate in workload.candidates if candidate in candidates]
                for run in range(plan.runs):
                    _settle(plan)
                    yield _raw(server, name, spans)
                    # Whoever comes behind raw GETs finds a colder machine, and behind File mode, which gives gigabytes
                    # back: its imports took 0.2 s longer.
                    for candidate in (*chosen[run % len(chosen) :], *chosen[: run % len(chosen)]):
                        _settle(plan)
                        yield _job(server, plan, name, candidate)


def _settle(plan: Plan) -> None:
    machine.drop_caches()
    machine.touch_memory(_needed_bytes(plan))


def _needed_bytes(plan: Plan) -> int:
    """What the bytes take once, as a page cache or as files in memory, and once more for buffers."""
    return 2 * plan.shards * plan.shard_bytes


def _raw(server: Server, workload: str, spans: list[Span]) -> Figures:
    access = RawAccess(
        endpoint_url=server.endpoint_url,
        bucket=server.bucket,
        ca_bundle=server.ca_bundle,
        part_bytes=_PART_BYTES,
        requests_in_flight=_CONNECTIONS,
    )
    traffic, server_cpu_s = server.traffic(), server.cpu_s()
    (outcome,) = read_raw(access, [spans])
    elapsed_s = outcome.ended_s - outcome.started_s
    return Figures(
        workload=workload,
        candidate="raw",
        size_bytes=outcome.size_bytes,
        records=len(spans),
        # Parts come side by side; none of them is there before one alone would be.
        first_s=statistics.median(outcome.times.spans_s),
        total_s=elapsed_s,
        over_s=elapsed_s,
        reading_s=elapsed_s,
        cpu_s=outcome.cpu_s,
        server_cpu_s=server.cpu_s() - server_cpu_s,
        requests=server.traffic().requests - traffic.requests,
    )


def _job(server: Server, plan: Plan, workload: str, candidate: str) -> Figures:
    mode, more = WORKLOADS[workload].candidates[candidate]
    traffic, server_cpu_s = server.traffic(), server.cpu_s()
    with _directory(plan.place) as place, machine.BackedMemory(_needed_bytes(plan)) as memory:
        channels, options = [channel("train", server, mode, **more)], ("--memory-target", plan.memory_target)
        run = run_job(server, place, channels, WORKLOADS[workload].manner, *options, begins=memory.hand_out)
    return Figures(
        workload=workload,
        candidate=candidate,
        size_bytes=run.size_bytes,
        records=run.records,
        first_s=run.first_s,
        total_s=run.total_s,
        over_s=run.over_s,
        reading_s=run.total_s - run.script_s,
        cpu_s=run.cpu_s,
        script_cpu_s=run.script_cpu_s,
        server_cpu_s=server.cpu_s() - server_cpu_s,
        requests=server.traffic().requests - traffic.requests,
        stages=dict(run.stages),
    )


@contextmanager
def _directory(place: Path | None) -> Iterator[Path]:
    if place is None:
        with machine.memory_directory(4 << 30) as directory:
            yield directory
    else:
        with tempfile.TemporaryDirectory(dir=place) as name:
            yield Path(name)

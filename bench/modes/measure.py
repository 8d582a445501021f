"""The workloads, and one run of each mode on each, cold."""

import statistics
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import machine
from bench.modes.figures import Figures
from bench.modes.job import channel, run_job
from bench.readers import RawAccess, Span, read_raw
from bench.s3server.synthetic import parse_synthetic
from bench.server import PROFILES, Server
from bench.shards import create_shards
from bench.workloads import SMALL_FILE_BYTES

# As many GETs at once as a channel may have, of parts as large.
_PART_BYTES = 8 << 20
_CONNECTIONS = 64
# 20 shards are 2 GiB.
_SHARDS, _SHARD_BYTES = 20, (2 << 30) // 20
_SMALL_FILES = 20_000
# What the bytes take once, as a page cache or as files in memory, and once more for buffers.
_NEEDED_BYTES = 2 * _SHARDS * _SHARD_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured, and how often."""

    profile: str
    runs: int
    workloads: tuple[str, ...]
    memory_target: str


@dataclass(frozen=True, slots=True)
class _Workload:
    """A workload: how the script reads it, and what else its channel says in Pipe mode."""

    manner: str
    pipe: dict[str, Any]
    # Given an empty directory: what the server serves, and its files.
    make: Callable[[Path], tuple[Path | str, list[Span]]]


def _shards(directory: Path) -> tuple[Path | str, list[Span]]:
    files = create_shards(directory, _SHARDS, _SHARD_BYTES)
    return directory, [Span(file.name, 0, file.size_bytes) for file in files]


def _small(_: Path) -> tuple[Path | str, list[Span]]:
    source = f"count={_SMALL_FILES},size={SMALL_FILE_BYTES},layout=dirs,dirs={_SMALL_FILES // 1000},suffix=.jpg"
    objects = parse_synthetic(source)
    return source, [Span(objects.key_at(index).decode(), 0, SMALL_FILE_BYTES) for index in range(_SMALL_FILES)]


WORKLOADS = {
    "tfrecords": _Workload("records", {}, _shards),
    "small": _Workload("files", {"RecordWrapperType": "RecordIO"}, _small),
}
CANDIDATES = ("File", "FastFile", "Pipe")


def measure(plan: Plan, candidates: tuple[str, ...]) -> Iterator[Figures]:
    """Every candidate in turns, as often as the plan says; raw GETs are one of them, and are first."""
    for name in plan.workloads:
        workload = WORKLOADS[name]
        with machine.memory_directory(4 << 30) as directory:
            source, spans = workload.make(directory)
            with Server(source, profile=PROFILES[plan.profile]) as server:
                chosen = [candidate for candidate in CANDIDATES if candidate in candidates]
                for run in range(plan.runs):
                    _settle()
                    yield _raw(server, name, spans)
                    # Whoever comes behind raw GETs finds a colder machine, and behind File mode, which gives gigabytes
                    # back: its imports took 0.2 s longer.
                    for candidate in (*chosen[run % len(chosen) :], *chosen[: run % len(chosen)]):
                        _settle()
                        yield _job(server, plan, name, candidate)


def _settle() -> None:
    machine.drop_caches()
    machine.touch_memory(_NEEDED_BYTES)


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
        cpu_s=outcome.cpu_s,
        server_cpu_s=server.cpu_s() - server_cpu_s,
        requests=server.traffic().requests - traffic.requests,
    )


def _job(server: Server, plan: Plan, workload: str, candidate: str) -> Figures:
    known = WORKLOADS[workload]
    entry = channel("train", server, candidate, **(known.pipe if candidate == "Pipe" else {}))
    options = ("--memory-target", plan.memory_target)
    traffic, server_cpu_s = server.traffic(), server.cpu_s()
    with machine.memory_directory(4 << 30) as place, closing(machine.BackedMemory(_NEEDED_BYTES)) as memory:
        run = run_job(server, place, [entry], known.manner, *options, begins=memory.hand_out)
    return replace(
        run,
        workload=workload,
        candidate=candidate,
        server_cpu_s=server.cpu_s() - server_cpu_s,
        requests=server.traffic().requests - traffic.requests,
    )

"""``python -m bench.scenarios``: what `fastfuse advise` estimates beside what a job in each mode takes.

Six buckets: the four scenarios of AWS's article on data sources, at a scale that fits, and an empty bucket and a single
object. The article's modes are run as `bench.modes` runs them, with one epoch, on the server in the shape of S3; File
mode downloads into memory. The million of small files is listed, not read. EFS and FSx cannot be run here.
"""

import argparse
import os
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import machine
from bench.modes.figures import Figures
from bench.modes.job import channel, run_job
from bench.mounting import ENVIRONMENT
from bench.server import PROFILES, Server
from fastfuse.advise.model import Estimate, Job, Mode, Network, Shape, estimates, recommend
from fastfuse.advise.probe import probe, shape_of
from fastfuse.index.make import make_index
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.snapshot import open_snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig

_MIB = 1 << 20
# The mode and the manner of the training script.
_MODES = {
    Mode.FILE: ("File", "files"),
    Mode.FAST_FILE: ("FastFile", "files"),
    Mode.HINTED: ("FastFile", "hinted"),
    Mode.PIPE: ("Pipe", "bytes"),
}
_MEMORY_TARGET = "1GiB"
# Memory takes what a download brings.
_JOB = Job(disk_bytes_per_s=4e9)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Files of some sizes, or the description of synthetic objects; `is_run` unless it is listed only."""

    source: str = ""
    files: Mapping[str, tuple[int, int]] | None = None  # folder → count and size
    is_run: bool = True


SCENARIOS = {
    "few large (10 of 105 MiB)": Scenario(f"count=10,size={105 * _MIB}"),
    "many small (10,000 of 39 KB)": Scenario("count=10000,size=39000,layout=dirs,dirs=10"),
    "mixed (4 of 105 MiB, 5,000 of 39 KB)": Scenario(files={"large": (4, 105 * _MIB), "small": (5000, 39_000)}),
    "one object (525 MiB)": Scenario(f"count=1,size={525 * _MIB}"),
    "empty": Scenario(files={}, is_run=False),
    "1,530,000 small (39 KB)": Scenario("count=1530000,size=39000,layout=dirs,dirs=1530", is_run=False),
}


@contextmanager
def _source(scenario: Scenario) -> Iterator[Path | str]:
    if scenario.files is None:
        yield scenario.source
        return
    with machine.memory_directory(1 << 30) as place:
        for folder, (count, size_bytes) in scenario.files.items():
            (place / folder).mkdir()
            for number in range(count):
                (place / folder / f"{number:05}").write_bytes(os.urandom(size_bytes))
        yield place


def _listed(server: Server) -> tuple[Shape, Network]:
    connection = ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1", force_path_style=True)
    fd = os.memfd_create("bench-index")
    try:
        make_index(S3Uri(server.bucket, ""), IndexOrigin(allow_empty=True), S3Session(connection), fd)
        table = open_snapshot(fd).table
    finally:
        os.close(fd)
    return shape_of(table), probe(table, connection).network


def _run(server: Server, mode: Mode) -> Figures:
    name, manner = _MODES[mode]
    machine.drop_caches()
    machine.touch_memory(2 << 30)
    with machine.memory_directory(2 << 30) as place:
        return run_job(server, place, [channel("train", server, name)], manner, "--memory-target", _MEMORY_TARGET)


def _measure(scenario: Scenario, runs: int) -> tuple[Shape, list[Estimate], dict[Mode, list[Figures]]]:
    with _source(scenario) as source, Server(source, profile=PROFILES["s3"]) as server:
        shape, network = _listed(server)
        done: dict[Mode, list[Figures]] = {}
        for _ in range(runs if scenario.is_run else 0):
            for mode in _MODES:
                done.setdefault(mode, []).append(_run(server, mode))
    return shape, [each for each in estimates(shape, network, _JOB) if each.mode in _MODES], done


def _print(name: str, shape: Shape, found: list[Estimate], done: dict[Mode, list[Figures]]) -> None:
    advised = recommend(shape, found, _JOB).mode
    measured_s = {mode: statistics.median(run.total_s for run in runs) for mode, runs in done.items()}
    fastest = min(measured_s, key=lambda mode: measured_s[mode]) if measured_s else None
    cells: list[Any] = [name, *(f"{each.job_s:.1f}" for each in found)]
    print(f"| {' | '.join(cells)} | {advised or 'nothing'} |")
    if fastest is not None:
        over = "" if advised is None else f"{measured_s[advised] / measured_s[fastest]:.2f}"
        cells = ["measured", *(f"{measured_s[each.mode]:.1f}" for each in found)]
        print(f"| {' | '.join(cells)} | {fastest}; the advised mode takes {over} of it |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scenarios", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    os.environ |= ENVIRONMENT
    print("Seconds until the last record was read: estimated, and the median of", options.runs, "runs\n")
    print(f"| scenario | {' | '.join(_MODES)} | recommended; fastest |\n|---|{'---:|' * len(_MODES)}---|", flush=True)
    for name, scenario in SCENARIOS.items():
        _print(name, *_measure(scenario, options.runs))


if __name__ == "__main__":
    main()

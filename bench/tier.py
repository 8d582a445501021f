"""``python -m bench.tier``: a cold epoch with the local tier and without, a later one from it, and its limits.

Every epoch has a mount of its own and an empty page cache. fio reads the files of the tier as a later epoch does: parts
by four jobs with as much in flight, or small files by sixteen. "FUSE only" is a mount that answers from memory.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from operator import attrgetter
from pathlib import Path

from bench.candidates import CANDIDATES, Limits, Target, fastfuse_mount
from bench.machine import describe, drop_caches, touch_memory
from bench.results import Run
from bench.server import PROFILES, Server
from bench.suite import read_once
from bench.workloads import WORKLOADS, Scale

__all__ = ["main"]

_TOUCHED_BYTES = 6 << 30
_FIO = {
    "MB/s": ("--rw=read", "--bs=8m", "--numjobs=4", "--ioengine=libaio", "--iodepth=4"),
    "files/s": ("--rw=randread", "--bs=40k", "--numjobs=16"),
}


def _epoch(server: Server, name: str, scale: Scale, cache: Path | None, limits: Limits) -> Run:
    options = ["--cache", str(cache), "--cache-size", "60%", "--cache-min-free", "1%"] if cache else []
    return _read(server, name, scale, lambda place: fastfuse_mount(server, place, limits, *options))


def _read(server: Server, name: str, scale: Scale, mount: Callable[[Path], AbstractContextManager[Target]]) -> Run:
    workload = WORKLOADS[name]
    with tempfile.TemporaryDirectory(prefix="fastfuse-bench-") as directory:
        place = Path(directory)
        data = workload.data_set(scale, place)
        tasks = workload.share(data, workload.readers, scale)
        with mount(place) as mounted:
            drop_caches()
            touch_memory(_TOUCHED_BYTES)
            return read_once(mounted, tasks, workload.manner, server)


def _fuse_only(server: Server, place: Path) -> AbstractContextManager[Target]:
    return CANDIDATES["fuse-only"](server, place, Limits())


def _fio(cache: Path, unit: str) -> float:
    """Return the rate of fio over all segments, in the unit of the workload."""
    drop_caches()
    files = ":".join(str(path) for path in sorted(cache.glob("*.segment")))
    command = ["fio", "--readonly", "--direct=1", "--name=tier", f"--filename={files}", "--group_reporting"]
    command += ["--output-format=json", "--runtime=5", "--time_based", *_FIO[unit]]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    read = report["jobs"][0]["read"]
    return float(read["bw_bytes"] / 1e6 if unit == "MB/s" else read["iops"])


def _measure(profile: str, name: str, scale: Scale, runs: int, room: Path, limits: Limits) -> None:
    workload, epochs, fio = WORKLOADS[name], defaultdict[str, list[Run]](list), []
    rate_of = attrgetter("mb_per_s" if workload.is_bulk else "spans_per_s")
    with tempfile.TemporaryDirectory() as made:
        source = workload.data_set(scale, Path(made)).source
        for _ in range(runs):
            with (
                tempfile.TemporaryDirectory(dir=room) as directory,
                Server(source, profile=PROFILES[profile]) as server,
            ):
                cache = Path(directory, "cache")
                epochs["without"].append(_epoch(server, name, scale, None, limits))
                epochs["cold"].append(_epoch(server, name, scale, cache, limits))
                _epoch(server, name, scale, cache, limits)  # what was skipped
                epochs["later"].append(_epoch(server, name, scale, cache, limits))
                fio.append(_fio(cache, workload.unit))
                epochs["FUSE only"].append(_read(server, name, scale, partial(_fuse_only, server)))
    for kind, seen in epochs.items():
        rate, cpu_s = statistics.median(map(rate_of, seen)), statistics.median(one.cpu_s / one.gb for one in seen)
        requests = [one.requests for one in seen]
        print(f"| {profile} {name} | {kind} | {rate:,.0f} {workload.unit} | {cpu_s:.2f} | {requests} |", flush=True)
    rates = {kind: [*map(rate_of, seen)] for kind, seen in epochs.items()} | {"fio": fio}
    print(f"| {profile} {name} | fio | {statistics.median(fio):,.0f} {workload.unit} | | |")
    for one, other in (("cold", "without"), ("later", "fio"), ("later", "FUSE only")):
        ratios = [mine / theirs for mine, theirs in zip(rates[one], rates[other], strict=True)]
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"| {profile} {name} | {one}, of {other} | {statistics.median(ratios):.2f} | | {shown} |", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.tier", description=__doc__)
    parser.add_argument("--room", type=Path, default=Path("/var/tmp"), help="where the tier is made")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--shard-mib", type=int, default=1024, help="what one reader reads")
    parser.add_argument("--profiles", default="s3")
    parser.add_argument("--workloads", default="sequential-1,sequential-4,small-16-shuffled")
    parser.add_argument("--max-connections", type=int, default=128, help="fewer make the network the limit")
    options = parser.parse_args(arguments)
    limits = Limits(max_connections=options.max_connections)
    print(", ".join(f"{name} {value}" for name, value in describe().items()))
    print("\n| workload | epoch | rate | CPU s/GB | requests |\n|---|---|---:|---:|---:|")
    for profile in options.profiles.split(","):
        for name in options.workloads.split(","):
            _measure(profile, name, Scale(shard_bytes=options.shard_mib << 20), options.runs, options.room, limits)


if __name__ == "__main__":
    main()

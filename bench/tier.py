"""``python -m bench.tier``: a cold epoch with the local tier and without, a later one from it, and fio beside it.

Every epoch has a mount of its own and an empty page cache. fio reads the files of the tier as a later epoch does: parts
by four jobs with as much in flight, or small files by sixteen.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.candidates import Limits, fastfuse_mount
from bench.machine import describe, drop_caches, touch_memory
from bench.profiles import PROFILES
from bench.server import Server
from bench.workloads import WORKLOADS, Scale

__all__ = ["main"]

_TOUCHED_BYTES = 6 << 30
_FIO = {
    "MB/s": ("--rw=read", "--bs=8m", "--numjobs=4", "--ioengine=libaio", "--iodepth=4"),
    "files/s": ("--rw=randread", "--bs=40k", "--numjobs=16"),
}


@dataclass(frozen=True, slots=True)
class _Epoch:
    """One epoch: its rate in the unit of the workload, the daemon's CPU seconds a GB, and its GETs."""

    rate: float
    cpu_s_per_gb: float
    requests: int


def _epoch(server: Server, name: str, scale: Scale, cache: Path | None) -> _Epoch:
    workload = WORKLOADS[name]
    with tempfile.TemporaryDirectory(prefix="fastfuse-bench-") as directory:
        place = Path(directory)
        data = workload.data_set(scale, place)
        tasks = workload.share(data, workload.readers, scale)
        options = ["--cache", str(cache), "--cache-size", "60%", "--cache-min-free", "1%"] if cache else []
        with fastfuse_mount(server, place, Limits(), *options) as mounted:
            drop_caches()
            touch_memory(_TOUCHED_BYTES)
            before, cpu_before_s = server.traffic(), mounted.cpu_s()
            outcomes = mounted.read(tasks, workload.manner)
            seconds = max(one.ended_s for one in outcomes) - min(one.started_s for one in outcomes)
            size_bytes = sum(one.size_bytes for one in outcomes)
            cpu_s = mounted.cpu_s() - cpu_before_s
            requests = server.traffic().requests - before.requests
    amount = size_bytes / 1e6 if workload.is_bulk else sum(map(len, tasks))
    return _Epoch(amount / seconds, cpu_s / (size_bytes / 1e9), requests)


def _fio(cache: Path, unit: str) -> float:
    """Return the rate of fio over all segments, in the unit of the workload."""
    drop_caches()
    files = ":".join(str(path) for path in sorted(cache.glob("*.segment")))
    command = ["fio", "--readonly", "--direct=1", "--name=tier", f"--filename={files}", "--group_reporting"]
    command += ["--output-format=json", "--runtime=5", "--time_based", *_FIO[unit]]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    read = report["jobs"][0]["read"]
    return float(read["bw_bytes"] / 1e6 if unit == "MB/s" else read["iops"])


def _measure(profile: str, name: str, scale: Scale, runs: int, room: Path) -> None:
    workload, epochs, fio = WORKLOADS[name], defaultdict[str, list[_Epoch]](list), []
    with tempfile.TemporaryDirectory() as made:
        source = workload.data_set(scale, Path(made)).source
        for _ in range(runs):
            with (
                tempfile.TemporaryDirectory(dir=room) as directory,
                Server(source, profile=PROFILES[profile]) as server,
            ):
                cache = Path(directory, "cache")
                epochs["without"].append(_epoch(server, name, scale, None))
                epochs["cold"].append(_epoch(server, name, scale, cache))
                _epoch(server, name, scale, cache)  # what was skipped
                epochs["later"].append(_epoch(server, name, scale, cache))
                fio.append(_fio(cache, workload.unit))
    for kind, seen in epochs.items():
        rate, cpu_s = (statistics.median(getattr(one, field) for one in seen) for field in ("rate", "cpu_s_per_gb"))
        requests = [one.requests for one in seen]
        print(f"| {profile} {name} | {kind} | {rate:,.0f} {workload.unit} | {cpu_s:.2f} | {requests} |", flush=True)
    ratio = statistics.median(
        cold.rate / without.rate for cold, without in zip(epochs["cold"], epochs["without"], strict=True)
    )
    print(f"| {profile} {name} | cold, of without | {ratio:.2f} | | |")
    print(f"| {profile} {name} | fio | {statistics.median(fio):,.0f} {workload.unit} | | |", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.tier", description=__doc__)
    parser.add_argument("--room", type=Path, default=Path("/var/tmp"), help="where the tier is made")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--shard-mib", type=int, default=1024, help="what one reader reads")
    parser.add_argument("--profiles", default="s3")
    parser.add_argument("--workloads", default="sequential-1,sequential-4,small-16-shuffled")
    options = parser.parse_args(arguments)
    print(", ".join(f"{name} {value}" for name, value in describe().items()))
    print("\n| workload | epoch | rate | CPU s/GB | requests |\n|---|---|---:|---:|---:|")
    for profile in options.profiles.split(","):
        for name in options.workloads.split(","):
            _measure(profile, name, Scale(shard_bytes=options.shard_mib << 20), options.runs, options.room)


if __name__ == "__main__":
    main()

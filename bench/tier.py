"""``python -m bench.tier``: a cold epoch with the local tier and without, a later one from it, its limits, and peers.

Every epoch of fastfuse has a mount of its own and an empty page cache. fio reads the files of the tier as a later epoch
does: parts by four jobs with as much in flight, or small files by sixteen. "FUSE only" is a mount that answers from
memory. A peer reads its three epochs through one mount, because Mountpoint and geesefs lose their caches with it.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from operator import attrgetter
from pathlib import Path

from bench.candidates import CANDIDATES, Limits, Target, fastfuse_mount, peer, rclone
from bench.machine import describe, drop_caches, touch_memory
from bench.results import Run
from bench.server import PROFILES, Server
from bench.suite import read_once
from bench.workloads import WORKLOADS, Scale, Workload

_TOUCHED_BYTES = 6 << 30
_FIO = {
    "MB/s": ("--rw=read", "--bs=8m", "--numjobs=4", "--ioengine=libaio", "--iodepth=4"),
    "files/s": ("--rw=randread", "--bs=40k", "--numjobs=16"),
}

# How each peer is told to keep what it reads in the directory ``{}``.
_CACHE_OPTIONS = {
    "rclone": ("--vfs-cache-mode", "full", "--vfs-fast-fingerprint", "--cache-dir", "{}"),
    "mount-s3": ("--cache", "{}"),
    # It writes to the disk only what its memory has no room for.
    "geesefs": ("--cache", "{}", "--memory-limit", "128"),
    "s3fs": ("-o", "use_cache={}"),
}
_Mount = Callable[[Path], AbstractContextManager[Target]]


def _epoch(server: Server, name: str, scale: Scale, cache: Path | None, limits: Limits) -> Run:
    options = ["--cache", str(cache), "--cache-size", "60%", "--cache-min-free", "1%"] if cache else []
    [run] = _read(server, name, scale, lambda place: fastfuse_mount(server, place, limits, *options))
    return run


def _peer_epochs(
    server: Server, name: str, scale: Scale, peer_name: str, cache: Path, limits: Limits
) -> tuple[Run, Run]:
    """Return the first and the third epoch of a peer that keeps what it reads in `cache`."""
    cache.mkdir()
    options = [option.format(cache) for option in _CACHE_OPTIONS[peer_name]]
    mount = rclone if peer_name == "rclone" else partial(peer, peer_name)
    cold, _, later = _read(server, name, scale, lambda place: mount(server, place, limits, *options), epochs=3)
    return cold, later


def _read(server: Server, name: str, scale: Scale, mount: _Mount, epochs: int = 1) -> list[Run]:
    workload = WORKLOADS[name]
    with tempfile.TemporaryDirectory(prefix="fastfuse-bench-") as directory:
        place = Path(directory)
        data = workload.data_set(scale, place)
        tasks = workload.share(data, workload.readers, scale)
        runs = []
        with mount(place) as mounted:
            for _ in range(epochs):
                drop_caches()
                touch_memory(_TOUCHED_BYTES)
                runs.append(read_once(mounted, tasks, workload.manner, server))
        return runs


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


def _measure(
    profile: str, name: str, scale: Scale, runs: int, room: Path, limits: Limits, peers: Sequence[str]
) -> None:
    workload, epochs, fio = WORKLOADS[name], defaultdict[str, list[Run]](list), []
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
                epochs["FUSE only"] += _read(server, name, scale, partial(_fuse_only, server))
                for each in peers:
                    cold, later = _peer_epochs(server, name, scale, each, Path(directory, each), limits)
                    epochs[f"{each} cold"].append(cold)
                    epochs[f"{each} later"].append(later)
    _show(f"{profile} {name}", workload, epochs, fio)


def _show(title: str, workload: Workload, epochs: Mapping[str, Sequence[Run]], fio: Sequence[float]) -> None:
    rate_of = attrgetter("mb_per_s" if workload.is_bulk else "spans_per_s")
    for kind, seen in epochs.items():
        rate, cpu_s = statistics.median(map(rate_of, seen)), statistics.median(one.cpu_s / one.gb for one in seen)
        requests = [one.requests for one in seen]
        print(f"| {title} | {kind} | {rate:,.0f} {workload.unit} | {cpu_s:.2f} | {requests} |", flush=True)
    rates = {kind: [*map(rate_of, seen)] for kind, seen in epochs.items()} | {"fio": [*fio]}
    print(f"| {title} | fio | {statistics.median(fio):,.0f} {workload.unit} | | |")
    pairs = [("cold", "without"), ("later", "fio"), ("later", "FUSE only")]
    pairs += [("later", kind) for kind in epochs if kind.endswith(" later")]
    for one, other in pairs:
        ratios = [mine / theirs for mine, theirs in zip(rates[one], rates[other], strict=True)]
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"| {title} | {one}, of {other} | {statistics.median(ratios):.2f} | | {shown} |", flush=True)


def _is_there(peer_name: str) -> bool:
    """Return whether a peer can be run; rclone comes with the packages of the bench."""
    is_there = peer_name == "rclone" or shutil.which(peer_name) is not None
    if not is_there:
        print(f"left out: {peer_name} is not on the PATH")
    return is_there


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.tier", description=__doc__)
    parser.add_argument("--room", type=Path, default=Path("/var/tmp"), help="where the tier is made")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--shard-mib", type=int, default=1024, help="what one reader reads")
    parser.add_argument("--profiles", default="s3")
    parser.add_argument("--workloads", default="sequential-1,sequential-4,small-16-shuffled")
    parser.add_argument("--peers", default=",".join(_CACHE_OPTIONS), help="those with a cache; '' for none")
    parser.add_argument("--max-connections", type=int, default=128, help="fewer make the network the limit")
    options = parser.parse_args(arguments)
    limits = Limits(max_connections=options.max_connections)
    print(", ".join(f"{name} {value}" for name, value in describe().items()))
    peers = [name for name in filter(None, options.peers.split(",")) if _is_there(name)]
    scale = Scale(shard_bytes=options.shard_mib << 20)
    print("\n| workload | epoch | rate | CPU s/GB | requests |\n|---|---|---:|---:|---:|")
    for profile in options.profiles.split(","):
        for name in options.workloads.split(","):
            _measure(profile, name, scale, options.runs, options.room, limits, peers)


if __name__ == "__main__":
    main()

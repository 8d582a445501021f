"""``python -m bench.interpreter``: for how long the worker holds the interpreter, per file or per GB.

However many cores a host has, one process of CPython serves no more than it can while it holds the interpreter. py-spy
(``--gil --nonblocking``) looks at the worker many times a second without stopping it: the share of looks at which a
thread held the interpreter is the share of the time. The CPU is that of all processes of the mount.
"""

import argparse
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import nan
from pathlib import Path

from bench.candidates import CANDIDATES, Limits
from bench.machine import describe
from bench.mounting import Mounted
from bench.processes import process_tree, thread_cpu_seconds
from bench.server import PROFILES, Server
from bench.suite import get_ready, read_once
from bench.workloads import WORKLOADS, Scale

_SPY = [str(Path(sysconfig.get_path("scripts"), "py-spy")), "record"]
_LOOKS_PER_S = 500
# Long enough for a few thousand looks.
_SCALE = Scale(shard_bytes=4 << 30, small_files=24_000)
_DEFAULT = ["small-16-shuffled", "sequential-1", "sequential-4"]


def seconds_held(looks: str) -> float:
    """Return the seconds in which a thread held the interpreter, of what py-spy writes as `raw`."""
    return sum(int(line.rpartition(" ")[2]) for line in looks.splitlines()) / _LOOKS_PER_S


@contextmanager
def _watched(pid: int, looks_path: Path) -> Iterator[None]:
    """Have py-spy look at the process until the end of the block."""
    command = [*_SPY, "--gil", "--nonblocking", "--format=raw", "--rate", str(_LOOKS_PER_S), "--duration=unlimited"]
    command += ["--output", str(looks_path), "--pid", str(pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as spy:
        assert spy.stdout is not None
        told = next((line for line in spy.stdout if "Sampling" in line), None)
        if told is None:
            raise RuntimeError(f"py-spy cannot look at process {pid}: it takes root")
        yield
        spy.send_signal(signal.SIGINT)
        spy.communicate()


def _measure(
    profile: str, workload_name: str, candidate: str, limits: Limits, server_processes: int
) -> tuple[float, float, float, float]:
    """Return the rate, and the seconds of CPU, of the interpreter and of the event loop, of one file or one GB.

    The last two are nan for others than fastfuse.
    """
    workload = WORKLOADS[workload_name]
    if not workload.is_bulk:
        limits = replace(limits, raw_requests=workload.readers)
    with tempfile.TemporaryDirectory(prefix="fastfuse-bench-") as place:
        data = workload.data_set(_SCALE, Path(place))
        tasks = workload.share(data, workload.readers, _SCALE)
        with (
            Server(data.source, profile=PROFILES[profile], workers=server_processes) as server,
            CANDIDATES[candidate](server, Path(place), limits) as target,
        ):
            get_ready(workload, target, tasks)
            if isinstance(target, Mounted) and candidate.startswith("fastfuse"):
                looks_path, worker = Path(place, "looks"), process_tree(target.pid)[-1]
                before_s = thread_cpu_seconds(worker)
                with _watched(worker, looks_path):
                    run = read_once(target, tasks, workload.manner, server)
                held_s, loop_s = seconds_held(looks_path.read_text()), thread_cpu_seconds(worker) - before_s
            else:
                run, held_s, loop_s = read_once(target, tasks, workload.manner, server), nan, nan
            count = run.gb if workload.is_bulk else run.spans
            return count / run.elapsed_s, run.cpu_s / count, held_s / count, loop_s / count


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser("python -m bench.interpreter", description=__doc__)
    parser.add_argument("--profile", choices=PROFILES, default="fast")
    parser.add_argument("--workloads", nargs="*", choices=WORKLOADS, default=_DEFAULT, metavar="NAME")
    parser.add_argument("--candidates", nargs="*", choices=CANDIDATES, default=["fastfuse"], metavar="NAME")
    parser.add_argument("--server-processes", type=int, default=2)
    parser.add_argument("--max-connections", type=int, default=Limits().max_connections)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args(arguments)
    print(", ".join(f"{name} {value}" for name, value in describe().items()))
    limits = replace(Limits(), max_connections=options.max_connections)
    print("\n| medians | a second | CPU, ms | interpreter held, ms | event loop, CPU ms |\n|---|---:|---:|---:|---:|")
    for workload in options.workloads:
        for candidate in options.candidates:
            settings = options.profile, workload, candidate, limits, options.server_processes
            found = [_measure(*settings) for _ in range(options.runs)]
            rate, *seconds = map(statistics.median, zip(*found, strict=True))
            unit = "GB" if WORKLOADS[workload].is_bulk else "file"
            shown = " | ".join(f"{one_s * 1e3:.3g}" for one_s in seconds)
            print(f"| {workload}, {candidate}, a {unit} | {rate:,.4g} | {shown} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

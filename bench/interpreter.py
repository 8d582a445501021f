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
from pathlib import Path

from bench.candidates import CANDIDATES, Limits
from bench.machine import describe
from bench.mounting import Mounted
from bench.processes import process_tree
from bench.server import PROFILES, Server
from bench.suite import get_ready, read_once
from bench.workloads import WORKLOADS, Scale

__all__ = ["main", "seconds_held"]

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


def _measure(profile: str, workload_name: str, candidate: str) -> tuple[float, float, float]:
    """Return the rate, and the seconds of CPU and of the interpreter, of one file or one GB."""
    workload = WORKLOADS[workload_name]
    with tempfile.TemporaryDirectory(prefix="fastfuse-bench-") as place:
        data = workload.data_set(_SCALE, Path(place))
        tasks = workload.share(data, workload.readers, _SCALE)
        with (
            Server(data.source, profile=PROFILES[profile], workers=2) as server,
            CANDIDATES[candidate](server, Path(place), Limits()) as mounted,
        ):
            assert isinstance(mounted, Mounted)
            get_ready(workload, mounted, tasks)
            looks_path = Path(place, "looks")
            with _watched(process_tree(mounted.pid)[-1], looks_path):
                run = read_once(mounted, tasks, workload.manner, server)
            count = run.gb if workload.is_bulk else run.spans
            return count / run.elapsed_s, run.cpu_s / count, seconds_held(looks_path.read_text()) / count


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser("python -m bench.interpreter", description=__doc__)
    parser.add_argument("--profile", choices=PROFILES, default="fast")
    parser.add_argument("--workloads", nargs="*", choices=WORKLOADS, default=_DEFAULT, metavar="NAME")
    parser.add_argument("--candidates", nargs="*", default=["fastfuse"], metavar="NAME", help="or fastfuse-hints")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args(arguments)
    print(", ".join(f"{name} {value}" for name, value in describe().items()))
    print("\n| medians | a second | CPU, ms | interpreter held, ms |\n|---|---:|---:|---:|")
    for workload in options.workloads:
        for candidate in options.candidates:
            found = [_measure(options.profile, workload, candidate) for _ in range(options.runs)]
            rate, cpu_s, held_s = map(statistics.median, zip(*found, strict=True))
            unit = "GB" if WORKLOADS[workload].is_bulk else "file"
            print(f"| {workload}, {candidate}, a {unit} | {rate:,.4g} | {cpu_s * 1e3:.3g} | {held_s * 1e3:.3g} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

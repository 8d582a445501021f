"""``python -m bench.requests``: what one request of the kernel costs the daemon, in microseconds of CPU.

The FUSE adapter answers from memory (`bench.fuse_only`), so what is measured is the adapter, the loop that serves it
and the kernel's side of the device: no S3, no readahead engine. One caller asks for one thing at a time. Reads bypass
the page cache (O_DIRECT), so that each is one request.
"""

import argparse
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.candidates import CANDIDATES, Limits
from bench.machine import describe, forget_names
from bench.mounting import Mounted
from bench.server import Server
from fastfuse.demo.processes import process_tree

__all__ = ["Cost", "main", "measure"]

_SMALL_BYTES = 4096
_LARGE_BYTES = 1 << 20
_FILE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one request, or of the few that belong together: the daemon's CPU time, user and system, and the caller's
    time."""

    cpu_us: float
    elapsed_us: float


def _cpu_s(pid: int) -> float:
    """CPU time of a process and its descendants, to the nanosecond; proc(5) has ticks of 10 ms."""
    # The kernel's number for another process's clock: clock_getcpuclockid(3), CPUCLOCK_SCHED in posix-timers.h.
    return sum(time.clock_gettime((~process << 3) | 2) for process in process_tree(pid))


def measure(mounted: Mounted, count: int, act: Callable[[int], object]) -> Cost:
    """Call `act` with 0 to `count` - 1, each of which asks the daemon for something."""
    cpu_before_s, started_s = _cpu_s(mounted.pid), time.perf_counter()
    for number in range(count):
        act(number)
    elapsed_s = time.perf_counter() - started_s
    # What the kernel sends without waiting (FORGET) is served before this.
    os.statvfs(mounted.root)
    return Cost((_cpu_s(mounted.pid) - cpu_before_s) / count * 1e6, elapsed_s / count * 1e6)


def _lookup(mounted: Mounted, names: list[str], count: int) -> Cost:
    forget_names()
    paths = [str(mounted.root / name) for name in names]
    return measure(mounted, min(count, len(paths)), lambda number: os.stat(paths[number]))


def _read(mounted: Mounted, names: list[str], count: int, size_bytes: int) -> Cost:
    fd = os.open(mounted.root / names[0], os.O_RDONLY | os.O_DIRECT)
    places = _FILE_BYTES // size_bytes
    try:
        # Aligned to a page, as O_DIRECT wants it.
        with mmap.mmap(-1, size_bytes) as buffer:
            return measure(mounted, count, lambda number: os.preadv(fd, [buffer], number % places * size_bytes))
    finally:
        os.close(fd)


_Measurement = Callable[[Mounted, list[str], int], Cost]
# And what share of --count is enough of it.
_REQUESTS: dict[str, tuple[_Measurement, float]] = {
    "lookup": (_lookup, 1.0),
    "read of 4 KiB": (lambda mounted, names, count: _read(mounted, names, count, _SMALL_BYTES), 1.0),
    "read of 1 MiB": (lambda mounted, names, count: _read(mounted, names, count, _LARGE_BYTES), 0.1),
}


@contextmanager
def _mounted(count: int) -> Iterator[tuple[Mounted, list[str]]]:
    with (
        Server(f"count={count},size={_FILE_BYTES}", workers=1) as server,
        tempfile.TemporaryDirectory(prefix="fastfuse-bench-") as place,
        CANDIDATES["fuse-only"](server, Path(place), Limits()) as mounted,
    ):
        assert isinstance(mounted, Mounted)
        yield mounted, os.listdir(mounted.root)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.requests", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="requests of each kind in a run")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args(arguments)
    if not forget_names():
        parser.error("only root can make the kernel forget names, so that each is looked up")
    print(", ".join(f"{name} {value}" for name, value in describe().items()))
    costs: dict[str, list[Cost]] = {name: [] for name in _REQUESTS}
    with _mounted(options.count) as (mounted, names):
        for _ in range(options.runs):
            for name, (cost_of, share) in _REQUESTS.items():
                costs[name].append(cost_of(mounted, names, max(1, int(options.count * share))))
    print(f"\n{options.count:,} of each, a tenth of it of 1 MiB; medians of {options.runs} runs\n")
    print("| | daemon's CPU, µs | caller waits, µs |\n|---|---:|---:|")
    for name, found in costs.items():
        cpu_us = statistics.median(cost.cpu_us for cost in found)
        elapsed_us = statistics.median(cost.elapsed_us for cost in found)
        print(f"| {name} | {cpu_us:.1f} | {elapsed_us:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

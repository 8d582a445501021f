"""``python -m bench.requests``: what one request of the kernel costs the daemon, in microseconds of CPU.

The FUSE adapter answers from memory (`bench.fuse_only`), so what is measured is the adapter, the loop that serves it
and the kernel's side of the device: no S3, no readahead engine. One caller asks for one thing at a time. Reads bypass
the page cache (O_DIRECT), so that each is one request.

``--watched`` measures reads that hit the memory of a whole mount instead: while nobody looks, while its metrics are
scraped ten times a second, and while `fastfuse trace` shows each read. Three mounts are read in turns.
"""

import argparse
import mmap
import os
import re
import select
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.candidates import CANDIDATES, Limits, fastfuse_mount
from bench.machine import describe, forget_names
from bench.mounting import Mounted
from bench.processes import process_tree
from bench.server import Server

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


# Reads go round in so much of a file, which the first ones bring into memory.
_HELD_BYTES = 4 << 20
_SCRAPE_EVERY_S = 0.1


@contextmanager
def _scraped(url: str) -> Iterator[None]:
    """Scrape the metrics until the end of the block."""
    over = threading.Event()

    def scrape() -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while not over.wait(_SCRAPE_EVERY_S):
            opener.open(url).read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _traced(root: Path) -> Iterator[None]:
    """Have a process read what `fastfuse trace` is told until the end of the block."""
    command = [sys.executable, "-m", "fastfuse", "trace", str(root), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as trace:
        assert trace.stdout is not None
        # The mount does not tell when it has begun: read until it shows a line.
        while not select.select([trace.stdout], [], [], 0)[0]:
            _hit(root, 1)
        drain = threading.Thread(target=trace.stdout.read)
        drain.start()
        try:
            yield
            assert trace.poll() is None
        finally:
            trace.terminate()
            drain.join()


def _hit(root: Path, count: int) -> None:
    fd = os.open(root / os.listdir(root)[0], os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, _SMALL_BYTES) as buffer:
            for number in range(count):
                os.preadv(fd, [buffer], number * _SMALL_BYTES % _HELD_BYTES)
    finally:
        os.close(fd)


def _watched(count: int, runs: int) -> dict[str, list[Cost]]:
    """Return the costs of reads that hit, by who looks meanwhile."""
    with ExitStack() as stack:
        server = stack.enter_context(Server(f"count=1,size={_FILE_BYTES}", workers=1))
        mounts = {}
        for name in ("nobody", "metrics", "trace"):
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fastfuse-bench-")))
            mounts[name] = stack.enter_context(fastfuse_mount(server, place, Limits()))
            _hit(mounts[name].root, _HELD_BYTES // _SMALL_BYTES)
            if name == "metrics":
                served = re.search(r"http://\S+/metrics", (place / "log").read_text())
                assert served is not None
                stack.enter_context(_scraped(served[0]))
        stack.enter_context(_traced(mounts["trace"].root))
        costs: dict[str, list[Cost]] = {name: [] for name in mounts}
        for _ in range(runs):
            for name, mounted in mounts.items():
                whole = measure(mounted, 1, partial(lambda root, _: _hit(root, count), mounted.root))
                costs[name].append(Cost(whole.cpu_us / count, whole.elapsed_us / count))
        return costs


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.requests", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="requests of each kind in a run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--watched", action="store_true", help="measure a whole mount while somebody looks")
    options = parser.parse_args(arguments)
    if not forget_names():
        parser.error("only root can make the kernel forget names, so that each is looked up")
    print(", ".join(f"{name} {value}" for name, value in describe().items()))
    costs = _watched(options.count, options.runs) if options.watched else _measured(options.count, options.runs)
    sizes = "reads of 4 KiB that hit" if options.watched else "of each, a tenth of it of 1 MiB"
    print(f"\n{options.count:,} {sizes}; medians of {options.runs} runs\n")
    print("| | daemon's CPU, µs | caller waits, µs |\n|---|---:|---:|")
    for name, found in costs.items():
        cpu_us = statistics.median(cost.cpu_us for cost in found)
        elapsed_us = statistics.median(cost.elapsed_us for cost in found)
        print(f"| {name} | {cpu_us:.1f} | {elapsed_us:.1f} |")
    return 0


def _measured(count: int, runs: int) -> dict[str, list[Cost]]:
    costs: dict[str, list[Cost]] = {name: [] for name in _REQUESTS}
    with (
        Server(f"count={count},size={_FILE_BYTES}", workers=1) as server,
        tempfile.TemporaryDirectory(prefix="fastfuse-bench-") as place,
        CANDIDATES["fuse-only"](server, Path(place), Limits()) as mounted,
    ):
        assert isinstance(mounted, Mounted)
        names = os.listdir(mounted.root)
        for _ in range(runs):
            for name, (cost_of, share) in _REQUESTS.items():
                costs[name].append(cost_of(mounted, names, max(1, int(count * share))))
    return costs


if __name__ == "__main__":
    sys.exit(main())

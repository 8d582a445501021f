"""The command line of ``python -m bench.soak``."""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.processes import process_tree
from bench.soak.data import Kind
from bench.soak.disturbances import DISTURBANCES, HANGS, SQUEEZED, Scene, Window, disturb
from bench.soak.judging import as_text, failure_counts, latency_rows, percentiles, too_slow, unexpected, unsettled
from bench.soak.mounting import SoakMount, at_rest, is_alive, sample, settled
from bench.soak.readers import MANNERS, Readers, Share
from bench.soak.server import SoakServer
from bench.soak.squeezing import MemoryGroup, memory_group
from fastfuse.filesystem.mounting.mountpoint import find_mount
from fastfuse.sizes import parse_size

_DESCRIPTION = """\
Reads a mount of a local S3 server in every way, compares every byte, and meanwhile kills and stops workers, has the
server die, refuse, throttle, stall, reset, truncate and lie, lets tokens expire, drops the page cache and refreshes.

Findings are wrong bytes, readers that are stuck, errors that docs/SEMANTICS.md does not allow for what was going on,
and whatever the mount's processes hold more of afterwards. It exits with 1 if there are any. The seed decides what
happens in which order. As root it drops the page cache of the whole machine, unless --keep-caches, and squeezes the
mount's memory, where a control group can be made.
"""
_KINDS = [
    Kind("small/", 4000, 1, 64 << 10),
    Kind("moving/", 400, 1, 256 << 10),
    Kind("middle/", 48, 1 << 20, 8 << 20),
    Kind("large/", 4, 64 << 20, 192 << 20),
]
# More than twice the deadline of a read.
_STUCK_S = 150.0
_PERIODS = 10
# Of the client (--max-connections), and of the threads that get small files.
_MOST_CONNECTIONS = 128 + 128
# From here on there is time for workers that hang, which are replaced after 6 s.
_LONG_S = 30.0
_LONGEST_S = 4.0
_SHOWN = 20


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m bench.soak", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--readers", type=int, default=1, help="of each manner")
    parser.add_argument("--memory-target", default="256MiB")
    parser.add_argument(
        "--only", action="append", choices=DISTURBANCES, metavar="NAME", help="disturb in this way only"
    )
    parser.add_argument(
        "--every", type=float, default=0.0, metavar="S", help="begin the next disturbance after so long"
    )
    parser.add_argument(
        "--longest", type=float, default=_STUCK_S, metavar="S", help="a read that takes longer is a finding"
    )
    parser.add_argument("--keep-caches", action="store_true", help="leave the page cache of other file systems alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was counted there")
    parser.add_argument("options", nargs="*", help="further options of `fastfuse mount`, behind --")
    return parser


def _read_calmly(mount: SoakMount, options: argparse.Namespace) -> list[str]:
    """Have the mount do everything for a while, undisturbed; return what went wrong all the same."""
    seconds = min(10.0, options.seconds / 10)
    readers = Readers(mount.root, _KINDS, options.seed, list(MANNERS), seconds)
    time.sleep(seconds)
    shares, stuck = readers.end(_STUCK_S)
    return [*stuck, *_judged(shares, [])]


class _Run:
    """The disturbed part of a run, and what was seen in it."""

    def __init__(
        self, mount: SoakMount, server: SoakServer, group: MemoryGroup | None, options: argparse.Namespace
    ) -> None:
        chance = random.Random(options.seed)
        self._scene = Scene(mount, server, chance, group=group, may_drop_caches=not options.keep_caches)
        self._names = options.only or [
            name
            for name in DISTURBANCES
            if (name != HANGS or options.seconds >= _LONG_S) and (name != SQUEEZED or group is not None)
        ]
        self._every_s: float = options.every
        self._seconds: float = options.seconds
        self.windows: list[Window] = []
        self.samples: list[dict[str, float]] = []
        self.findings = self._scene.findings

    def disturb(self, readers: Readers) -> None:
        """Disturb until the time is over, each disturbance once in a round, with quiet times in between."""
        started_s = time.monotonic()
        names: list[str] = []
        while time.monotonic() - started_s < self._seconds:
            names = names or self._scene.random.sample(self._names, len(self._names))
            next_s = time.monotonic() + self._every_s
            for name in (names.pop(), "quiet"):
                longest_s = min(_LONGEST_S, self._seconds / 40)
                self._scene.length_s = self._scene.random.uniform(longest_s / 8, longest_s)
                if name == "quiet":
                    self._scene.length_s = max(self._scene.length_s, next_s - time.monotonic())
                self.windows.append(disturb(self._scene, name))
            waits_s, manner = readers.longest_call()
            if waits_s > _STUCK_S:
                self.findings.append(f"a reader is stuck: {manner} waits for {waits_s:.0f} s")
                return
            if self._scene.mount.process.poll() is not None:
                self.findings.append("the mount has ended")
                return
            self._sample(started_s)

    def _sample(self, started_s: float) -> None:
        elapsed_s = time.monotonic() - started_s
        if elapsed_s >= (len(self.samples) + 1) * self._seconds / _PERIODS:
            self.samples.append({"elapsed_s": elapsed_s, **sample(self._scene.mount)})


def _end(mount: SoakMount) -> list[str]:
    """Unmount, and return what is left or was not as it should be."""
    pids = process_tree(mount.pid)
    code = mount.stop()
    findings = [] if code == 0 else [f"the mount ended with {code}"]
    findings += [f"process {pid} is left" for pid in pids if is_alive(pid)]
    if find_mount(mount.root) is not None:
        findings.append("it is still mounted")
    return findings


def _shared_memory() -> set[str]:
    """Return the names in shared memory but those that others make and a mount never does.

    They are semaphores of multiprocessing, and the files of another bench.
    """
    return {name for name in os.listdir("/dev/shm") if not name.startswith(("sem.mp-", "fastfuse-bench-"))}


def _soak(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    with (
        SoakServer(_KINDS) as server,
        memory_group() as group,
        SoakMount(place, server, options.memory_target, options.options) as mount,
    ):
        if group is not None:
            group.add(process_tree(mount.pid))
        shared_before = _shared_memory()
        findings = _read_calmly(mount, options)
        before = at_rest(mount)
        run = _Run(mount, server, group, options)
        manners = list(MANNERS) * options.readers
        readers = Readers(mount.root, _KINDS, options.seed, manners, options.seconds / _PERIODS)
        try:
            run.disturb(readers)
            shares, stuck = readers.end(_STUCK_S)
        finally:
            readers.kill()
        findings += [*run.findings, *stuck, *_judged(shares, run.windows), *_read_calmly(mount, options)]
        findings += too_slow(shares, options.longest)
        after = settled(mount, before)
        metrics = mount.metrics()
        findings += unsettled(before, after)
        connections = sample(mount)["connections"]
        findings += [f"{connections:.0f} connections are open"] if connections > _MOST_CONNECTIONS else []
        if metrics["fastfuse_pool_bytes"] > parse_size(options.memory_target):
            findings.append(f"parts of {metrics['fastfuse_pool_bytes']:,.0f} bytes are held")
        if metrics["fastfuse_handler_failures_total"]:
            findings.append("requests failed for unforeseen reasons")
        findings += _end(mount)
        findings += [f"a traceback in the log: {mount.log_path}"] if "Traceback" in mount.log else []
        findings += [f"left in /dev/shm: {name}" for name in _shared_memory() - shared_before]
    return {
        "seconds": options.seconds,
        "seed": options.seed,
        "reads": sum(share.reads for share in shares),
        "read_bytes": sum(share.read_bytes for share in shares),
        "kernel_requests": metrics["fastfuse_requests_total"],
        "fetch_requests": sum(count for name, count in metrics.items() if name.startswith("fastfuse_fetch_requests")),
        "fetched_bytes": metrics["fastfuse_fetched_bytes_total"],
        "respawns": metrics["fastfuse_worker_respawns_total"],
        "disturbances": Counter(window.name for window in run.windows),
        "latencies": latency_rows(shares),
        "periods": _periods(shares, run.samples),
        "errors": failure_counts([failure for share in shares for failure in share.failures], run.windows),
        "before": before,
        "after": after,
        "metrics": metrics,
        "findings": findings,
    }


def _judged(shares: Sequence[Share], windows: Sequence[Window]) -> list[str]:
    failures = [failure for share in shares for failure in share.failures]
    found = unexpected(failures, windows)
    shown = [
        f"{failure.name} {failure.manner} {failure.key} after {failure.ended_s - failure.started_s:.1f} s "
        f"{failure.detail} ({', '.join(causes) or 'nothing going on'})"
        for failure, causes in found[:_SHOWN]
    ]
    return shown + ([f"and {len(found) - _SHOWN} more such errors"] if len(found) > _SHOWN else [])


def _periods(shares: Sequence[Share], samples: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    rows = []
    for period, taken in enumerate(samples):
        counters = [share.latencies.get(period, Counter()) for share in shares]
        times = percentiles(counters, float("inf"))
        calls = sum(counter.total() for counter in counters)
        rows.append({"until_s": taken["elapsed_s"], "calls": calls, **times, **taken})
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak, print and write; returns the exit code."""
    options = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="fastfuse-soak-", ignore_cleanup_errors=True) as place:
        result = _soak(options, Path(place))
        if result["findings"]:
            sys.stderr.write(Path(place, "log").read_text(errors="replace")[-20_000:])
    print(as_text(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    return 1 if result["findings"] else 0

"""``python -m bench.outages``: what a mount makes of a server that allows few requests, and of one that is away.

Readers read small files whole, each once, so that a read is a GET. While the server allows N requests a second,
goodput is how many of these were used, and waste is the share of requests that were refused. For an outage, in which
the server is away or refuses everything, it counts the reads that failed, when the first one did, and how soon reads
succeed once the server is back. It exits with 1 if one of these is worse than it has to be.
"""

import argparse
import errno
import mmap
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.processes import fork_with_pipe
from bench.s3server.faults import SLOW_DOWN, FaultRule
from bench.soak.data import Kind
from bench.soak.mounting import SoakMount
from bench.soak.server import SoakServer

_KIND = Kind("small/", 60_000, 4096, 16_384)
# What the bucket of the server holds when the limit begins is used up by then.
_FIRST_S = 3.0
# Reads before an outage, and after it.
_AROUND_S = 3.0
# More than twice the deadline of a read.
_PATIENCE_S = 150.0

_LEAST_GOODPUT = 0.9
_MOST_WASTE = 0.05
# The deadline of a read, and how much longer a busy machine may take.
_DEADLINE_S = 60.0
_LATE_S = 5.0
# A pause between two attempts, and the attempt.
_WAITS_S = 5.0 + _LATE_S
_NEW_READ_S = 2.0


@dataclass(frozen=True, slots=True)
class Read:
    """One file read; `name` is that of its errno, or empty."""

    started_s: float
    ended_s: float
    name: str


class _Reads:
    """Reader processes, each with files of its own, that read until they are told to end."""

    def __init__(self, root: Path, readers: int) -> None:
        self._is_over = multiprocessing.RawValue("b", 0)
        keys = _KIND.keys()
        # Every other reader goes past the page cache: of a buffered read that fails the kernel asks again.
        self._pipes = [
            fork_with_pipe(_read_all, root, keys[index::readers], os.O_DIRECT if index % 2 else 0, self._is_over)[1]
            for index in range(readers)
        ]

    def end(self) -> list[Read]:
        """Return all reads; `TimeoutError` if one does not end."""
        self._is_over.value = 1
        reads = []
        for pipe in self._pipes:
            if not pipe.poll(_PATIENCE_S):
                raise TimeoutError("a reader is stuck")
            reads += pipe.recv()
        return reads


def _read_all(root: Path, keys: Sequence[str], flags: int, is_over: Any, result: Connection) -> None:  # noqa: ANN401 - ctypes'
    reads = []
    page = mmap.mmap(-1, _KIND.most_bytes)
    for key in keys:
        if is_over.value:
            break
        started_s = time.monotonic()
        name = ""
        try:
            fd = os.open(root / key, os.O_RDONLY | flags)
            try:
                os.preadv(fd, [page], 0)
            finally:
                os.close(fd)
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "other")
        reads.append(Read(started_s, time.monotonic(), name))
    result.send(reads)


@contextmanager
def _mounted(options: Sequence[str]) -> Iterator[tuple[SoakServer, SoakMount]]:
    with (
        tempfile.TemporaryDirectory(prefix="fastfuse-outages-", ignore_cleanup_errors=True) as place,
        SoakServer([_KIND]) as server,
        SoakMount(Path(place), server, "512MiB", options) as mount,
    ):
        yield server, mount


def measure_throttling(per_s: float, seconds: float, readers: int, options: Sequence[str] = ()) -> dict[str, float]:
    """Return goodput and waste, as shares, while the server allows `per_s` requests a second."""
    with _mounted(options) as (server, mount):
        with server.fault(FaultRule(action=SLOW_DOWN, operation="GetObject", spared_per_s=per_s)):
            reads = _Reads(mount.root, readers)
            time.sleep(_FIRST_S)
            before, refused_before, started_s = server.statistics(), server.hits(), time.monotonic()
            time.sleep(seconds)
            after, refused, elapsed_s = server.statistics(), server.hits(), time.monotonic() - started_s
            asked = after.requests["GetObject"] - before.requests.get("GetObject", 0)
            refused -= refused_before
        made = reads.end()
    return {
        "per_s": per_s,
        "goodput": (asked - refused) / (per_s * elapsed_s),
        "waste": refused / max(1, asked),
        "failed": sum(bool(read.name) for read in made),
        "longest_s": max(read.ended_s - read.started_s for read in made),
    }


def throttling_findings(figures: Mapping[str, float]) -> list[str]:
    """Return what `measure_throttling` found that is worse than it has to be."""
    findings = []
    if figures["goodput"] < _LEAST_GOODPUT:
        findings.append(f"only {figures['goodput']:.0%} of what the server allows was used")
    if figures["waste"] > _MOST_WASTE:
        findings.append(f"{figures['waste']:.1%} of the requests were refused")
    if figures["failed"]:
        findings.append(f"{figures['failed']:.0f} reads failed")
    return findings


@contextmanager
def _away(server: SoakServer) -> Iterator[None]:
    server.kill()
    try:
        yield
    finally:
        server.start()


def measure_outage(
    seconds: float, readers: int, options: Sequence[str] = (), *, is_refused: bool = False
) -> dict[str, Any]:
    """Return what readers got while the server was away for so long, or refused everything."""
    with _mounted(options) as (server, mount):
        reads = _Reads(mount.root, readers)
        time.sleep(_AROUND_S)
        with server.fault(FaultRule(action=SLOW_DOWN)) if is_refused else _away(server):
            gone_s = time.monotonic()
            time.sleep(seconds)
        back_s = time.monotonic()
        time.sleep(_AROUND_S)
        made = reads.end()
    failed = [read for read in made if read.name]
    # The reads that waited as the server came back, and those that began later, apart.
    waited = [read.ended_s - back_s for read in made if read.started_s < back_s < read.ended_s and not read.name]
    begun = [read.ended_s - read.started_s for read in made if read.started_s > back_s and not read.name]
    return {
        "seconds": seconds,
        "errors": dict(Counter(read.name for read in failed)),
        "first_error_after_s": min((read.ended_s - gone_s for read in failed), default=None),
        "failed_within_s": max((read.ended_s - read.started_s for read in failed), default=None),
        "waiting_reads_ended_within_s": max(waited, default=None),
        "errors_after_it_was_back": sum(read.ended_s > back_s for read in failed),
        "new_reads_after_it": len(begun),
        "slowest_new_read_s": max(begun, default=None),
    }


def outage_findings(figures: Mapping[str, Any]) -> list[str]:
    """Return what `measure_outage` found that is worse than it has to be."""
    findings = []
    errors, is_short = figures["errors"], figures["seconds"] < _DEADLINE_S
    if errors.keys() - (set() if is_short else {"EIO"}):
        findings.append(f"reads failed: {errors}")
    if errors and figures["failed_within_s"] > _DEADLINE_S + _LATE_S:
        findings.append(f"a read failed after {figures['failed_within_s']:.0f} s only")
    if not is_short and not errors:
        findings.append("no read failed at its deadline")
    if figures["errors_after_it_was_back"]:
        findings.append(f"{figures['errors_after_it_was_back']} reads failed after the end")
    if (figures["waiting_reads_ended_within_s"] or 0.0) > _WAITS_S:
        findings.append(f"a read that waited ended {figures['waiting_reads_ended_within_s']:.1f} s after the end")
    if not figures["new_reads_after_it"] or figures["slowest_new_read_s"] > _NEW_READ_S:
        findings.append("reads did not work at once after the end")
    return findings


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print a line for each."""
    parser = argparse.ArgumentParser(
        "python -m bench.outages", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--throttle", type=float, nargs="*", default=[], metavar="N", help="requests a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each throttling")
    parser.add_argument("--outage", type=float, nargs="*", default=[], metavar="SECONDS")
    parser.add_argument("--refusal", type=float, nargs="*", default=[], metavar="SECONDS", help="an outage with 503s")
    parser.add_argument("--readers", type=int, default=16)
    parser.add_argument("--option", action="append", default=[], help="a further option of `fastfuse mount`")
    options = parser.parse_args(arguments)
    if not options.throttle and not options.outage and not options.refusal:
        parser.error("say what to measure with --throttle, --outage or --refusal")
    findings = []
    for per_s in options.throttle:
        found = measure_throttling(per_s, options.seconds, options.readers, options.option)
        _print("throttling", found)
        findings += throttling_findings(found)
    for seconds, is_refused in [(each, False) for each in options.outage] + [(each, True) for each in options.refusal]:
        found = measure_outage(seconds, options.readers, options.option, is_refused=is_refused)
        _print("refusal" if is_refused else "outage", found)
        findings += outage_findings(found)
    for finding in findings:
        print(f"finding: {finding}")
    return 1 if findings else 0


def _print(what: str, figures: dict[str, Any]) -> None:
    shown = ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in figures.items()
    )
    print(f"{what}: {shown}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

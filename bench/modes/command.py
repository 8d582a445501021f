"""The command line of ``python -m bench.modes``."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench import machine
from bench.modes.figures import Figures, Measured, as_json, as_markdown, median, verdicts
from bench.modes.measure import CANDIDATES, WORKLOADS, Plan, measure
from bench.plots import Bar, Panel, draw
from bench.server import PROFILES

_DESCRIPTION = """\
Runs the same training script by `fastfuse run` in modes File, FastFile and Pipe, beside raw GETs: 2 GiB of TFRecords
in 20 files, and 20,000 files of 39 KB. Each run starts cold, candidates take turns, figures are medians.

The reader of TFRecords is a plain one that knows the framing and looks at no checksum, the same in all modes; small
files are read in a shuffled order by sixteen processes, and in Pipe mode as RecordIO by one reader. File mode downloads
to memory (/dev/shm).

Writes OUTPUT.json, OUTPUT.md and OUTPUT.png.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write and print; returns the exit code."""
    options = _parser().parse_args(arguments)
    plan = Plan(
        profile=options.profile,
        runs=options.runs,
        workloads=tuple(options.workloads),
        memory_target=options.memory_target,
    )
    facts = machine.describe() | {"server": PROFILES[plan.profile].description, "memory target": plan.memory_target}
    runs: list[Figures] = []
    for run in measure(plan, tuple(options.candidates)):
        runs.append(run)
        _tell(f"{run.workload} {run.candidate}: first {run.first_s:.2f} s, total {run.total_s:.2f} s")
    return _publish(Measured(facts=facts, runs=runs), options.output, is_checked=options.check)


def _publish(measured: Measured, output: Path, *, is_checked: bool) -> int:
    text = as_markdown(measured)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".json").write_text(as_json(measured))
    output.with_suffix(".md").write_text(text)
    print(text)
    title = "A training job in each mode, seconds from its start (less is better)"
    print(draw(output.with_suffix(".png"), title, _panels(measured.runs), columns=2, number="{:.2f}"))
    return 1 if is_checked and not all(each.is_met for each in verdicts(measured.runs)) else 0


def _panels(runs: Sequence[Figures]) -> list[Panel]:
    """Return two for each workload: the time of the first record, and of all."""
    shown = []
    for workload in dict.fromkeys(run.workload for run in runs):
        names = dict.fromkeys(run.candidate for run in runs if run.workload == workload)
        for figure, what in (("first_s", "first record"), ("total_s", "all records")):
            bars = [Bar(name, name, median(runs, workload, name, figure) or 0.0) for name in names]
            shown.append(Panel(f"{workload}: {what}", "s", bars))
    return shown


def _tell(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m bench.modes", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", choices=PROFILES, default="s3")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--candidates", nargs="+", choices=CANDIDATES, default=list(CANDIDATES))
    parser.add_argument("--memory-target", default="2GiB", metavar="SIZE")
    parser.add_argument("--output", type=Path, default=Path("bench/results/MODES"), help="without .json, .md and .png")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target was missed")
    return parser

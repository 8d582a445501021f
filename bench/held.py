"""``python -m bench.held``: how long a mount's interpreter is held, for each GB and for each file that is read.

py-spy, which has to be on the PATH, looks many times a second whether the worker holds it, without stopping it.
"""

import argparse
import signal
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench import machine
from bench.candidates import CANDIDATES, Candidate, Limits, fastfuse_mount
from bench.mounting import Mounted
from bench.processes import process_tree
from bench.readers import Manner, Outcome, Span
from bench.results import Run
from bench.server import PROFILES, Server
from bench.suite import Cell, Plan, run_suite
from bench.workloads import WORKLOADS

__all__ = ["main"]

_LOOKS_PER_S = 1000
_WORKLOADS = ("sequential-1", "sequential-4", "small-16-shuffled")


def _sampled(held_s: list[float]) -> Candidate:
    """Return a mount that adds to `held_s` how long each run has held its interpreter."""

    class Sampled(Mounted):
        def read(self, tasks: Sequence[Sequence[Span]], manner: Manner) -> list[Outcome]:
            found = self.root.parent / "held"
            command = ["py-spy", "record", "--gil", "--nonblocking", "--rate", str(_LOOKS_PER_S), "--format", "raw"]
            command += ["--output", str(found), "--pid", str(process_tree(self.pid)[-1])]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as spy:
                assert spy.stdout is not None
                spy.stdout.readline()  # says that it looks from now on
                outcomes = super().read(tasks, manner)
                spy.send_signal(signal.SIGINT)
                spy.communicate()
            # Each line is a stack and how often it was seen.
            held_s.append(sum(int(line.rpartition(" ")[2]) for line in found.read_text().splitlines()) / _LOOKS_PER_S)
            return outcomes

    @contextmanager
    def mount(server: Server, place: Path, limits: Limits) -> Iterator[Mounted]:
        with fastfuse_mount(server, place, limits) as mounted:
            yield Sampled(mounted.root, mounted.pid)

    return mount


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.held", description=__doc__)
    parser.add_argument("--profile", choices=sorted(PROFILES), default="fast")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in machine.describe().items()))
    print(f"\n{options.profile}, medians of {options.runs} runs\n\n| | held, s/GB | held, µs a file | CPU, s/GB |")
    print(f"|---|{'---:|' * 3}")
    for name in _WORKLOADS:
        held_s: list[float] = []
        runs: list[Run] = []
        CANDIDATES["sampled"] = _sampled(held_s)
        cell = Cell(
            profile=PROFILES[options.profile], workload=WORKLOADS[name], candidates=["sampled"], runs=options.runs
        )
        run_suite(Plan(cells=[cell]), runs.append)
        both = [*zip(held_s, runs, strict=True)]
        per_gb = statistics.median(one_s / run.gb for one_s, run in both)
        per_file = statistics.median(one_s / run.spans for one_s, run in both)
        cpu = statistics.median(run.cpu_s / run.gb for run in runs)
        print(f"| {name} | {per_gb:.3f} | {per_file * 1e6:,.0f} | {cpu:.2f} |", flush=True)


if __name__ == "__main__":
    main()

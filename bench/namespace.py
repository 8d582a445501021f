"""``python -m bench.namespace``: what looking around costs, beside rclone mount of the same server.

Each candidate is walked three times on its fresh mount, the third time for the sizes; rclone has its directories cached
then. Later figures are taken after the kernel's own cache of names was dropped, where that is permitted, so that every
name is asked of the candidate.
"""

import argparse
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench.candidates import CANDIDATES, Limits
from bench.machine import describe, forget_names
from bench.server import Server

_CANDIDATES = ("fastfuse", "rclone")
_FLAT_COUNT = 100_000
_STATS = 5_000
_SEED = 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Figures:
    """Of one candidate, of one run; seconds of the first `find` on a fresh mount, the second, and one for sizes."""

    walked_s: list[float]
    found_per_s: float
    listed_per_s: float
    stat_s: list[float]


def _listed(count: int, command: list[str]) -> tuple[list[bytes], float]:
    """Return the names that `command` prints, at least `count`, and the seconds that it takes."""
    started_s = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    elapsed_s = time.monotonic() - started_s
    names = done.stdout.splitlines()
    if len(names) < count:
        raise RuntimeError(f"{' '.join(command)} told {len(names)} names, not {count}")
    return names, elapsed_s


def _stats(names: list[Path]) -> list[float]:
    taken_s = []
    for name in names:
        started_s = time.perf_counter()
        os.stat(name)
        taken_s.append(time.perf_counter() - started_s)
    return taken_s


def _on_mount(candidate: str, layout: str, measure: Callable[[Path], T]) -> T:
    with Server(f"{layout},size=128KiB") as server, tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        with CANDIDATES[candidate](server, place, Limits()):
            return measure(place / "mount")


def _measure(candidate: str, count: int) -> _Figures:
    def walk(root: Path) -> tuple[list[float], float, list[float]]:
        find = ["find", str(root), "-type", "f"]
        walks = [_listed(count, [*find, *tests]) for tests in ([], [], ["-size", "+1k"])]
        names = [Path(os.fsdecode(name)) for name in random.Random(_SEED).sample(walks[0][0], _STATS)]
        forget_names()
        found_s = _listed(count, find)[1]
        forget_names()
        return [walk_s for _, walk_s in walks], count / found_s, _stats(names)

    def list_one(root: Path) -> float:
        os.listdir(root)
        forget_names()
        return _FLAT_COUNT / _listed(_FLAT_COUNT, ["ls", "-f", str(root)])[1]

    walked_s, found_per_s, stat_s = _on_mount(candidate, f"count={count},layout=dirs,dirs=1000", walk)
    listed_per_s = _on_mount(candidate, f"count={_FLAT_COUNT},layout=flat", list_one)
    return _Figures(walked_s, found_per_s, listed_per_s, stat_s)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.namespace", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="files for find and stat")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in describe().items()))
    print(f"\n{options.count:,} files in 1,000 directories, {_FLAT_COUNT:,} in one; medians of {options.runs} runs\n")
    titles = ("", "first find, s", "second, s", "find -size, s", "find, files/s", "ls -f, names/s")
    print(f"| {' | '.join((*titles, 'stat, median ms', 'p99 ms'))} |\n|---|{'---:|' * 7}")
    runs: dict[str, list[_Figures]] = {candidate: [] for candidate in _CANDIDATES}
    for _ in range(options.runs):
        for candidate in _CANDIDATES:
            runs[candidate].append(_measure(candidate, options.count))
    for candidate, figures in runs.items():
        walked = " | ".join(
            f"{statistics.median(each):.2f}" for each in zip(*(one.walked_s for one in figures), strict=True)
        )
        found_per_s = statistics.median(figure.found_per_s for figure in figures)
        listed_per_s = statistics.median(figure.listed_per_s for figure in figures)
        median_s = statistics.median(statistics.median(figure.stat_s) for figure in figures)
        p99_s = statistics.median(statistics.quantiles(figure.stat_s, n=100)[98] for figure in figures)
        rates = f"{found_per_s:,.0f} | {listed_per_s:,.0f} | {median_s * 1e3:.3f} | {p99_s * 1e3:.3f}"
        print(f"| {candidate} | {walked} | {rates} |")


if __name__ == "__main__":
    main()

"""Figures for people and for machines: a Markdown table with medians and ratios, a JSON file with every run."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from bench.suite import Plan, Run

__all__ = ["TARGETS", "Target", "Verdict", "as_json", "as_markdown", "verdicts"]

_OURS = "fastfuse"
_MIB = 1 << 20
# What the daemon may have resident beside the data: the interpreter, its libraries, the table.
_MEMORY_OVERHEAD_BYTES = 150 * _MIB


@dataclass(frozen=True, slots=True)
class Target:
    """Our mount reads `workload` at `least` times the speed of `rival`, at least."""

    workload: str
    rival: str
    least: float


# With 20 ms to the first byte and 90 MB/s per connection, as S3 has them.
TARGETS = (
    Target("sequential-1", "raw", 0.35),
    Target("sequential-1", "rclone", 2.5),
    Target("sequential-4", "rclone", 1.5),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one target was met."""

    text: str
    is_met: bool


def median(runs: Sequence[Run], workload: str, candidate: str, figure: str) -> float:
    """The median of a field or of ``mb_per_s``; `statistics.StatisticsError` if that was not measured."""
    values = [_figure(run, figure) for run in runs if (run.workload, run.candidate) == (workload, candidate)]
    return statistics.median(values)


def verdicts(runs: Sequence[Run], plan: Plan) -> list[Verdict]:
    """Every target whose workload and candidates were measured."""
    measured = {(run.workload, run.candidate) for run in runs}
    found = []
    for target in TARGETS:
        if {(target.workload, _OURS), (target.workload, target.rival)} <= measured:
            ours, rival = (median(runs, target.workload, name, "mb_per_s") for name in (_OURS, target.rival))
            text = f"{target.workload}: {_OURS} / {target.rival} = {ours / rival:.2f}, at least {target.least}"
            found.append(Verdict(text, ours / rival >= target.least))
    peaks = [run.peak_bytes for run in runs if run.candidate == _OURS]
    if peaks:
        limit_bytes = plan.limits.memory_target_bytes + _MEMORY_OVERHEAD_BYTES
        text = f"peak memory: {max(peaks) / _MIB:.0f} MiB, at most {limit_bytes / _MIB:.0f} MiB"
        found.append(Verdict(text, max(peaks) <= limit_bytes))
    return found


def as_markdown(runs: Sequence[Run], plan: Plan, facts: Mapping[str, str]) -> str:
    """One table per workload, and the verdicts."""
    lines = [
        f"{', '.join(f'{name} {value}' for name, value in facts.items())}.",
        "",
        f"Server: {plan.pace.first_byte_delay_s * 1e3:g} ms to the first byte, "
        f"{plan.pace.rate_bytes_per_s / 1e6:g} MB/s per connection (0: no limit). Medians of {plan.runs} runs, "
        f"the candidates in turns. Memory target {plan.limits.memory_target_bytes / _MIB:g} MiB.",
    ]
    for workload in plan.workloads:
        lines += ["", f"## {workload.name}: {workload.description}", "", *_table(runs, workload.name, plan.candidates)]
    lines += ["", *(f"- {'met' if verdict.is_met else 'MISSED'}: {verdict.text}" for verdict in verdicts(runs, plan))]
    return "\n".join(lines) + "\n"


def as_json(runs: Sequence[Run], plan: Plan, facts: Mapping[str, str]) -> str:
    """Everything that was measured."""
    document = {
        "machine": dict(facts),
        "scale": asdict(plan.scale),
        "pace": asdict(plan.pace),
        "limits": asdict(plan.limits),
        "runs": [asdict(run) for run in runs],
        "verdicts": [asdict(verdict) for verdict in verdicts(runs, plan)],
    }
    return json.dumps(document, indent=1) + "\n"


def _table(runs: Sequence[Run], workload: str, candidates: Sequence[str]) -> list[str]:
    headings = ["", "MB/s", f"{_OURS} / it", "files/s", "first byte ms", "span ms", "p99 ms", "CPU s/GB", "peak MiB"]
    lines = [_line(headings), _line(["---", *["---:"] * (len(headings) - 1)])]
    ours = median(runs, workload, _OURS, "mb_per_s") if _OURS in candidates else 0.0
    for candidate in candidates:
        value = {name: median(runs, workload, candidate, name) for name in _FIGURES}
        cells = [
            candidate,
            f"{value['mb_per_s']:.0f}",
            f"{ours / value['mb_per_s']:.2f}",
            f"{value['files_per_s']:.0f}",
        ]
        cells += [f"{value[name] * 1e3:.1f}" for name in ("first_byte_s", "span_s", "span_p99_s")]
        cells += [f"{value['cpu_s_per_gb']:.2f}", f"{value['peak_bytes'] / _MIB:.0f}"]
        lines.append(_line(cells))
    return lines


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


_FIGURES = ("mb_per_s", "files_per_s", "first_byte_s", "span_s", "span_p99_s", "cpu_s_per_gb", "peak_bytes")


def _figure(run: Run, figure: str) -> float:
    match figure:
        case "mb_per_s":
            return run.size_bytes / run.elapsed_s / 1e6
        case "files_per_s":
            return run.files / run.elapsed_s
        case "cpu_s_per_gb":
            return run.cpu_s / (run.size_bytes / 1e9)
        case _:
            return float(getattr(run, figure))

"""Figures for people and for machines: Markdown tables with medians and ratios, a JSON file with every run."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from bench.results import Results
from bench.server import PROFILES
from bench.suite import Measured, Plan
from bench.verdicts import Verdict, speed, verdicts
from bench.workloads import WORKLOADS, Workload

_OURS = "fastfuse"
_MIB = 1 << 20

# Heading, figure of `bench.results.Run`, by which other one it is divided, and how it is written.
_Column = tuple[str, str, str, Callable[[float], str]]


def _fixed(digits: int, factor: float = 1.0) -> Callable[[float], str]:
    return lambda value: f"{value * factor:,.{digits}f}"


_COMMON: tuple[_Column, ...] = (
    ("cores busy", "busy_cores", "", _fixed(1)),
    ("peak MiB", "peak_bytes", "", _fixed(0, 1 / _MIB)),
    ("requests", "requests", "", _fixed(0)),
    ("fetched / asked", "fetched_share", "", _fixed(2)),
)
_BULK: tuple[_Column, ...] = (
    ("first byte ms", "first_byte_s", "", _fixed(1, 1e3)),
    ("CPU s/GB", "cpu_s", "gb", _fixed(2)),
    ("readers' CPU s/GB", "readers_cpu_s", "gb", _fixed(2)),
    ("server's CPU s/GB", "server_cpu_s", "gb", _fixed(2)),
    *_COMMON,
)
_ONE_BY_ONE: tuple[_Column, ...] = (
    ("first byte ms", "first_byte_s", "", _fixed(2, 1e3)),
    ("median ms", "span_s", "", _fixed(2, 1e3)),
    ("p99 ms", "span_p99_s", "", _fixed(1, 1e3)),
    ("CPU ms each", "cpu_s", "spans", _fixed(2, 1e3)),
    ("readers' CPU ms each", "readers_cpu_s", "spans", _fixed(2, 1e3)),
    ("server's CPU ms each", "server_cpu_s", "spans", _fixed(2, 1e3)),
    *_COMMON,
)


def as_markdown(measured: Measured, plan: Plan, facts: Mapping[str, str], elapsed_s: float) -> str:
    """The verdicts, and one table for each workload on each kind of server."""
    results = Results(measured.runs)
    lines = [
        f"{', '.join(f'{name} {value}' for name, value in facts.items())}.",
        "",
        f"{len(results.runs)} runs in {elapsed_s / 60:.1f} minutes; medians, the candidates of a table in turns. CPU "
        "is the daemon's (the client's where none is); cores busy are those of daemon, readers and server. At most "
        f"{plan.limits.max_connections} requests at once ({plan.limits.raw_requests} of the "
        f"raw client), parts of {plan.limits.part_bytes / _MIB:g} MiB.",
    ]
    lines += ["", *verdict_table(verdicts(results))]
    lines += ["", *(f"- left out: {name} {reason}" for name, reason in measured.notes.items())]
    for profile in PROFILES.values():
        workloads = [WORKLOADS[workload] for name, workload in results.cells() if name == profile.name]
        if workloads:
            lines += ["", f"## Server {profile.name}: {profile.description}"]
        for workload in workloads:
            lines += ["", f"### {workload.name}: {workload.description}", ""]
            lines += _table(results, profile.name, workload)
    return "\n".join(lines) + "\n"


def as_json(measured: Measured, plan: Plan, facts: Mapping[str, str], elapsed_s: float) -> str:
    """Everything that was measured."""
    document = {
        "machine": dict(facts),
        "elapsed_s": elapsed_s,
        "scale": asdict(plan.scale),
        "limits": asdict(plan.limits),
        "profiles": {name: asdict(profile) for name, profile in PROFILES.items()},
        "left_out": measured.notes,
        "verdicts": [asdict(verdict) | {"is_met": verdict.is_met} for verdict in verdicts(Results(measured.runs))],
        "runs": [asdict(run) for run in measured.runs],
    }
    return json.dumps(document, indent=1) + "\n"


def verdict_table(judged: Sequence[Verdict]) -> list[str]:
    if not judged:
        return []
    lines = [line(["", "", "measured", "target", ""]), line(["---", "---", "---:", "---:", "---"])]
    for verdict in judged:
        bound = f"{'≤' if verdict.is_upper else '≥'} {verdict.bound:,.4g}"
        outcome = "met" if verdict.is_met else "**missed**"
        lines.append(line([verdict.topic, verdict.text, f"{verdict.value:,.4g}", bound, outcome]))
    return lines


def _table(results: Results, profile: str, workload: Workload) -> list[str]:
    columns = _BULK if workload.is_bulk else _ONE_BY_ONE
    lines = head(["", "runs", workload.unit, f"{_OURS} / it", *(heading for heading, *_ in columns)])
    cell = (profile, workload.name)
    ours = speed(results, *cell, _OURS)
    for candidate in results.candidates(*cell):
        its = speed(results, *cell, candidate)
        cells = [candidate, str(len(results.of(*cell, candidate))), _text(its, _fixed(0))]
        cells.append(_text(ours / its if ours and its else None, _fixed(2)))
        cells += [_text(results.median(*cell, candidate, figure, per), write) for _, figure, per, write in columns]
        lines.append(line(cells))
    return lines


def _text(value: float | None, write: Callable[[float], str]) -> str:
    return "–" if value is None else write(value)


def head(headings: Sequence[str]) -> list[str]:
    """Return the first two lines of a table, whose first column is text."""
    return [line(headings), line(["---", *["---:"] * (len(headings) - 1)])]


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

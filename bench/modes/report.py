"""The figures for people and for machines. Pure."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from bench.modes.figures import ChannelFigures, Figures, median, median_stages, verdicts
from bench.report import head, line, verdict_table

__all__ = ["Measured", "as_json", "as_markdown"]

_MIB = 1 << 20
_DESCRIPTIONS = {
    "tfrecords": "one reader of all TFRecords, file after file",
    "small": "all files by sixteen processes, shuffled; of a stream, records by one reader",
}
_HEADINGS = (
    ("first record s", "first_s", 2),
    ("total s", "total_s", 2),
    ("gone s", "over_s", 2),
    ("MB/s while reading", "mb_per_s", 0),
    ("CPU s", "cpu_s", 2),
    ("script's CPU s", "script_cpu_s", 2),
    ("server's CPU s", "server_cpu_s", 2),
    ("requests", "requests", 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All runs, and what they depend on."""

    facts: Mapping[str, str]
    runs: Sequence[Figures]
    channels: Sequence[ChannelFigures]


def as_markdown(measured: Measured) -> str:
    """Verdicts, a table for each workload, the stages of the start, and many channels."""
    runs = measured.runs
    lines = [f"{', '.join(f'{name} {value}' for name, value in measured.facts.items())}.", ""]
    lines += [
        "Medians. Seconds are from the start of `fastfuse run`, of raw GETs from the first; total is until the last "
        "record was read, gone until the job was; MB/s are from the start of the script."
    ]
    lines += ["", *verdict_table(verdicts(runs, measured.channels))]
    for workload in dict.fromkeys(run.workload for run in runs):
        candidates = list(dict.fromkeys(run.candidate for run in runs if run.workload == workload))
        size_bytes = next(run.size_bytes for run in runs if run.workload == workload)
        lines += ["", f"## {workload}: {_DESCRIPTIONS[workload]} ({size_bytes / _MIB:,.0f} MiB)", ""]
        lines += _table(runs, workload, candidates)
        lines += ["", "Start, ms:", "", *_stages(runs, workload, candidates)]
    if measured.channels:
        lines += ["", "## Channels", "", *_channels(measured.channels)]
    return "\n".join(lines) + "\n"


def as_json(measured: Measured) -> str:
    """Everything that was measured."""
    judged = verdicts(measured.runs, measured.channels)
    document = {
        "machine": dict(measured.facts),
        "verdicts": [asdict(verdict) | {"is_met": verdict.is_met} for verdict in judged],
        "runs": [asdict(run) for run in measured.runs],
        "channels": [asdict(each) for each in measured.channels],
    }
    return json.dumps(document, indent=1) + "\n"


def _table(runs: Sequence[Figures], workload: str, candidates: Sequence[str]) -> list[str]:
    lines = head(["", "runs", *(heading for heading, _, _ in _HEADINGS)])
    for candidate in candidates:
        count = sum((run.workload, run.candidate) == (workload, candidate) for run in runs)
        values = [(median(runs, workload, candidate, figure) or 0.0, digits) for _, figure, digits in _HEADINGS]
        lines.append(line([candidate, str(count), *(f"{value:,.{digits}f}" for value, digits in values)]))
    return lines


def _stages(runs: Sequence[Figures], workload: str, candidates: Sequence[str]) -> list[str]:
    stages = {candidate: median_stages(runs, workload, candidate) for candidate in candidates}
    names = list(dict.fromkeys(name for each in stages.values() for name in each))
    return [
        *head(["", *names]),
        *(
            line([candidate, *(f"{each[name] * 1e3:,.0f}" if name in each else "–" for name in names)])
            for candidate, each in stages.items()
            if each
        ),
    ]


def _channels(channels: Sequence[ChannelFigures]) -> list[str]:
    lines = head(["channels", "runs", "ready s", "CPU s", "memory target MiB", "peak PSS MiB", "MB/s"])
    for count, is_read in dict.fromkeys((each.channels, each.peak_bytes > 0) for each in channels):
        runs = [each for each in channels if (each.channels, each.peak_bytes > 0) == (count, is_read)]
        cells = [f"{count}{' read at once' if is_read else ''}", str(len(runs))]
        cells += [f"{statistics.median(each.ready_s for each in runs):.2f}"]
        cells += [f"{statistics.median(each.cpu_s for each in runs):.2f}"]
        held = [runs[0].memory_target_bytes / _MIB, max(each.peak_bytes for each in runs) / _MIB, runs[0].mb_per_s]
        lines.append(line([*cells, *(f"{value:,.0f}" if is_read else "–" for value in held)]))
    return lines

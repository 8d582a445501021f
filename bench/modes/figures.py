"""The figures of single runs, their medians, what they are to be, and how they are shown. Pure."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from bench.report import head, line, verdict_table
from bench.verdicts import Verdict, ratio

_FIRST_RECORD_S = 2.0
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One candidate on one workload, once. Seconds are from the start of ``fastfuse run``, of raw GETs from theirs."""

    workload: str = ""
    candidate: str = ""
    size_bytes: int
    records: int
    # Until the channels could be read, the script ran, and it had its first record.
    ready_s: float = 0.0
    script_s: float = 0.0
    first_s: float
    # Until the last record was read; until the job was gone.
    total_s: float
    over_s: float
    # CPU seconds of fastfuse or the raw client, of the script, of the server.
    cpu_s: float
    script_cpu_s: float = 0.0
    server_cpu_s: float = 0.0
    requests: int = 0
    # How long each stage of the start took, by name; the last one is until the first record.
    stages: Mapping[str, float] = field(default_factory=dict)

    @property
    def mb_per_s(self) -> float:
        """While it was read."""
        return self.size_bytes / (self.total_s - self.script_s) / 1e6


def median(runs: Sequence[Figures], workload: str, candidate: str, figure: str) -> float | None:
    """Of a field or property of `Figures`; None if that was not measured."""
    values = [float(getattr(run, figure)) for run in runs if (run.workload, run.candidate) == (workload, candidate)]
    return statistics.median(values) if values else None


def median_stages(runs: Sequence[Figures], workload: str, candidate: str) -> dict[str, float]:
    """Of each stage of the start, in their order."""
    stages = [run.stages for run in runs if (run.workload, run.candidate) == (workload, candidate)]
    names = dict.fromkeys(name for each in stages for name in each)
    return {name: statistics.median(each[name] for each in stages if name in each) for name in names}


def verdicts(runs: Sequence[Figures]) -> list[Verdict]:
    """Every target of which all was measured."""

    def of(workload: str, candidate: str, figure: str) -> float | None:
        return median(runs, workload, candidate, figure)

    judged = []
    for name in ("tfrecords", "small"):
        text = f"{name}: FastFile's first record, s"
        first_s = of(name, "FastFile", "first_s")
        judged += ratio("first record", text, first_s, 1.0, _FIRST_RECORD_S, is_upper=True)
    for name, other, most in (("tfrecords", "Pipe", 1.05), ("small", "File", 1.2)):
        ours_s, other_s = of(name, "FastFile", "total_s"), of(name, other, "total_s")
        text = f"{name}: FastFile {{:.2f}} s / {other} {{:.2f}} s"
        judged += ratio("total", text, ours_s, other_s, most, is_upper=True)
    for name in ("tfrecords", "small"):
        text = f"{name}: Pipe {{:.0f}} MB/s from the script's start / raw GETs {{:.0f}} MB/s"
        judged += ratio("Pipe", text, of(name, "Pipe", "mb_per_s"), of(name, "raw", "mb_per_s"), 0.6)
    return judged


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


def as_markdown(measured: Measured) -> str:
    """Verdicts, a table for each workload, and the stages of the start."""
    runs = measured.runs
    lines = [f"{', '.join(f'{name} {value}' for name, value in measured.facts.items())}.", ""]
    lines += [
        "Medians. Seconds are from the start of `fastfuse run`, of raw GETs from the first; total is until the last "
        "record was read, gone until the job was; MB/s are from the start of the script."
    ]
    lines += ["", *verdict_table(verdicts(runs))]
    for workload in dict.fromkeys(run.workload for run in runs):
        candidates = list(dict.fromkeys(run.candidate for run in runs if run.workload == workload))
        size_bytes = next(run.size_bytes for run in runs if run.workload == workload)
        lines += ["", f"## {workload}: {_DESCRIPTIONS[workload]} ({size_bytes / _MIB:,.0f} MiB)", ""]
        lines += _table(runs, workload, candidates)
        lines += ["", "Start, ms:", "", *_stages(runs, workload, candidates)]
    return "\n".join(lines) + "\n"


def as_json(measured: Measured) -> str:
    """Everything that was measured."""
    judged = verdicts(measured.runs)
    document = {
        "machine": dict(measured.facts),
        "verdicts": [asdict(verdict) | {"is_met": verdict.is_met} for verdict in judged],
        "runs": [asdict(run) for run in measured.runs],
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

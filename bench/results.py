"""The runs, and the figures that are made of them. Pure."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One candidate, one workload, one kind of server, once."""

    profile: str = ""
    workload: str = ""
    candidate: str = ""
    size_bytes: int
    elapsed_s: float
    # What was timed one by one: whole files, or random reads; parts, where the raw client reads large files.
    spans: int
    # CPU seconds of the daemon (of the client where none is), of the readers, of the server.
    cpu_s: float = 0.0
    readers_cpu_s: float = 0.0
    server_cpu_s: float = 0.0
    # The most memory of the daemon and all its processes (of the client where none is).
    peak_bytes: int = 0
    # What the server was asked for meanwhile, and sent.
    requests: int = 0
    fetched_bytes: int = 0
    # Medians and the 99th percentile over files and spans; 0 where the candidate opens no file.
    first_byte_s: float = 0.0
    span_s: float = 0.0
    span_p99_s: float = 0.0

    @property
    def mb_per_s(self) -> float:
        return self.size_bytes / self.elapsed_s / 1e6

    @property
    def spans_per_s(self) -> float:
        return self.spans / self.elapsed_s

    @property
    def gb(self) -> float:
        return self.size_bytes / 1e9

    @property
    def busy_cores(self) -> float:
        """Of the daemon, the readers and the server together."""
        return (self.cpu_s + self.readers_cpu_s + self.server_cpu_s) / self.elapsed_s

    @property
    def fetched_share(self) -> float:
        """Bytes fetched for each byte asked for."""
        return self.fetched_bytes / self.size_bytes


class Results:
    """The runs by what they measured."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self.runs = tuple(runs)

    def of(self, profile: str, workload: str, candidate: str) -> list[Run]:
        wanted = (profile, workload, candidate)
        return [run for run in self.runs if (run.profile, run.workload, run.candidate) == wanted]

    def median(self, profile: str, workload: str, candidate: str, figure: str, per: str = "") -> float | None:
        """The median of a field or property of `Run`, or of its share of another; None if that was not measured."""
        runs = self.of(profile, workload, candidate)
        values = [float(getattr(run, figure)) / (getattr(run, per) if per else 1) for run in runs]
        return statistics.median(values) if values else None

    def cells(self) -> list[tuple[str, str]]:
        """Profile and workload of everything measured, in the order of the first run of each."""
        return list(dict.fromkeys((run.profile, run.workload) for run in self.runs))

    def candidates(self, profile: str, workload: str) -> list[str]:
        """Of one cell, in the order of the first run of each."""
        found = (run.candidate for run in self.runs if (run.profile, run.workload) == (profile, workload))
        return list(dict.fromkeys(found))

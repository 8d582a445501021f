"""Decide which failures of readers are findings, and show what a soak counted. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.soak.data import MOVING
from bench.soak.disturbances import DISTURBANCES, Window
from bench.soak.readers import SHORT, WRONG, Failure, Share, latency_of

# What is left of a disturbance when it is over: retries under way, and readahead that failed and is asked for again.
_AFTER_S = 1.5


def causes(failure: Failure, windows: Iterable[Window]) -> list[str]:
    """Return the disturbances that a failure may be due to, quiet times left out."""
    if _is_of_a_change(failure):
        return ["the object has changed"]
    return [
        window.name
        for window in windows
        if window.name != "quiet"
        if window.started_s <= failure.ended_s and failure.started_s <= window.ended_s + _AFTER_S
    ]


def _is_of_a_change(failure: Failure) -> bool:
    """Return whether a moving object was replaced or is gone, as it may be at any time (D2, L6)."""
    return failure.key.startswith(MOVING) and failure.name in ("ESTALE", "ENOENT", SHORT)


def _is_allowed(failure: Failure, windows: Sequence[Window]) -> bool:
    if failure.name == WRONG:
        return False
    if _is_of_a_change(failure):
        return True
    around = causes(failure, windows)
    # A directory that is listed while the view is swapped (N6).
    if failure.manner == "found" and "refresh" in around and failure.name == "ESTALE":
        return True
    allowed = frozenset[str]().union(*(DISTURBANCES[name].allowed for name in around))
    # A short read is the kernel's way to say that the next one fails.
    return bool(allowed) if failure.name == SHORT else failure.name in allowed


def unexpected(failures: Iterable[Failure], windows: Sequence[Window]) -> list[tuple[Failure, list[str]]]:
    """Return the failures that no clause allows, each with what was going on."""
    return [(failure, causes(failure, windows)) for failure in failures if not _is_allowed(failure, windows)]


def unsettled(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """Return what the mount holds more of than before."""
    return [
        f"{name}: {before.get(name, 0):g} before, {count:g} after"
        for name, count in after.items()
        if count > before.get(name, 0)
    ]


def too_slow(shares: Iterable[Share], longest_s: float) -> list[str]:
    """Return the readers with a call that took longer."""
    return [f"a call of {share.manner} took {share.slowest_s:.1f} s" for share in shares if share.slowest_s > longest_s]


_QUANTILES = {"p50_s": 0.5, "p99_s": 0.99, "p999_s": 0.999}


def percentiles(latencies: Iterable[Counter[int]], slowest_s: float) -> dict[str, float]:
    """Return the latencies that so many calls stay under, each up to 9 % too high, and the longest."""
    total: Counter[int] = sum(latencies, Counter())
    calls = total.total()
    found = dict.fromkeys(_QUANTILES, 0.0)
    for name, quantile in _QUANTILES.items():
        seen = 0
        for bucket in sorted(total):
            seen += total[bucket]
            if seen >= quantile * calls:
                found[name] = min(slowest_s, latency_of(bucket))
                break
    return {**found, "max_s": slowest_s}


def failure_counts(failures: Iterable[Failure], windows: Sequence[Window]) -> dict[str, int]:
    """Count failures by errno, manner of reading, and what was going on."""
    counted = Counter(
        f"{failure.name} {failure.manner}, {' and '.join(causes(failure, windows)) or 'nothing going on'}"
        for failure in failures
    )
    return dict(counted.most_common())


def as_text(result: dict[str, Any]) -> str:
    lines = [
        f"soak: {result['seconds']:.0f} s, seed {result['seed']}, {result['reads']:,} reads compared, "
        f"{result['read_bytes'] / 1e9:.1f} GB; {result['kernel_requests']:,.0f} requests reached the mount",
        f"  to S3: {result['fetch_requests']:,.0f} GETs, {result['fetched_bytes'] / 1e9:.1f} GB; "
        f"workers respawned {result['respawns']:.0f} times",
        "disturbances: " + ", ".join(f"{name} {count}" for name, count in sorted(result["disturbances"].items())),
        "latency            calls      p50      p99    p99.9      max",
    ]
    for name, row in result["latencies"].items():
        lines.append(f"  {name:12} {row['calls']:10,} " + " ".join(_time(row[key]) for key in _COLUMNS))
    lines.append("over the run       calls      p50      p99   memory  descriptors  threads")
    lines += [
        f"  {row['until_s']:8.0f} s   {row['calls']:10,} {_time(row['p50_s'])} {_time(row['p99_s'])} "
        f"{row['memory_bytes'] / (1 << 20):5.0f} MiB {row['descriptors']:9.0f} {row['threads']:8.0f}"
        for row in result["periods"]
    ]
    lines.append("errors that readers got:" + ("" if result["errors"] else " none"))
    lines += [f"  {count:6} × {what}" for what, count in result["errors"].items()]
    lines.append(f"findings: {len(result['findings'])}")
    lines += [f"  {finding}" for finding in result["findings"]]
    return "\n".join(lines)


_COLUMNS = ("p50_s", "p99_s", "p999_s", "max_s")


def _time(value_s: float) -> str:
    if value_s < 0.01:
        return f"{value_s * 1e6:5.0f} µs"
    return f"{value_s * 1e3:5.0f} ms" if value_s < 10 else f"{value_s:5.1f} s "


def latency_rows(shares: Sequence[Share]) -> dict[str, dict[str, float]]:
    rows = {}
    for name, chosen in [(share.manner, [share]) for share in shares] + [("all", list(shares))]:
        counters = [counter for share in chosen for counter in share.latencies.values()]
        slowest_s = max((share.slowest_s for share in chosen), default=0.0)
        rows[name] = {"calls": sum(counter.total() for counter in counters), **percentiles(counters, slowest_s)}
    return rows

"""What the mount is to reach, and whether it did: ratios of medians within one run of the bench. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bench.candidates import LIMITED, LIMITED_BYTES, RCLONES
from bench.results import Results
from bench.server import PROFILES
from bench.workloads import SMALL_FILE_BYTES, WORKLOADS

_OURS = "fastfuse"
_MIB = 1 << 20
_RANDOM_READ_BYTES = 256 << 10
_HINTED_FILES_PER_S = 4000
_RAW = ("raw",)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one target was met; `topic` is what it is about."""

    topic: str
    text: str
    value: float
    bound: float
    is_upper: bool = False

    @property
    def is_met(self) -> bool:
        return self.value <= self.bound if self.is_upper else self.value >= self.bound


@dataclass(frozen=True, slots=True)
class _Speed:
    """`ours` reads at `least` times the speed of the best of `rivals`."""

    topic: str
    profile: str
    workload: str
    rivals: tuple[str, ...]
    least: float
    ours: str = _OURS


_SPEEDS = (
    _Speed("throughput", "s3", "sequential-1", RCLONES, 4.0),
    _Speed("throughput", "s3", "sequential-1", _RAW, 0.5),
    _Speed("throughput", "s3", "sequential-4", RCLONES, 2.0),
    _Speed("throughput", "s3", "sequential-4", _RAW, 0.5),
    _Speed("TLS", "fast-tls", "sequential-1", RCLONES, 2.0),
    _Speed("TLS", "fast-tls", "sequential-1", _RAW, 0.5),
    _Speed("TLS", "fast-tls", "sequential-4", RCLONES, 1.5),
    _Speed("TLS", "fast-tls", "sequential-4", _RAW, 0.5),
    _Speed("memory", "s3", "sequential-1", (_OURS,), 0.9, ours=LIMITED),
    _Speed("memory", "s3", "sequential-4", (_OURS,), 0.9, ours=LIMITED),
    _Speed("later epochs", "s3", "warm-4", ("local",), 0.8),
)
# Bytes fetched for each byte asked for; one that is read three times stays in the page cache.
_MOST_FETCHED = (
    *(("random-4-256k", 1.15), ("sequential-1", 1.05), ("sequential-4", 1.05)),
    *(("eighths-8", 1.02), ("again-1", 1.02 / 3)),
)
_SEQUENTIAL = tuple((profile, f"sequential-{readers}") for profile in ("s3", "fast-tls") for readers in (1, 4))


def verdicts(results: Results) -> list[Verdict]:
    """Every target of which all was measured."""
    judged = [
        *(verdict for target in _SPEEDS for verdict in _speed(results, target)),
        *_memory(results),
        *_latency(results),
        *_small_files(results),
        *_hinted(results),
        *_warm_requests(results),
        *_cpu(results),
    ]
    topics = list(dict.fromkeys(verdict.topic for verdict in judged))
    return sorted(judged, key=lambda verdict: topics.index(verdict.topic))


def ratio(
    topic: str, text: str, ours: float | None, theirs: float | None, bound: float, *, is_upper: bool = False
) -> list[Verdict]:
    """Judge `ours` / `theirs`, which `text` has both in it; return nothing where one was not measured."""
    if ours is None or not theirs:
        return []
    return [Verdict(topic, text.format(ours, theirs), ours / theirs, bound, is_upper)]


def speed(results: Results, profile: str, workload: str, candidate: str) -> float | None:
    """The median in the workload's own unit."""
    figure = "mb_per_s" if WORKLOADS[workload].is_bulk else "spans_per_s"
    return results.median(profile, workload, candidate, figure)


def _best(results: Results, profile: str, workload: str, candidates: Iterable[str]) -> tuple[str, float] | None:
    speeds = {name: speed(results, profile, workload, name) for name in candidates}
    known = {name: value for name, value in speeds.items() if value is not None}
    return max(known.items(), key=lambda item: item[1]) if known else None


def _speed(results: Results, target: _Speed) -> list[Verdict]:
    name, rival = _best(results, target.profile, target.workload, target.rivals) or ("", None)
    unit = WORKLOADS[target.workload].unit
    text = f"{target.profile} {target.workload}: {target.ours} {{:.0f}} {unit} / {name} {{:.0f}}"
    ours = speed(results, target.profile, target.workload, target.ours)
    return ratio(target.topic, text, ours, rival, target.least)


def _memory(results: Results) -> Iterator[Verdict]:
    peaks = [run.peak_bytes for run in results.runs if run.candidate == LIMITED]
    if peaks:
        bound = LIMITED_BYTES / _MIB
        has_many = any(run.workload == "open-64" for run in results.runs if run.candidate == LIMITED)
        text = f"the highest peak of {len(peaks)} runs of {LIMITED}, MiB{'; 64 files open' if has_many else ''}"
        yield Verdict("memory", text, max(peaks) / _MIB, bound, is_upper=True)


def _bound(results: Results, topic: str, workload: str, size_bytes: int, least: float) -> list[Verdict]:
    """Judge beside what as many readers get that wait for one GET after the other."""
    known = WORKLOADS[workload]
    bound = known.readers / PROFILES["s3"].get_s(size_bytes)
    text = f"s3 {workload}: {{:.0f}} {known.unit} / {{:.0f}}, a GET at a time for each reader"
    return ratio(topic, text, speed(results, "s3", workload, _OURS), bound, least)


def _latency(results: Results) -> Iterator[Verdict]:
    text = "first byte of an open file {:.1f} ms / bare GET of the same range {:.1f} ms"
    taken_s = [results.median("s3", "first-byte", *of) for of in ((_OURS, "first_byte_s"), ("raw", "span_s"))]
    ours_ms, bare_ms = (None if one_s is None else one_s * 1e3 for one_s in taken_s)
    yield from ratio("latency", text, ours_ms, bare_ms, 1.3, is_upper=True)
    yield from _bound(results, "latency", "random-4-256k", _RANDOM_READ_BYTES, 0.85)
    for workload, most in _MOST_FETCHED:
        share = results.median("s3", workload, _OURS, "fetched_share")
        yield from ratio("latency", f"s3 {workload}: bytes fetched / bytes asked for", share, 1.0, most, is_upper=True)


def _small_files(results: Results) -> Iterator[Verdict]:
    yield from _bound(results, "small files", "small-16-shuffled", SMALL_FILE_BYTES, 0.8)
    yield from _bound(results, "small files", "small-1", SMALL_FILE_BYTES, 20.0)


def _hinted(results: Results) -> Iterator[Verdict]:
    """Judge a rate, or twice the rival where the machine is busy: the better of the two, as a share of its target."""
    workload, ours = "small-16-shuffled", "fastfuse-hints"
    said, shares = [], []
    like_s3, fast = (speed(results, profile, workload, ours) for profile in ("s3", "fast"))
    if like_s3 is not None:
        shares.append(like_s3 / _HINTED_FILES_PER_S)
        said.append(f"s3 {workload} with hints, {like_s3:.0f} files/s / {_HINTED_FILES_PER_S}")
    best = _best(results, "fast", workload, RCLONES)
    if fast is not None and best is not None:
        shares.append(fast / (2 * best[1]))
        cpu_s = results.median("fast", workload, ours, "cpu_s", per="spans") or 0.0
        said.append(f"fast with hints, {fast:.0f}, {cpu_s * 1e3:.2f} ms of CPU each / twice {best[0]} {best[1]:.0f}")
    if shares:
        yield Verdict("small files", "; or ".join(said), max(shares), 1.0)


def _warm_requests(results: Results) -> Iterator[Verdict]:
    requests = [run.requests for run in results.of("s3", "warm-4", _OURS)]
    if requests:
        yield Verdict("later epochs", "requests to S3", max(requests), 0, is_upper=True)


def _cpu(results: Results) -> Iterator[Verdict]:
    for profile, workload in _SEQUENTIAL:
        ours, raw = (results.median(profile, workload, name, "cpu_s", per="gb") for name in (_OURS, "raw"))
        text = f"{profile} {workload}: daemon {{:.2f}} s/GB / raw client {{:.2f}}"
        yield from ratio("CPU", text, ours, raw, 1.5, is_upper=True)

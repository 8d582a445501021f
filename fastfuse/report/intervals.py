"""The samples of a record, as the intervals between them and as the figures of them all. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fastfuse.filesystem.verdict import Figures, figures_of
from fastfuse.metrics import HISTOGRAMS, READ_ERRNOS, RETRY_CAUSES, Counters

__all__ = ["Interval", "figures", "intervals"]

# A line of more points is not told from one of these on the width of a page.
_MOST = 120
_BY_NAME = {histogram.name: histogram for histogram in HISTOGRAMS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The work between two samples. Quantiles are None where there was nothing to take them of."""

    # Seconds since 1970.
    start: float
    end: float
    read_bytes: int
    fetched_bytes: int
    gets: int
    # The readers that waited, on average, and the share of the time in which any did.
    waiting: float
    stalled_share: float
    held_bytes: int
    target_bytes: int
    first_byte_p50_s: float | None
    first_byte_p99_s: float | None
    read_p99_s: float | None
    failed_reads: int
    retries: int

    @property
    def seconds(self) -> float:
        return self.end - self.start


def intervals(samples: Sequence[tuple[float, Counters]]) -> list[Interval]:
    """Return what happened between samples, in at most 120 intervals that are about equally long or longer."""
    if len(samples) < 2:
        return []
    least_s = (samples[-1][0] - samples[0][0]) / _MOST
    chosen = [samples[0]]
    for sample in samples[1:-1]:
        if least_s <= sample[0] - chosen[-1][0] and least_s <= samples[-1][0] - sample[0]:
            chosen.append(sample)
    chosen.append(samples[-1])
    # A clock that was set back makes no interval.
    return [_between(*pair) for pair in pairwise(chosen) if pair[1][0] > pair[0][0]]


def figures(samples: Sequence[tuple[float, Counters]]) -> Figures:
    """Return the figures from the first sample to the last."""
    (start, first), (end, last) = samples[0], samples[-1]
    return figures_of(last.since(first), elapsed_s=end - start)


def _between(earlier: tuple[float, Counters], later: tuple[float, Counters]) -> Interval:
    (start, before), (end, now) = earlier, later
    seconds, grown = end - start, now.since(before)

    def quantile(name: str, share: float) -> float | None:
        seen = grown.distribution(_BY_NAME[name])
        return seen.quantile(share) if any(seen.counts) else None

    units = grown.as_json()
    return Interval(
        start=start,
        end=end,
        read_bytes=grown.get("fastfuse_read_served_bytes"),
        fetched_bytes=grown.get("fastfuse_fetched_bytes"),
        gets=sum(grown.distribution(_BY_NAME["fastfuse_get_first_byte_seconds"]).counts),
        waiting=units["fastfuse_blocked_seconds"] / seconds,
        stalled_share=min(1.0, units["fastfuse_stalled_seconds"] / seconds),
        held_bytes=grown.get("fastfuse_pool_bytes"),
        target_bytes=grown.get("fastfuse_memory_target_bytes"),
        first_byte_p50_s=quantile("fastfuse_get_first_byte_seconds", 0.5),
        first_byte_p99_s=quantile("fastfuse_get_first_byte_seconds", 0.99),
        read_p99_s=quantile("fastfuse_read_seconds", 0.99),
        failed_reads=sum(grown.get("fastfuse_errors", name) for name in READ_ERRNOS),
        retries=sum(grown.get("fastfuse_retries", cause) for cause in RETRY_CAUSES),
    )

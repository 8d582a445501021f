"""The samples of a record, as the intervals between them and as the figures of them all. Pure."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from fastfuse.filesystem.figures.verdict import Figures, figures_of
from fastfuse.metrics import Counters

# A line of more points is not told from one of these on the width of a page.
_MOST = 120


class Interval(NamedTuple):
    """The work between two samples, the second of which was taken at `end`, in seconds since 1970."""

    end: float
    figures: Figures
    held_bytes: int


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
    return [
        Interval(pair[1][0], figures(pair), pair[1][1].get("fastfuse_pool_bytes"))
        for pair in pairwise(chosen)
        if pair[1][0] > pair[0][0]  # a clock that was set back makes no interval
    ]


def figures(samples: Sequence[tuple[float, Counters]]) -> Figures:
    """Return the figures from the first sample to the last."""
    (start, first), (end, last) = samples[0], samples[-1]
    return figures_of(last.since(first), elapsed_s=end - start)

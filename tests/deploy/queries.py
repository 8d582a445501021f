"""Takes PromQL apart: which metrics a query asks for, with which labels, over which time, and what it groups by."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import promql_parser

from fastfuse.metrics import BUILD_INFO, HISTOGRAMS, METRICS

COUNTS = {"rate", "increase"}
# Prometheus adds the first two to every series, and fastfuse the others, the last one to those of a job.
EVERYWHERE = dict.fromkeys(("instance", "job", "mount", "bucket", "channel"))
GAUGES = {metric.name: metric for metric in (*METRICS, BUILD_INFO) if metric.is_gauge}
COUNTERS = {f"{metric.name}_total": metric for metric in METRICS if not metric.is_gauge}
BUCKETS = {f"{histogram.name}_bucket" for histogram in HISTOGRAMS}


class Selector(NamedTuple):
    """A metric in a query, and the functions and groupings around it, the outermost first."""

    name: str
    values: dict[str, str]
    function: str | None
    groups: set[str]


def labels_of(name: str) -> dict[str, tuple[str, ...] | None]:
    """Return the labels of a metric, each with its values if they are known."""
    if name in BUCKETS:
        return {**EVERYWHERE, "le": None}
    metric = {**GAUGES, **COUNTERS}[name]
    return {**EVERYWHERE, **({metric.label: metric.values} if metric.label else {})}


def selectors_of(query: str) -> list[Selector]:
    """Return what `query` asks for; of Grafana's variables, those of time are taken to be five minutes."""
    return [*_selectors(promql_parser.parse(re.sub(r"\$__\w+", "5m", query)), None, set())]


def mistakes(query: str) -> list[str]:
    """Return what is wrong with `query`: metrics, labels and values that there are not, rates of what does not grow."""
    selectors = selectors_of(query)
    return [text for one in selectors for text in _mistakes_of(one)] or ([] if selectors else ["it asks for nothing"])


def _mistakes_of(one: Selector) -> Iterator[str]:
    if one.name == "up":
        return
    if one.name not in GAUGES.keys() | COUNTERS.keys() | BUCKETS:
        yield f"there is no {one.name}"
        return
    if (one.name in GAUGES) == (one.function in COUNTS):
        yield f"{one.function} of {one.name}"
    if one.name in BUCKETS and "le" not in one.groups:
        yield f"{one.name} without le"
    known = labels_of(one.name)
    yield from (f"{one.name} has no label {label}" for label in (one.values.keys() | one.groups) - known.keys())
    for label, text in one.values.items():
        allowed = known.get(label)
        yield from (f"{label} is never {value}" for value in text.split("|") if allowed and value not in allowed)


def _selectors(node: Any, function: str | None, groups: set[str]) -> Iterator[Selector]:  # noqa: ANN401
    if isinstance(node, promql_parser.VectorSelector):
        yield Selector(node.name or "", {one.name: one.value for one in node.matchers.matchers}, function, groups)
    elif isinstance(node, promql_parser.MatrixSelector):
        yield from _selectors(node.vector_selector, function, groups)
    elif isinstance(node, promql_parser.Call):
        for argument in node.args:
            yield from _selectors(argument, node.func.name, groups)
    elif isinstance(node, promql_parser.AggregateExpr):
        yield from _selectors(node.expr, None, {*groups, *(node.modifier.labels if node.modifier else ())})
    elif isinstance(node, promql_parser.BinaryExpr):
        yield from _selectors(node.lhs, function, groups)
        yield from _selectors(node.rhs, function, groups)
    elif isinstance(node, promql_parser.ParenExpr):
        yield from _selectors(node.expr, function, groups)
    else:
        assert isinstance(node, promql_parser.NumberLiteral), node

"""What a mount did, whether its readers waited, and the verdict: as JSON can carry it, and for people. Pure."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fastfuse.filesystem.figures.verdict import Figures, judge
from fastfuse.sizes import format_size, three_digits


def as_json(figures: Figures, mode: str = "") -> dict[str, Any]:
    """Return figures, shares and verdict as JSON can carry them."""
    derived = ("stalled_share", "foreseen_share", "hit_share", "parts", "readers", "cost_usd")
    shares = {name: getattr(figures, name) for name in derived}
    return {**asdict(figures), **shares, "verdict": asdict(judge(figures, mode))}


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return what `as_json` made for people."""
    verdict, cost_usd, in_use_s = summary["verdict"], summary["cost_usd"], summary["in_use_s"]
    files = f"{summary['files']:,} file{'s' * (summary['files'] != 1)}"
    source = f"{files}, {format_size(summary['total_bytes'])}: " if summary["files"] else ""
    read = f"read {format_size(summary['served_bytes'])}, " if summary["served_bytes"] else ""
    refused = f", {summary['refused']:,} more refused" if summary["refused"] else ""
    wasted = f", {format_size(summary['wasted_bytes'])} dropped unread" if summary["wasted_bytes"] else ""
    ahead = f", {summary['foreseen_share']:.0%} of the parts ahead" if summary["fetched_bytes"] else ""
    failed = f"; {summary['failed_reads']:,} of {summary['reads']:,} reads failed" if summary["failed_reads"] else ""
    hits = f", {summary['hit_share']:.0%} of the reads hit" if summary["hits"] + summary["misses"] else ""
    read_s, byte_s = summary["read_p50_s"], summary["first_byte_p50_s"]
    took = f"a read took {_ms(read_s)} (p99 {_ms(summary['read_p99_s'])})" if read_s else ""
    began = f"a GET's first byte {_ms(byte_s)} (p99 {_ms(summary['first_byte_p99_s'])})" if byte_s else ""
    times = ", ".join(filter(None, (took, began)))
    return [
        f"{source}{read}fetched {format_size(summary['fetched_bytes'])} "
        f"in {summary['gets'] - summary['refused']:,} GETs "
        f"(${cost_usd:.{4 if cost_usd >= 0.01 else 6}f}){refused}{wasted}{ahead}{hits}",
        f"readers waited in {summary['stalled_share']:.1%} of {in_use_s:,.{0 if in_use_s >= 10 else 1}f} s in use"
        f"{'; ' if times else ''}{times}{failed}",
        f"{verdict['name']}: {verdict['text']}; {verdict['advice']}",
    ]


def _ms(seconds: float) -> str:
    return f"{three_digits(seconds * 1000)} ms"

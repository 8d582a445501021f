"""Makes, writes and prints what ``fastfuse index`` and ``fastfuse advise`` find out about a source."""

import heapq
import json
import os
from dataclasses import asdict
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fastfuse.advise.model import Advice, Estimate, Job, Network, Shape, estimates, recommend
from fastfuse.advise.probe import Probe, probe, shape_of
from fastfuse.cli.messages import printing, tell
from fastfuse.index.inodes.columns import are_made, are_objects, exact_sums
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.make import make_index
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.saved import store_index
from fastfuse.index.snapshot import Snapshot, open_snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.sizes import GIB, KIB, MIB, format_size


def index(
    source: S3Uri,
    origin: IndexOrigin,
    connection: ConnectionConfig,
    *,
    output: Path | S3Uri | None,
    summary: bool,
    as_json: bool,
) -> int:
    """Make the index, write it to `output`, print its summary, and return the exit code.

    Raises:
        FastfuseError: it could not be made or written.
    """
    console = Console()
    fd = os.memfd_create("fastfuse-index", os.MFD_CLOEXEC)
    try:
        report = make_index(source, origin, S3Session(connection), fd)
        if output is not None:
            store_index(output, connection, fd)
            written = f"wrote {output}: {report}, {format_size(os.fstat(fd).st_size)}"
            # Standard output is for the summary only.
            tell(written)
        if summary:
            snapshot = open_snapshot(fd)
            found, advice = summarise(snapshot), _short_advice(snapshot.table)
            with printing():
                if as_json:
                    console.print_json(json.dumps(found | {"advice": advice}), ensure_ascii=True)
                else:
                    console.print(Group(shown(found), "", Text(advice)))
    finally:
        os.close(fd)
    return 0


# Exclusive upper bounds of the histogram: empty; small enough to be bound by requests; one part; shards; large shards.
_BOUNDS_BYTES = (1, 4 * KIB, 64 * KIB, MIB, 8 * MIB, 64 * MIB, GIB, 5 * GIB)
_LARGEST_DIRECTORIES = 10


def shown(found: dict[str, Any]) -> RenderableType:
    """Return what `summarise` found, for a terminal."""
    facts = Table(box=None, show_header=False)
    for name, value in (
        ("source", found["source"]),
        ("listed", found["listed_at"]),
        ("objects", f"{found['objects']:,}"),
        *([("made files", f"{found['made_files']:,}")] if found["made_files"] else []),
        ("directories", f"{found['directories']:,}"),
        ("bytes", f"{found['total_bytes']:,} ({format_size(found['total_bytes'])})"),
        *((f"  {name}", f"{count:,} objects") for name, count in found["storage_classes"].items()),
    ):
        facts.add_row(name, Text(value))
    sizes = _table("file size", "files", "bytes")
    for size in found["sizes"]:
        below = size["below_bytes"]
        name = "larger" if below is None else "empty" if below == 1 else f"< {format_size(below)}"
        sizes.add_row(name, f"{size['files']:,}", format_size(size["total_bytes"]))
    directories = _table("largest directories", "files", "bytes")
    for one in found["largest_directories"]:
        directories.add_row(Text(one["path"]), f"{one['files']:,}", format_size(one["total_bytes"]))
    parts: list[RenderableType] = [facts, "", sizes, "", directories]
    if found["refused"]:
        refused = _table("left out, because of", "keys")
        for reason, count in found["refused"].items():
            refused.add_row(reason, f"{count:,}")
        parts += ["", refused, *(Text(f"  {key}: {reason}") for key, reason in found["refused_examples"])]
    return Group(*parts)


def _table(first: str, *numbers: str) -> Table:
    table = Table(first, box=None)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


def summarise(snapshot: Snapshot) -> dict[str, Any]:
    """Add up what `snapshot` holds, as JSON has it."""
    table, refusals = snapshot.table, snapshot.refusals
    metadata = table.metadata
    is_object = are_objects(table.columns["kinds"])
    classes = np.bincount(table.columns["storage_classes"][is_object], minlength=len(metadata.storage_classes))
    return {
        "source": snapshot.source,
        "listed_at": datetime.fromtimestamp(snapshot.listed_at_ns / 1e9, UTC).isoformat(timespec="seconds"),
        "objects": metadata.file_count,
        # Files whose bytes the index itself holds.
        "made_files": int(np.count_nonzero(are_made(table.columns["kinds"]))),
        "directories": metadata.directory_count,
        "total_bytes": metadata.total_bytes,
        "sizes": _sizes(table.columns["sizes"][is_object]),
        "largest_directories": _largest_directories(table, is_object),
        "storage_classes": {
            name: int(count) for name, count in zip(metadata.storage_classes, classes, strict=True) if count
        },
        "refused": {str(reason): count for reason, count in refusals.counts.most_common()},
        # Escaped: the control characters of a key must not reach a terminal.
        "refused_examples": [(repr(key)[1:], str(reason)) for key, reason in refusals.examples],
    }


def _sizes(sizes_bytes: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - an array of int64
    """Return files and bytes by size, each class of less than ``below_bytes`` (None: of any size)."""
    classes = np.searchsorted(_BOUNDS_BYTES, sizes_bytes, side="right")
    totals = exact_sums(sizes_bytes, classes, len(_BOUNDS_BYTES) + 1)
    counts = np.bincount(classes, minlength=len(totals))
    return [
        {"below_bytes": below, "files": int(count), "total_bytes": total}
        for below, count, total in zip((*_BOUNDS_BYTES, None), counts, totals, strict=True)
        if count
    ]


def _largest_directories(table: InodeTable, is_object: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    """Return the directories with most bytes in the files right in them."""
    parents = table.columns["parents"][is_object]
    directories, groups, counts = np.unique(parents, return_inverse=True, return_counts=True)
    totals = exact_sums(table.columns["sizes"][is_object], groups, len(directories))
    order = heapq.nsmallest(_LARGEST_DIRECTORIES, range(len(totals)), lambda group: (-totals[group], -counts[group]))
    return [
        {"path": _path(table, int(directories[group])), "files": int(counts[group]), "total_bytes": totals[group]}
        for group in order
    ]


def _path(table: InodeTable, row: int) -> str:
    """Return the path below the mountpoint, escaped where it is not printable."""
    inode = table.inode(row)
    path = f"/{table.path(inode)}"
    return path if path.isprintable() else repr(path)[1:-1]


_NO_PROBE = "nothing is measured"


def _short_advice(table: InodeTable) -> str:
    """Return the advice for one epoch of one host, from the listing alone."""
    shape, job = shape_of(table), Job()
    return recommend(shape, estimates(shape, Network(), job), job).text


def advise(
    source: S3Uri, origin: IndexOrigin, connection: ConnectionConfig, job: Job, *, probes: bool, as_json: bool
) -> int:
    """List the source, measure the network, print the estimates and the advice, and return the exit code.

    Raises:
        FastfuseError: the source cannot be listed.
    """
    fd = os.memfd_create("fastfuse-index", os.MFD_CLOEXEC)
    try:
        make_index(source, origin, S3Session(connection), fd)
        table = open_snapshot(fd).table
    finally:
        os.close(fd)
    shape = shape_of(table)
    probed = probe(table, connection) if probes and shape.objects else Probe(Network(), _NO_PROBE)
    found = estimates(shape, probed.network, job)
    advice = recommend(shape, found, job)
    console = Console()
    with printing():
        if as_json:
            console.print_json(json.dumps(_as_json(source, shape, probed, job, found, advice)), ensure_ascii=True)
        else:
            _print(console, source, shape, probed, found, advice)
    return 0


def _as_json(
    source: S3Uri, shape: Shape, probed: Probe, job: Job, found: list[Estimate], advice: Advice
) -> dict[str, object]:
    # JSON has no infinity: a rate that nothing limits is null.
    network = {name: value if value != float("inf") else None for name, value in asdict(probed.network).items()}
    return {
        "source": str(source),
        "shape": asdict(shape),
        "network": network | {"note": probed.note, "measured": sorted(probed.measured)},
        "job": asdict(job),
        "estimates": [asdict(estimate) for estimate in found],
        "recommended": advice.mode,
        "reasons": advice.reasons,
    }


def _print(console: Console, source: S3Uri, shape: Shape, probed: Probe, found: list[Estimate], advice: Advice) -> None:
    facts = Table(box=None, show_header=False)
    for name, value in (
        ("source", str(source)),
        ("objects", f"{shape.objects:,} in {shape.directories:,} directories, {format_size(shape.total_bytes)}"),
        ("sizes", f"median {format_size(shape.median_bytes)}, largest {format_size(shape.largest_bytes)}"),
        ("network", _network(probed)),
        *([("", probed.note)] if probed.note else []),
        ("recommended", advice.mode or "nothing"),
        *(("", reason) for reason in advice.reasons),
    ):
        facts.add_row(name, Text(value))
    console.print(Group(_estimate_table(shape, found), "", facts))


def _network(probed: Probe) -> str:
    """Return the figures of the network, first those that are measured."""
    it = probed.network
    texts = {
        "latency_s": f"{it.latency_s * 1000:.1f} ms",
        "requests_per_s": f"{it.requests_per_s:,.0f} GETs/s" if isfinite(it.requests_per_s) else "",
        "connection_bytes_per_s": f"{it.connection_bytes_per_s / 1e6:,.0f} MB/s a connection",
        "total_bytes_per_s": f"{it.total_bytes_per_s / 1e6:,.0f} MB/s in all",
    }
    measured = ", ".join(text for name, text in texts.items() if text and name in probed.measured)
    assumed = ", ".join(text for name, text in texts.items() if text and name not in probed.measured)
    return "; ".join(filter(None, (measured, assumed and f"assumed: {assumed}")))


def _estimate_table(shape: Shape, found: list[Estimate]) -> Table:
    is_small = shape.mean_bytes < MIB
    table = Table(box=None)
    table.add_column("mode", no_wrap=True)
    times = ("start", "first\nbatch", "files/s" if is_small else "MB/s", "job")
    for heading in (*times, "disk\nGB", "GETs/\nepoch", "$ per\nepoch", "$ per\njob"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in found:
        rate = each.files_per_s if is_small else each.mb_per_s
        times_s = (each.prepare_s + each.start_s, each.prepare_s + each.first_batch_s, each.prepare_s + each.job_s)
        start, first, job = map(_time, times_s)
        disk = f"{each.disk_bytes / 1e9:,.{0 if each.disk_bytes >= 1e10 else 2}f}"
        costs = (_dollars(each.epoch_dollars), _dollars(each.job_dollars))
        table.add_row(each.mode, start, first, f"{rate:,.0f}", job, disk, _count(each.epoch_gets), *costs)
    return table


def _time(seconds: float) -> str:
    for unit, unit_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:,.1f}{unit}"
    return f"{seconds:.1f}s"


def _count(number: int) -> str:
    for unit, factor in (("M", 10**6), ("k", 10**3)):
        if number >= 10 * factor:
            return f"{number / factor:,.0f}{unit}"
    return f"{number:,}"


def _dollars(amount: float) -> str:
    # It is as short as can be compared: the table has nine columns, and a terminal may have 80.
    if amount >= 1000:
        return f"{amount:,.0f}"
    return f"{amount:.2f}" if amount >= 0.1 or not amount else f"{amount:.2g}" if amount >= 1e-3 else "<1e-3"

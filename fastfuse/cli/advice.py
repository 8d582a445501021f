"""Prints what ``fastfuse advise`` finds, and its short form at the end of ``fastfuse index --summary``."""

import json
import os
from dataclasses import asdict

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from fastfuse.advise.model import Advice, Estimate, Job, Network, Shape, estimates, recommend
from fastfuse.advise.probe import Probe, probe
from fastfuse.advise.shape import shape_of
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.make import make_index
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.snapshot import open_snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.sizes import MIB, format_size

__all__ = ["run", "short_advice"]

_NO_PROBE = "the network is not measured: 20 ms, 90 MB/s a connection and 10 Gbit/s are assumed"


def short_advice(table: InodeTable) -> str:
    """Return the advice for one epoch of one host, from the listing alone."""
    shape, job = shape_of(table), Job()
    return recommend(shape, estimates(shape, Network(), job), job).text


def run(
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
        "network": network | {"note": probed.note},
        "job": asdict(job),
        "estimates": [asdict(estimate) for estimate in found],
        "recommended": advice.mode,
        "reasons": advice.reasons,
    }


def _print(console: Console, source: S3Uri, shape: Shape, probed: Probe, found: list[Estimate], advice: Advice) -> None:
    network = probed.network
    one, many = (f"{rate / 1e6:,.0f} MB/s" for rate in (network.connection_bytes_per_s, network.total_bytes_per_s))
    facts = Table(box=None, show_header=False)
    for name, value in (
        ("source", str(source)),
        ("objects", f"{shape.objects:,} in {shape.directories:,} directories, {format_size(shape.total_bytes)}"),
        ("sizes", f"median {format_size(shape.median_bytes)}, largest {format_size(shape.largest_bytes)}"),
        ("network", f"{network.latency_s * 1000:.1f} ms, {one} a connection, {many} in all"),
        *([("", probed.note)] if probed.note else []),
        ("recommended", advice.mode or "nothing"),
        *(("", reason) for reason in advice.reasons),
    ):
        facts.add_row(name, Text(value))
    console.print(Group(_table(shape, found), "", facts))


def _table(shape: Shape, found: list[Estimate]) -> Table:
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
    return f"{amount:,.2f}" if amount >= 0.1 or not amount else f"{amount:.2g}" if amount >= 1e-4 else "<1e-4"

"""Defines the options of ``fastfuse advise`` and runs it."""

import os
from typing import Annotated

import typer

from fastfuse import log
from fastfuse.advise.model import Access, Job
from fastfuse.cgroup import memory_limit_bytes
from fastfuse.cli import index_options, options
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.sources.uri import S3Uri
from fastfuse.log import LogConfig
from fastfuse.s3.base import ConnectionConfig
from fastfuse.sizes import parse_size

__all__ = ["advise"]


@options.takes(origin=index_options.origin, connection=options.connection, logs=options.logs)
def advise(
    source: options.Source,
    *,
    hosts: Annotated[int, typer.Option(min=1, max=1_000_000, metavar="N", help="Hosts that each read all of it.")] = 1,
    epochs: Annotated[
        int, typer.Option(min=1, max=1_000_000, metavar="N", help="How often each of them reads it.")
    ] = 1,
    hours: Annotated[
        float, typer.Option(min=0, max=1e6, metavar="HOURS", help="What training takes if it never waits for data.")
    ] = 0.0,
    readers: Annotated[
        int, typer.Option(min=1, max=1_000_000, metavar="N", help="Files that a host reads at once.")
    ] = 16,
    access: Annotated[Access, typer.Option(help="The order of whole files, or random ranges.")] = Access.SHUFFLED,
    host_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of a host; left out, that of this machine.")
    ] = None,
    disk_rate: Annotated[str, typer.Option(metavar="SIZE", help="What a host's disk does in a second.")] = "250MB",
    host_price: Annotated[
        float, typer.Option(min=0, max=1e6, metavar="DOLLARS", help="Price of a host for an hour.")
    ] = 0.0,
    region_factor: Annotated[
        float, typer.Option(min=0, max=1e6, metavar="FACTOR", help="Prices of your region, of us-east-1's.")
    ] = 1.0,
    no_probe: Annotated[
        bool, typer.Option("--no-probe", help="Do not measure the network, which takes up to 5 s and 208 MiB.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the estimates as JSON.")] = False,
    origin: IndexOrigin,
    connection: ConnectionConfig,
    logs: LogConfig,
) -> int:
    """Estimate which mode suits a source, and what it costs.

    Compares File, FastFile, Pipe, EFS and FSx, and recommends one.
    """
    job = Job(
        hosts=hosts,
        epochs=epochs,
        hours=hours,
        readers=readers,
        access=access,
        memory_bytes=_memory_bytes() if host_memory is None else parse_size(host_memory, "--host-memory"),
        disk_bytes_per_s=max(parse_size(disk_rate, "--disk-rate"), 1),
        host_dollars_per_hour=host_price,
        region_factor=region_factor,
    )
    log.configure(logs)
    from fastfuse.cli import advice

    return advice.run(S3Uri.parse(source), origin, connection, job, probes=not no_probe, as_json=as_json)


def _memory_bytes() -> int:
    """Return the memory of this machine, or what its control group may have of it."""
    ram_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(ram_bytes, memory_limit_bytes() or ram_bytes)

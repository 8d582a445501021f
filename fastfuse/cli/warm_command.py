"""Defines the options of ``fastfuse warm``."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from fastfuse import log
from fastfuse.cache.settings import CacheSettings
from fastfuse.cli import index_options, options
from fastfuse.cli.cache_options import cache as cache_options
from fastfuse.cli.cache_options import checked_cache
from fastfuse.cli.messages import INTERRUPTED
from fastfuse.errors import ConfigurationError
from fastfuse.index.origin import IndexOrigin, SourceKind
from fastfuse.index.sources.uri import S3Uri
from fastfuse.log import LogConfig
from fastfuse.s3.base import ConnectionConfig
from fastfuse.sizes import parse_size

__all__ = ["warm"]


@options.takes(origin=index_options.origin, cache=cache_options, connection=options.connection, logs=options.logs)
def warm(
    source: Annotated[
        str, typer.Argument(metavar="S3_URI|MOUNTPOINT", help="What to fetch: a source, or what a mount shows.")
    ],
    *,
    limit: Annotated[
        str | None, typer.Option("--limit", metavar="SIZE/s", help="Fetch no more in a second, such as 2GiB/s.")
    ] = None,
    hints: Annotated[
        Path | None,
        typer.Option("--hints", metavar="FILE", help="Fetch only the files of this list, in its order: a path a line."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Read what is kept, too, and fetch again what is damaged.")
    ] = False,
    origin: IndexOrigin,
    cache: CacheSettings | None,
    connection: ConnectionConfig,
    logs: LogConfig,
) -> int:
    """Fetch what a source holds into the local cache.

    What is there is not fetched again, so that a second run goes on with the first. The exit code is 0 if all is kept.
    """
    bytes_per_s = None if limit is None else parse_size(limit.removesuffix("/s"), "--limit")
    if bytes_per_s == 0:
        raise ConfigurationError(f"--limit {limit} lets nothing through", hint="leave it out, or write it as 2GiB/s")
    is_mount = "://" not in source
    if is_mount and (
        (origin.saved, origin.inventory, origin.keys_from, origin.shard) != (None,) * 4
        or origin.kind is not SourceKind.PREFIX
    ):
        raise ConfigurationError(
            f"{source} is a MOUNTPOINT, whose mount knows its objects", hint="leave the options of the source out"
        )
    if not is_mount and cache is None:
        raise ConfigurationError("warm has no place for what it fetches", hint="give --cache DIR, or a MOUNTPOINT")
    log.configure(logs)
    from fastfuse.cli import warming

    try:
        if is_mount:
            plan = warming.plan_of_mount(Path(os.path.abspath(source)), cache)
        else:
            assert cache is not None
            checked_cache(cache, connection)
            plan = warming.plan_of_source(S3Uri.parse(source), origin, connection, cache)
        return warming.run(plan, hints, bytes_per_s, checks=check)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or (
            isinstance(error, BaseExceptionGroup) and error.split(KeyboardInterrupt)[1] is None
        ):
            sys.stderr.write("interrupted: what was fetched is kept, and the same command goes on\n")
            return INTERRUPTED
        raise

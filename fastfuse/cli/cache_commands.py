"""Defines the options of ``fastfuse cache`` and ``fastfuse warm``; what they load is in `cache_work`."""

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fastfuse import log
from fastfuse.cache.settings import CacheSettings
from fastfuse.cli import index_options, options
from fastfuse.cli.messages import INTERRUPTED, say
from fastfuse.cli.options import option
from fastfuse.errors import ConfigurationError
from fastfuse.index.origin import IndexOrigin, SourceKind
from fastfuse.index.sources.uri import S3Uri
from fastfuse.log import LogConfig
from fastfuse.s3.base import ConnectionConfig
from fastfuse.sizes import parse_size

__all__ = ["cache", "warm"]


class Action(StrEnum):
    STATUS = "status"
    VERIFY = "verify"
    CLEAR = "clear"
    PIN = "pin"
    UNPIN = "unpin"


@options.takes(origin=index_options.origin, settings=options.cache, connection=options.connection, logs=options.logs)
def cache(
    action: Annotated[Action, typer.Argument(help="What to do with the directory of --cache.")],
    source: Annotated[str | None, typer.Argument(metavar="S3_URI",
        help="The objects to pin or unpin; left out, unpin takes all.")] = None,
    *,
    as_json: Annotated[bool, option("--json", "Print the result as JSON.")] = False,
    origin: IndexOrigin,
    settings: CacheSettings | None,
    connection: ConnectionConfig,
    logs: LogConfig,
) -> int:  # fmt: skip
    """Look at a local cache, verify or clear it, or pin objects in it.

    'verify' reads every block, forgets the bad ones, and exits with 1 if there were any. 'pin' exits with 1 if some of
    the objects are not kept.
    """
    if settings is None:
        raise ConfigurationError(f"cache {action} has no directory", hint="give --cache DIR")
    if action is Action.PIN and source is None:
        raise ConfigurationError("pin needs the S3_URI of objects", hint="name a prefix or an object")
    if source is not None and action not in (Action.PIN, Action.UNPIN):
        raise ConfigurationError(f"cache {action} takes no S3_URI", hint="it is for the whole directory")
    if not settings.directory.exists():
        raise ConfigurationError(f"--cache {str(settings.directory)!r} is not there", hint="a mount or warm makes it")
    log.configure(logs)
    from fastfuse.cli import cache_work

    uri = None if source is None else S3Uri.parse(source)
    try:
        outcome = cache_work.maintain(action, uri, origin, settings, connection)
    except KeyboardInterrupt:
        return INTERRUPTED
    say(json.dumps(outcome.found) if as_json else outcome.text)
    return outcome.exit_code


@options.takes(origin=index_options.origin, cache=options.cache, connection=options.connection, logs=options.logs)
def warm(
    source: Annotated[str, typer.Argument(metavar="S3_URI|MOUNTPOINT",
        help="What to fetch: a source, or what a mount shows.")],
    *,
    limit: Annotated[str | None, option("--limit SIZE/s", "Fetch no more in a second, such as 2GiB/s.")] = None,
    hints: Annotated[Path | None, option("--hints FILE",
        "Fetch only the files of this list, in its order: a path a line.")] = None,
    check: Annotated[bool, option("--check", "Read what is kept, too, and fetch again what is damaged.")] = False,
    origin: IndexOrigin,
    cache: CacheSettings | None,
    connection: ConnectionConfig,
    logs: LogConfig,
) -> int:  # fmt: skip
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
    from fastfuse.cli import cache_work

    try:
        if is_mount:
            plan = cache_work.plan_of_mount(Path(os.path.abspath(source)), cache)
        else:
            assert cache is not None
            options.checked_cache(cache, connection)
            plan = cache_work.plan_of_source(S3Uri.parse(source), origin, connection, cache)
        return cache_work.fill(plan, hints, bytes_per_s, checks=check)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or (
            isinstance(error, BaseExceptionGroup) and error.split(KeyboardInterrupt)[1] is None
        ):
            sys.stderr.write("interrupted: what was fetched is kept, and the same command goes on\n")
            return INTERRUPTED
        raise

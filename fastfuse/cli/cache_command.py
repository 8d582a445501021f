"""Defines the options of ``fastfuse cache``."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from fastfuse import log
from fastfuse.cache.settings import CacheSettings
from fastfuse.cli import index_options, options
from fastfuse.cli.cache_options import cache as cache_options
from fastfuse.cli.messages import INTERRUPTED, say
from fastfuse.errors import ConfigurationError
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.sources.uri import S3Uri
from fastfuse.log import LogConfig
from fastfuse.s3.base import ConnectionConfig

__all__ = ["cache"]


class Action(StrEnum):
    STATUS = "status"
    VERIFY = "verify"
    CLEAR = "clear"
    PIN = "pin"
    UNPIN = "unpin"


@options.takes(origin=index_options.origin, settings=cache_options, connection=options.connection, logs=options.logs)
def cache(
    action: Annotated[Action, typer.Argument(help="What to do with the directory of --cache.")],
    source: Annotated[
        str | None, typer.Argument(metavar="S3_URI", help="The objects to pin or unpin; left out, unpin takes all.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    origin: IndexOrigin,
    settings: CacheSettings | None,
    connection: ConnectionConfig,
    logs: LogConfig,
) -> int:
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
    from fastfuse.cli import cache_actions

    uri = None if source is None else S3Uri.parse(source)
    try:
        outcome = cache_actions.run(action, uri, origin, settings, connection)
    except KeyboardInterrupt:
        return INTERRUPTED
    say(json.dumps(outcome.found) if as_json else outcome.text)
    return outcome.exit_code

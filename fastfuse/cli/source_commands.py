"""The commands that look at a source without a mount of the user's: index, advise, doctor, demo, warm and cache."""

import json
import os
import shutil
import sys
import textwrap
from dataclasses import asdict
from enum import StrEnum
from itertools import compress
from pathlib import Path
from typing import Annotated

import typer

from fastfuse import log
from fastfuse.advise.model import Access, Job
from fastfuse.cache.settings import CacheSettings
from fastfuse.cgroup import available_memory_bytes, usable_cpus
from fastfuse.cli import index_options, options, startup
from fastfuse.cli.messages import INTERRUPTED, say, tell
from fastfuse.cli.options import option
from fastfuse.doctor.machine import look
from fastfuse.doctor.rules import Finding, Level, findings
from fastfuse.errors import ConfigurationError
from fastfuse.index.origin import IndexOrigin, SourceKind
from fastfuse.index.sources.uri import S3Uri
from fastfuse.log import LogConfig
from fastfuse.s3.base import ConnectionConfig
from fastfuse.sizes import parse_size


@options.takes(origin=index_options.origin, connection=options.connection, logs=options.logs)
def index(
    source: options.Source,
    *,
    output: Annotated[str | None, option("--output -o FILE|S3_URI",
        "Where to write it, for 'fastfuse mount --index'.")] = None,
    summary: Annotated[bool, option("--summary", "Print what it holds.")] = False,
    as_json: Annotated[bool, option("--json", "Print that as JSON.")] = False,
    origin: IndexOrigin,
    connection: ConnectionConfig,
    logs: LogConfig,
) -> int:  # fmt: skip
    """Save the listing of a source, or look at what it holds.

    No mount that is given the saved index has to list again.
    """
    if as_json and not summary:
        raise ConfigurationError("--json says how to print the summary", hint="give --summary, too")
    if output is None and not summary:
        raise ConfigurationError("index has nothing to do", hint="write it with -o FILE, or look at it with --summary")
    place = None if output is None else index_options.parse_index_place(output)
    if place is not None and place == origin.saved and origin.max_age_s is None:
        raise ConfigurationError(
            f"--index and --output are both {place}, which would be copied onto itself", hint="leave --index out"
        )
    uri = S3Uri.given(source)
    origin.check_place("--output", place, uri)
    log.configure(logs)
    with startup.loading():
        from fastfuse.cli import source_output

    return source_output.index(uri, origin, connection, output=place, summary=summary, as_json=as_json)


@options.takes(origin=index_options.origin, connection=options.connection, logs=options.logs)
def advise(
    source: options.Source,
    *,
    hosts: Annotated[int, option("--hosts N", "Hosts that each read all of it.", min=1, max=1_000_000)] = 1,
    epochs: Annotated[int, option("--epochs N", "How often each of them reads it.", min=1, max=1_000_000)] = 1,
    hours: Annotated[float, option("--hours HOURS",
        "What training takes if it never waits for data.", min=0, max=1e6)] = 0.0,
    readers: Annotated[int, option("--readers N", "Files that a host reads at once.", min=1, max=1_000_000)] = 16,
    access: Annotated[Access, option("--access", "The order of whole files, or random ranges.")] = Access.SHUFFLED,
    host_memory: Annotated[str | None, option("--host-memory SIZE",
        "Memory of a host; left out, that of this machine.")] = None,
    disk_rate: Annotated[str, option("--disk-rate SIZE", "What a host's disk does in a second.")] = "250MB",
    host_price: Annotated[float, option("--host-price DOLLARS", "Price of a host for an hour.", min=0, max=1e6)] = 0.0,
    region_factor: Annotated[float, option("--region-factor FACTOR",
        "Prices of your region, of us-east-1's.", min=0, max=1e6)] = 1.0,
    no_probe: Annotated[bool, option("--no-probe",
        "Do not measure the network, which takes up to 5 s and 208 MiB.")] = False,
    as_json: Annotated[bool, option("--json", "Print the estimates as JSON.")] = False,
    origin: IndexOrigin,
    connection: ConnectionConfig,
    logs: LogConfig,
) -> int:  # fmt: skip
    """Estimate which mode suits a source, and what it costs.

    Compares File, FastFile, Pipe, EFS and FSx, and recommends one.
    """
    job = Job(
        hosts=hosts,
        epochs=epochs,
        hours=hours,
        readers=readers,
        access=access,
        memory_bytes=available_memory_bytes() if host_memory is None else parse_size(host_memory, "--host-memory"),
        cores=usable_cpus(),
        disk_bytes_per_s=max(parse_size(disk_rate, "--disk-rate"), 1),
        host_dollars_per_hour=host_price,
        region_factor=region_factor,
    )
    log.configure(logs)
    with startup.loading():
        from fastfuse.cli import source_output

    return source_output.advise(S3Uri.given(source), origin, connection, job, probes=not no_probe, as_json=as_json)


_VERSION = 1
_INDENT = " " * 21


@options.takes(connection=options.connection, logs=options.logs)
def doctor(
    source: Annotated[str | None, typer.Argument(metavar="S3_URI", help="Ask the service of this source, too.")] = None,
    *,
    as_json: Annotated[bool, option("--json", "Print the findings as JSON.")] = False,
    connection: ConnectionConfig,
    logs: LogConfig,
) -> int:  # fmt: skip
    """Check whether this machine can mount a source.

    Says what to do about what is in the way.
    With S3_URI a few requests list and read a little of it, and measure the network for up to 5 s and 208 MiB.
    """
    uri = None if source is None else S3Uri.given(source)
    log.configure(logs)
    found: list[Finding] = []

    def tell(one: Finding) -> None:
        found.append(one)
        if not as_json:
            say(_line(one))

    for one in findings(look()):
        tell(one)
    if uri is not None:
        with startup.loading():  # of the S3 client
            from fastfuse.doctor.steps import ask_service

        ask_service(uri, connection, tell)
    if as_json:
        say(json.dumps({"version": _VERSION, "checks": [asdict(one) for one in found]}))
    return 1 if any(one.level is Level.FAIL for one in found) else 0


def _line(one: Finding) -> str:
    text = f"{one.level:4}  {one.check:13}  {one.found}" + (f"; {one.remedy}" if one.remedy else "")
    if not sys.stdout.isatty():
        return text
    width = max(shutil.get_terminal_size().columns, 40)
    return textwrap.fill(text, width, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False)


def demo(
    shards: Annotated[int, option("--shards N",
        "How many shards to make. The first is read alone, the others at once.", min=1, max=1024)] = 5,
    shard_size: Annotated[str, option("--shard-size SIZE", "Size of each shard.")] = "200MiB",
    small_files: Annotated[int, option("--small-files N",
        "How many small files to make.", min=0, max=1_000_000)] = 2000,
    small_file_size: Annotated[str, option("--small-file-size SIZE", "Size of each small file.")] = "100KiB",
    readers: Annotated[int, option("--readers N", "How many files to read at once.", min=1, max=256)] = 4,
) -> int:  # fmt: skip
    """Show what a mount does, without an S3 account.

    Makes a data set on a local S3 server, mounts it, and reads it at full speed.
    """
    with startup.loading():
        from fastfuse.demo import DemoSettings, run

    settings = DemoSettings(
        shard_count=shards,
        shard_bytes=parse_size(shard_size, "--shard-size"),
        small_file_count=small_files,
        small_file_bytes=parse_size(small_file_size, "--small-file-size"),
        reader_count=readers,
    )
    # The mount inherits the environment, and this user's settings and proxies are not for it.
    for name in [*os.environ]:
        if name.startswith(("AWS_", "FASTFUSE_")) or name.lower().endswith("_proxy"):
            del os.environ[name]
    os.environ |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    return run(settings)


class Action(StrEnum):
    STATUS = "status"
    VERIFY = "verify"
    CLEAR = "clear"
    PIN = "pin"
    UNPIN = "unpin"


@options.takes(origin=index_options.origin, settings=options.cache, connection=options.connection, logs=options.logs)
def cache(
    action: Annotated[Action, typer.Argument(metavar="ACTION",
        help="What to do with the directory of --cache: status, verify, clear, pin or unpin.")],
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
    with startup.loading():
        from fastfuse.cli import cache_work

    uri = None if source is None else S3Uri.given(source)
    outcome = cache_work.maintain(action, uri, origin, settings, connection)
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
    names = ("--index", "--inventory", "--keys-from", "--shard", "--source-type")
    values = (origin.saved, origin.inventory, origin.keys_from, origin.shard, origin.kind is not SourceKind.PREFIX)
    if is_mount and (given := ", ".join(compress(names, values))):
        raise ConfigurationError(
            f"{source} is a MOUNTPOINT, whose mount knows its objects whatever {given} says", hint="leave it out"
        )
    if not is_mount and cache is None:
        raise ConfigurationError("warm has no place for what it fetches", hint="give --cache DIR, or a MOUNTPOINT")
    log.configure(logs)
    with startup.loading():
        from fastfuse.cli import cache_work

    try:
        if is_mount:
            plan = cache_work.plan_of_mount(Path(os.path.abspath(source)), cache)
        else:
            assert cache is not None
            options.checked_cache(cache, connection, origin)
            plan = cache_work.plan_of_source(S3Uri.given(source), origin, connection, cache)
        return cache_work.fill(plan, hints, bytes_per_s, checks=check)
    except* KeyboardInterrupt:
        tell("interrupted: what was fetched is kept, and the same command goes on")
    return INTERRUPTED

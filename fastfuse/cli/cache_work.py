"""Runs ``fastfuse warm`` and ``fastfuse cache``, in processes without rights, as the mounts do that use the directory.

A warm-up lists as a mount does, gives up its rights, and fills the tier.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from fastfuse.cache import upkeep
from fastfuse.cache.directory import OpenCache, open_cache, prepare
from fastfuse.cache.settings import CacheSettings
from fastfuse.cache.warm import WarmState, warm
from fastfuse.cli.config import job_memory_bytes
from fastfuse.cli.messages import say
from fastfuse.cli.mounted import paths_in
from fastfuse.cli.status_command import well_formed
from fastfuse.errors import ConfigurationError, FastfuseError
from fastfuse.filesystem.processes.children import ask_child
from fastfuse.filesystem.processes.credential_finder import give_up_rights
from fastfuse.filesystem.processes.privileges import become_nobody, worker_uid
from fastfuse.filesystem.refresh import run_lister
from fastfuse.filesystem.talking.control import ForeignMountError, ask_status, entry_of, take_index
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.progress import progress_line
from fastfuse.index.snapshot import open_snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.objects import ObjectRef
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.routes import read_files
from fastfuse.sizes import GIB, format_size

_log = logging.getLogger(__name__)

# 64 parts in flight, and as many that wait for the disk.
_MAX_MEMORY_BYTES = GIB
# An error names this many of the objects that failed.
_MAX_NAMED = 3


class Plan(NamedTuple):
    """The plan of a warm-up: the objects of the table in `snapshot_fd`. `name` is the source or the mountpoint."""

    name: str
    snapshot_fd: int
    connection: ConnectionConfig
    cache: CacheSettings


def plan_of_source(source: S3Uri, origin: IndexOrigin, connection: ConnectionConfig, cache: CacheSettings) -> Plan:
    """List `source`; raise what `run_lister` raises."""
    snapshot_fd, _ = run_lister(source, origin, S3Session(connection))
    return Plan(str(source), snapshot_fd, connection, cache)


def plan_of_mount(mountpoint: Path, cache: CacheSettings | None) -> Plan:
    """Take what a mount shows, its connection and its cache.

    Raises:
        ConfigurationError: it has no cache, or another one than `cache`.
        MountError: there is no mount of this user's, it does not answer, or it is of another version.
    """
    entry = entry_of(mountpoint)
    if entry.owner_uid != os.geteuid():
        raise ForeignMountError(
            f"the mount at {mountpoint} is of user {entry.owner_uid}, who says where requests go and what they read",
            hint=f"warm it as user {entry.owner_uid}, or warm its source",
        )
    status = ask_status(entry)
    kept = status.get("cache")
    if not kept:
        raise ConfigurationError(f"the mount at {mountpoint} has no cache", hint="mount it with --cache DIR")
    with well_formed(mountpoint):
        settings = CacheSettings(**kept | {"directory": Path(kept["directory"])})
        connection = ConnectionConfig(**status["connection"])
    if cache is not None and cache.directory != settings.directory:
        raise ConfigurationError(
            f"--cache {str(cache.directory)!r} is not that of the mount at {mountpoint}, {str(settings.directory)!r}",
            hint="leave it out",
        )
    return Plan(str(mountpoint), take_index(entry), connection, settings)


def refs_of(table: InodeTable, rows: Sequence[int] | None = None) -> Iterator[ObjectRef]:
    """Return the objects of `table`, or those of its `rows`."""
    return (ref for ref in table.refs(rows) if ref.bucket)  # the index itself has what was made


def fill(plan: Plan, hints: Path | None, bytes_per_s: int | None, *, checks: bool) -> int:
    """Fetch what is missing, and return 0.

    Raises:
        FastfuseError: something is not kept; the message says what and why.
    """
    table = open_snapshot(plan.snapshot_fd).table
    rows = None if hints is None else _rows_of(hints, table, plan.name)
    session = S3Session(plan.connection)
    read_files(session)
    prepare(plan.cache, worker_uid())
    with upkeep.disk_errors(plan.cache):
        directory = open_cache(plan.cache, worker_uid())
    # The process reads what S3 sends from here on, without rights, as a worker does.
    give_up_rights(session, lambda: None)
    refs = partial(refs_of, table, rows)
    total_bytes = table.metadata.total_bytes if rows is None else sum(ref.size_bytes for ref in refs())
    began_s = time.monotonic()
    show = progress_line(f"warming {plan.name}")
    state = warm(
        session,
        directory,
        refs,
        lambda now: show(lambda: _figures(now, total_bytes, began_s)),
        memory_bytes=min(job_memory_bytes(None, 0), _MAX_MEMORY_BYTES),
        bytes_per_s=bytes_per_s,
        checks=checks,
    )
    damaged = f", {state.damaged:,} damaged ranges among them" if state.damaged else ""
    say(
        f"{format_size(total_bytes - state.missing_bytes)} of {format_size(total_bytes)} are kept in "
        f"{plan.cache.directory}: {format_size(state.there_bytes)} were there, {format_size(state.fetched_bytes)} came "
        f"in {state.requests:,} GETs and {time.monotonic() - began_s:.1f} s{damaged}"
    )
    if state.missing_bytes or state.failures:
        raise _incomplete(state, plan.cache)
    return 0


def _rows_of(hints: Path, table: InodeTable, name: str) -> list[int]:
    """Return the rows of the files that a list names, relative to the source or below the mountpoint.

    Raises:
        ConfigurationError: the list cannot be read, or nothing in it is a file of `table`.
    """
    rows, unknown = dict[int, None](), list[bytes]()
    try:
        with hints.open("rb") as listing:
            for path in paths_in(listing, b"\n"):
                inode = table.find(path.removeprefix(os.fsencode(name) + b"/"), resolves=True)
                if inode is None or table.is_directory(inode):
                    unknown.append(path)
                else:
                    rows[table.row(inode)] = None
    except OSError as error:
        raise ConfigurationError(f"--hints {hints} cannot be read: {error.strerror}", hint="name a list") from error
    if unknown:
        told = f"{len(unknown):,} paths of {hints} are no files of {name}, such as {os.fsdecode(unknown[0])!r}"
        if not rows:
            raise ConfigurationError(told, hint="name files by their paths below it, one a line")
        _log.warning("%s", told)
    return list(rows)


def _figures(state: WarmState, total_bytes: int, began_s: float) -> str:
    share = (state.there_bytes + state.fetched_bytes) / total_bytes if total_bytes else 1.0
    rate = state.fetched_bytes / 1e6 / max(time.monotonic() - began_s, 1e-3)
    failed = f", {len(state.failures)} failed" if state.failures else ""
    return (
        f"{share:.0%} of {format_size(total_bytes)}, {rate:,.0f} MB/s, {format_size(state.fetched_bytes)} fetched, "
        f"{format_size(state.there_bytes)} were there{failed}"
    )


def _incomplete(state: WarmState, cache: CacheSettings) -> FastfuseError:
    """Return the error that says what is not kept, and why."""
    reasons = [f"{uri}: {why}" for uri, why in islice(state.failures.items(), _MAX_NAMED)]
    if len(state.failures) > _MAX_NAMED:
        reasons.append(f"{len(state.failures) - _MAX_NAMED:,} more failed")
    if state.has_no_room:
        reasons.append(f"the cache, of {format_size(cache.size_bytes)}, takes no more")
    if state.is_given_up:
        reasons.append(state.end_reason or f"the disk of {cache.directory} takes nothing")
    if not reasons:
        reasons.append("the disk did not take it, or others took its place")
    hint = ""
    if state.has_no_room:
        hint = "give more --cache-size, warm a --shard of it, or see 'fastfuse cache status'"
    elif state.is_given_up or not state.failures:
        hint = "see what the log says of the disk; the same command goes on"
    return FastfuseError(f"{format_size(state.missing_bytes)} are not kept: {'; '.join(reasons)}", hint=hint)


class Outcome(NamedTuple):
    """The result of an action, for programs and for people."""

    found: Mapping[str, Any]
    text: str
    exit_code: int = 0


def maintain(
    action: str, source: S3Uri | None, origin: IndexOrigin, settings: CacheSettings, connection: ConnectionConfig
) -> Outcome:
    """Do what `fastfuse cache` was asked for.

    Raises:
        FastfuseError: the directory cannot be used, or the source cannot be listed.
    """
    prepare(settings, worker_uid())
    if action == "status":
        found = _as_nobody(settings, upkeep.status)
        return _status({"directory": str(settings.directory), **found})
    if action == "verify":
        found = _as_nobody(settings, lambda cache: _verify(cache, str(settings.directory)))
        bad = f"{found['bad']:,} more were bad: forgotten, and fetched again when they are read" if found["bad"] else ""
        text = f"{found['ranges'] - found['bad']:,} ranges with {format_size(found['bytes'])} are as they were written"
        return Outcome(found, "; ".join(filter(None, (text, bad))), int(found["bad"] > 0))
    if action == "clear":
        found = _as_nobody(settings, upkeep.clear)
        busy = f"; {found['busy_segments']:,} segments stay, which mounts fill now" if found["busy_segments"] else ""
        return Outcome(found, f"removed {format_size(found['bytes'])} in {found['segments']:,} segments{busy}")
    is_pinned = action == "pin"
    if source is None:
        found = _as_nobody(settings, upkeep.unpin_all)
    else:
        session = S3Session(connection)
        snapshot_fd, _ = run_lister(source, origin, session)
        url, refs = session.endpoint_url or "", refs_of(open_snapshot(snapshot_fd).table)
        found = _as_nobody(settings, lambda cache: upkeep.pin(cache, refs, url, is_pinned=is_pinned))
    text = f"{action}ned {found['segments']:,} segments with {format_size(found['kept_bytes'])} of {source or 'all'}"
    is_partial = is_pinned and found["missing_bytes"] > 0
    if is_partial:
        text += f"; {format_size(found['missing_bytes'])} are not kept: fetch them with 'fastfuse warm', and pin again"
    return Outcome(found, text, int(is_partial))


def _status(found: dict[str, Any]) -> Outcome:
    rows = {
        "directory": found["directory"],
        "used": f"{format_size(found['used_bytes'])} of {format_size(found['size_bytes'])} (--cache-size)",
        "index": format_size(found["index_bytes"]),
        "kept": f"{format_size(found['kept_bytes'])}, {found['ranges']:,} ranges of {found['objects']:,} objects",
        "segments": f"{found['segments']:,}, {format_size(found['pinned_bytes'])} of them pinned",
        "served": f"{format_size(found['hit_bytes'])} of what is kept now",
    }
    return Outcome(found, "\n".join(f"{name:<10} {value}" for name, value in rows.items()))


def _verify(cache: OpenCache, name: str) -> dict[str, int]:
    began_s = time.monotonic()

    def figures(done_bytes: int) -> str:
        rate = done_bytes / 1e6 / max(time.monotonic() - began_s, 1e-3)
        return f"{format_size(done_bytes)} read, {rate:,.0f} MB/s"

    show = progress_line(f"verifying {name}")
    return upkeep.verify(cache, lambda done_bytes: show(lambda: figures(done_bytes)))


def _as_nobody(settings: CacheSettings, work: Callable[[OpenCache], dict[str, int]]) -> dict[str, Any]:
    """Return the result of `work` on the directory, in a process that opens it and then gives up its rights."""

    def make() -> dict[str, int]:
        with upkeep.disk_errors(settings):
            cache = open_cache(settings, worker_uid(), fills=False)
        become_nobody()
        with upkeep.disk_errors(settings):
            return work(cache)

    return ask_child(make, "the process that uses the cache")

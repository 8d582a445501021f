"""Runs ``fastfuse cache``, in a process that has given up its rights, as the mounts do that use the directory."""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fastfuse.cache import upkeep
from fastfuse.cache.directory import OpenCache, prepare
from fastfuse.cache.settings import CacheSettings
from fastfuse.cli.warming import refs_of
from fastfuse.errors import ServiceError
from fastfuse.filesystem.children import answer_on, fork_child, heard, how_it_ended, wait_child
from fastfuse.filesystem.privileges import become_nobody, worker_uid
from fastfuse.filesystem.refresh import run_lister
from fastfuse.index.origin import IndexOrigin
from fastfuse.index.progress import load_progress, shown_line
from fastfuse.index.snapshot import open_snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.sizes import format_size

__all__ = ["Outcome", "run"]


class Outcome(NamedTuple):
    """The result of an action, for programs and for people."""

    found: Mapping[str, Any]
    text: str
    exit_code: int = 0


def run(
    action: str, source: S3Uri | None, origin: IndexOrigin, settings: CacheSettings, connection: ConnectionConfig
) -> Outcome:
    """Do what `fastfuse cache` was asked for.

    Raises:
        FastfuseError: the directory cannot be used, or the source cannot be listed.
    """
    prepare(settings, worker_uid())
    if action == "status":
        return _status(_as_nobody(settings, upkeep.status), settings)
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


def _status(found: dict[str, Any], settings: CacheSettings) -> Outcome:
    found |= {"directory": str(settings.directory), "size_bytes": settings.size_bytes}
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

    with shown_line("verifying", name) as show:
        return upkeep.verify(cache, lambda done_bytes: show(lambda: figures(done_bytes)))


def _as_nobody(settings: CacheSettings, work: Callable[[OpenCache], dict[str, int]]) -> dict[str, Any]:
    """Return the result of `work` on the directory, in a process that opens it and then gives up its rights."""
    load_progress()
    reading_fd, writing_fd = os.pipe()

    def make() -> dict[str, int]:
        cache = upkeep.open_or_fail(settings)
        become_nobody()
        return upkeep.done(work, cache)

    child = fork_child(lambda: answer_on(writing_fd, make))
    os.close(writing_fd)
    with os.fdopen(reading_fd, "rb") as pipe:
        answer = pipe.read()
    exit_code = wait_child(child)
    if not answer:
        raise ServiceError(f"the process that uses the cache {how_it_ended(exit_code)}")
    return heard(answer)

"""Makes the index of a source from a saved index, the cache, an inventory, a list of keys, or a listing."""

import gc
import logging
import os
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import trio

from fastfuse.index.inodes.selection import take_part
from fastfuse.index.listing.acceptance import Listing, ProgressCallback, accept
from fastfuse.index.listing.inventory import list_inventory
from fastfuse.index.listing.keys import list_keys
from fastfuse.index.listing.lister import list_source
from fastfuse.index.listing.manifest import list_augmented_manifest, list_manifest
from fastfuse.index.origin import KEY_NAME_PREFIX, IndexOrigin, SourceKind
from fastfuse.index.progress import shown_progress
from fastfuse.index.readable import check_readable, samples_of_table
from fastfuse.index.saved import IndexCache, load_index
from fastfuse.index.shared import SharedIndex
from fastfuse.index.snapshot import Snapshot, save_snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.metrics import Counters
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig, ObjectSource
from fastfuse.s3.client import S3Client
from fastfuse.s3.retries import Retries

__all__ = ["IndexReport", "make_index"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IndexReport:
    """The figures of an index and of the work that made it."""

    files: int
    directories: int
    total_bytes: int
    refused: int
    requests: int
    elapsed_s: float
    listed_at_ns: int

    def __str__(self) -> str:
        rate = self.files / self.elapsed_s if self.elapsed_s else 0.0
        return f"{self.files:,} objects, {self.total_bytes:,} bytes, {self.elapsed_s:.1f} s, {rate:,.0f} objects/s"


def make_index(
    source: S3Uri, origin: IndexOrigin, connection: ConnectionConfig, fd: int, counters: Counters | None = None
) -> IndexReport:
    """Write the index of `source` into the empty file (or memfd) `fd`, in a process of its own, which soon ends.

    `counters` count the requests that were tried again.

    Raises:
        FastfuseError: no complete index can be made; the content of `fd` is useless.
    """
    gc.disable()  # millions of objects live until the process exits
    started_s = time.monotonic()
    snapshot, requests = _snapshot(source, origin, connection, fd, counters)
    if origin.checks_reads and not requests:  # a saved or a kept index
        trio.run(_check_readable, snapshot, connection)
    metadata = snapshot.table.metadata
    return IndexReport(
        files=metadata.file_count,
        directories=metadata.directory_count,
        total_bytes=metadata.total_bytes,
        refused=snapshot.refusals.total,
        requests=requests,
        elapsed_s=time.monotonic() - started_s,
        listed_at_ns=snapshot.listed_at_ns,
    )


def _snapshot(
    source: S3Uri, origin: IndexOrigin, connection: ConnectionConfig, fd: int, counters: Counters | None
) -> tuple[Snapshot, int]:
    """Write the snapshot to `fd`; return it and the number of requests it took."""
    if origin.shard is None or origin.kind is not SourceKind.PREFIX:
        return _whole(source, origin, connection, fd, counters)
    # Every host lists the whole prefix and then keeps its part: one kept listing or index serves all hosts.
    whole_fd = os.memfd_create("fastfuse-whole", os.MFD_CLOEXEC)
    try:
        snapshot, requests = _whole(source, origin, connection, whole_fd, counters)
        if snapshot.view != origin.view:
            part = take_part(snapshot.table, origin.shard.positions)
            snapshot = replace(snapshot, table=part, view=origin.view)
        save_snapshot(snapshot, fd)
        return snapshot, requests
    finally:
        os.close(whole_fd)


def _whole(
    source: S3Uri, origin: IndexOrigin, connection: ConnectionConfig, fd: int, counters: Counters | None
) -> tuple[Snapshot, int]:
    """Do as `_snapshot`, but for a prefix write all of it, or the part that the saved index holds."""
    view = origin.listed_view
    if isinstance(origin.saved, S3Uri) and origin.max_age_s:
        shared = SharedIndex(origin.saved, source, connection, {view, origin.view}, origin.max_age_s)
        snapshot, requests = shared.open(fd, partial(_listed, source, origin, connection, fd, counters))
    elif origin.saved is not None:
        snapshot, requests = load_index(origin.saved, connection, source, fd, {view, origin.view}), 0
    else:
        return _kept_or_listed(source, origin, connection, fd, counters)
    if not requests:
        _accept(source, origin, snapshot)
    return snapshot, requests


def _kept_or_listed(
    source: S3Uri, origin: IndexOrigin, connection: ConnectionConfig, fd: int, counters: Counters | None
) -> tuple[Snapshot, int]:
    view = origin.listed_view
    is_listed = origin.inventory is None and origin.keys_from is None
    cache = IndexCache(origin.cache) if origin.cache is not None and is_listed else None
    kept_at = cache.path(source, S3Session(connection).endpoint_url, view) if cache is not None else Path()
    if cache is not None and origin.max_age_s:
        kept = cache.find(kept_at, source, origin.max_age_s, fd, view)
        if kept is not None:
            _accept(source, origin, kept)
            return kept, 0
    listed = _listed(source, origin, connection, fd, counters)
    if cache is not None:
        cache.keep(kept_at, fd)
    return listed


def _listed(
    source: S3Uri, origin: IndexOrigin, connection: ConnectionConfig, fd: int, counters: Counters | None
) -> tuple[Snapshot, int]:
    listed_at_ns = time.time_ns()
    with shown_progress(source) as progress:
        listing = trio.run(_list, source, origin, connection, progress, counters)
    snapshot = Snapshot(
        source=str(source),
        listed_at_ns=listed_at_ns,
        table=listing.table,
        refusals=listing.refusals,
        view=origin.listed_view,
    )
    save_snapshot(snapshot, fd)
    return snapshot, listing.request_count


def _accept(source: S3Uri, origin: IndexOrigin, snapshot: Snapshot) -> None:
    allow_empty = _may_be_empty(origin) or snapshot.view not in ("", KEY_NAME_PREFIX)
    accept(source, snapshot.table, snapshot.refusals, strict=origin.strict, allow_empty=allow_empty)
    listed_at = datetime.fromtimestamp(snapshot.listed_at_ns / 1e9, UTC)
    _log.info("using the listing of %s, made at %s", snapshot.source, listed_at.isoformat(timespec="seconds"))


def _may_be_empty(origin: IndexOrigin) -> bool:
    """Return whether the table may have no objects: that of a part, or of lines without references, may."""
    is_part = origin.shard is not None and origin.kind is not SourceKind.PREFIX
    return origin.allow_empty or is_part or origin.kind is SourceKind.AUGMENTED_MANIFEST


async def _check_readable(snapshot: Snapshot, connection: ConnectionConfig) -> None:
    client = S3Client(S3Session(connection))
    try:
        await check_readable(client, samples_of_table(snapshot.table))
    finally:
        await client.aclose()


async def _list(
    source: S3Uri,
    origin: IndexOrigin,
    connection: ConnectionConfig,
    progress: ProgressCallback,
    counters: Counters | None,
) -> Listing:
    retries = Retries(counters)
    client = S3Client(S3Session(connection), retries=retries)
    try:
        if origin.kind is SourceKind.PREFIX and origin.inventory is None and origin.keys_from is None:
            return await list_source(
                client,
                source,
                retries=retries,
                is_key_name_prefix=origin.is_key_name_prefix,
                strict=origin.strict,
                allow_empty=origin.allow_empty,
                progress=progress,
                reader=client if origin.checks_reads else None,
            )
        listing = await _list_named(client, source, origin, progress)
    finally:
        await client.aclose()
    allow_empty = _may_be_empty(origin)
    accept(source, listing.table, listing.refusals, strict=origin.strict, allow_empty=allow_empty)
    return listing


async def _list_named(objects: ObjectSource, source: S3Uri, origin: IndexOrigin, progress: ProgressCallback) -> Listing:
    """List the objects that a file names: a manifest, an inventory or a list of keys."""
    if origin.kind is SourceKind.MANIFEST:
        return await list_manifest(
            objects, source, shard=origin.shard, allow_empty=origin.allow_empty, progress=progress
        )
    if origin.kind is SourceKind.AUGMENTED_MANIFEST:
        return await list_augmented_manifest(
            objects,
            source,
            attribute_names=origin.attribute_names,
            shard=origin.shard,
            allow_empty=origin.allow_empty,
            progress=progress,
        )
    if origin.inventory is not None:
        return await list_inventory(objects, origin.inventory, source, progress=progress)
    assert origin.keys_from is not None
    return await list_keys(objects, origin.keys_from, source, progress=progress)

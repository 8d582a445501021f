"""Makes the index of a source from a saved index, an inventory, a list of keys, or a listing."""

import gc
import logging
import os
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from fastfuse import awake
from fastfuse.errors import ConfigurationError
from fastfuse.index.inodes.selection import readable_rows, take_part
from fastfuse.index.listing.acceptance import Listing, ProgressCallback, accept, check_readable, samples_of_table
from fastfuse.index.listing.inventory import list_inventory
from fastfuse.index.listing.lister import list_source
from fastfuse.index.listing.named import list_augmented_manifest, list_keys, list_manifest, read_keys
from fastfuse.index.origin import KEY_NAME_PREFIX, IndexOrigin, SourceKind
from fastfuse.index.progress import listing_progress
from fastfuse.index.saved import SharedIndex, copy_index, load_index, store_index
from fastfuse.index.snapshot import OldFormatError, Snapshot, save_snapshot
from fastfuse.index.sources.inventory_report import load_parquet
from fastfuse.index.sources.manifests import Reference
from fastfuse.index.sources.uri import S3Uri
from fastfuse.metrics import Counters
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ObjectSource
from fastfuse.s3.client import S3Client
from fastfuse.s3.retries import Retries
from fastfuse.s3.upload import load_writer

_log = logging.getLogger(__name__)

# See `make_index`.
BeforeNetwork = Callable[[Callable[[], None]], Callable[[], None]]


@dataclass(frozen=True, slots=True)
class IndexReport:
    """The figures of an index and of the work that made it."""

    files: int
    total_bytes: int
    requests: int
    elapsed_s: float
    listed_at_ns: int

    def __str__(self) -> str:
        rate = self.files / self.elapsed_s if self.elapsed_s else 0.0
        return f"{self.files:,} objects, {self.total_bytes:,} bytes, {self.elapsed_s:.1f} s, {rate:,.0f} objects/s"


def make_index(
    source: S3Uri,
    origin: IndexOrigin,
    session: S3Session,
    fd: int,
    counters: Counters | None = None,
    *,
    before_network: BeforeNetwork = lambda save: save,
) -> IndexReport:
    """Write the index of `source` into the empty file (or memfd) `fd`, in a process of its own, which soon ends.

    `counters` count the requests that were tried again. `before_network` is called between the last use of the user's
    files and the first request, so that a process that speaks to S3 may give up the user's rights. It gets the function
    that saves the listing, which takes these rights, and returns the one to call instead.

    Raises:
        FastfuseError: no complete index can be made; the content of `fd` is useless.
    """
    gc.disable()  # millions of objects live until the process exits
    # A limit on the size of files counts for memfds, too.
    hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard_limit, hard_limit))
    started_s = time.monotonic()
    making = _Making(source, origin, session, fd, counters, before_network)
    snapshot, requests = making.shown()
    # A saved index has no pages, and those of a listing of archives alone do not tell.
    if origin.checks_reads and not (requests and len(readable_rows(snapshot.table))):
        awake.run(_check_readable, snapshot, session, counters)
    metadata = snapshot.table.metadata
    return IndexReport(
        files=metadata.file_count,
        total_bytes=metadata.total_bytes,
        requests=requests,
        elapsed_s=time.monotonic() - started_s,
        listed_at_ns=snapshot.listed_at_ns,
    )


@dataclass(frozen=True, slots=True)
class _Making:
    """One call of `make_index`. Each method returns a snapshot, and the number of requests that it took."""

    source: S3Uri
    origin: IndexOrigin
    session: S3Session
    fd: int
    counters: Counters | None
    before_network: BeforeNetwork

    def shown(self) -> tuple[Snapshot, int]:
        """Write what is shown to `fd`."""
        shard = self.origin.shard
        if shard is None or self.origin.kind is not SourceKind.PREFIX:
            return self.whole()
        # Every host lists the whole prefix and then keeps its part: one saved index serves all hosts.
        with os.fdopen(os.memfd_create("fastfuse-whole"), "rb") as whole:
            snapshot, requests = replace(self, fd=whole.fileno()).whole()
            if snapshot.view != self.origin.view:
                snapshot = replace(snapshot, table=take_part(snapshot.table, shard.positions), view=self.origin.view)
            save_snapshot(snapshot, self.fd)
            return snapshot, requests

    def whole(self) -> tuple[Snapshot, int]:
        """Write the index to `fd`: for a prefix all of it, or the part that the saved index holds."""
        origin = self.origin
        if isinstance(origin.saved, S3Uri) and origin.max_age_s:
            return self.shared(origin.saved, origin.max_age_s)
        may_take = not isinstance(origin.saved, Path) or copy_index(origin.saved, self.fd, is_own=origin.is_own_file)
        references = read_keys(origin.keys_from, self.source) if origin.keys_from is not None else []
        if origin.inventory is not None:
            load_parquet()
        save = self.before_network(self.save)
        if (found := self.found(may_take=may_take)) is not None:
            self.accept(found)
            return found, 0
        listed = self.listed(references)
        if origin.is_own_file:
            save()
        return listed

    def found(self, *, may_take: bool) -> Snapshot | None:
        """Return the saved index; None, and an empty `fd`, if there is none to be taken, or it is to be made anew.

        What is no index of the source is never replaced.
        """
        origin = self.origin
        if origin.saved is None or (origin.is_own_file and not os.fstat(self.fd).st_size):
            return None
        views = {origin.listed_view, origin.view}
        try:
            found = load_index(origin.saved, self.session, self.source, self.fd, views, self.counters)
        except OldFormatError:
            if origin.max_age_s is None:
                raise
        else:
            age_s = time.time() - found.listed_at_ns / 1e9
            # A clock may have been ahead.
            if may_take and (origin.max_age_s is None or abs(age_s) <= origin.max_age_s):
                return found
            _log.info("the index %s is made anew: it was listed %.0f s ago", origin.saved, age_s)
        os.ftruncate(self.fd, 0)
        return None

    def save(self) -> None:
        """Write the index to the file that it is to be found in next time."""
        assert isinstance(self.origin.saved, Path)
        try:
            store_index(self.origin.saved, self.session.config, self.fd)
        except ConfigurationError as error:
            _log.warning("%s; this listing is used all the same", error)

    def shared(self, place: S3Uri, max_age_s: float) -> tuple[Snapshot, int]:
        """Write the index to `fd` that hosts share at `place`."""
        origin = self.origin
        origin.check_place("--index", place, self.source)
        awake.run(load_writer, self.session)
        self.before_network(lambda: None)
        views = {origin.listed_view, origin.view}
        shared = SharedIndex(
            *(place, self.source, self.session, views, max_age_s, self.counters),
            is_sharded=origin.shard is not None,
        )
        snapshot, requests = shared.open(self.fd, partial(self.listed, ()))
        if not requests:
            self.accept(snapshot)
        return snapshot, requests

    def listed(self, references: Sequence[Reference]) -> tuple[Snapshot, int]:
        """List the source, or the `references` of the list of keys, and write the index to `fd`."""
        listed_at_ns = time.time_ns()
        objects_listed = (self.counters or Counters()).memory("fastfuse_objects_listed")
        before = objects_listed[0]

        def count(objects: int) -> None:
            objects_listed[0] = before + objects

        listing = awake.run(self._list, references, listing_progress(self.source, count))
        count(listing.table.metadata.file_count + listing.refusals.total)
        snapshot = Snapshot(
            source=str(self.source),
            listed_at_ns=listed_at_ns,
            table=listing.table,
            refusals=listing.refusals,
            view=self.origin.listed_view,
        )
        save_snapshot(snapshot, self.fd)
        return snapshot, listing.request_count

    def accept(self, snapshot: Snapshot) -> None:
        """Check an index that was not listed now, and log its age."""
        origin = self.origin
        allow_empty = self._may_be_empty or snapshot.view not in ("", KEY_NAME_PREFIX)
        accept(self.source, snapshot.table, snapshot.refusals, strict=origin.strict, allow_empty=allow_empty)
        listed_at = datetime.fromtimestamp(snapshot.listed_at_ns / 1e9, UTC)
        _log.info("using the listing of %s, made at %s", snapshot.source, listed_at.isoformat(timespec="seconds"))

    @property
    def _may_be_empty(self) -> bool:
        """Return whether the table may have no objects: that of a part, or of lines without references, may."""
        is_part = self.origin.shard is not None and self.origin.kind is not SourceKind.PREFIX
        return self.origin.allow_empty or is_part or self.origin.kind is SourceKind.AUGMENTED_MANIFEST

    async def _list(self, references: Sequence[Reference], progress: ProgressCallback) -> Listing:
        origin, retries = self.origin, Retries(self.counters)
        async with aclosing(S3Client(self.session, retries=retries)) as client:
            if origin.kind is SourceKind.PREFIX and origin.inventory is None and origin.keys_from is None:
                return await list_source(
                    client,
                    self.source,
                    retries=retries,
                    is_key_name_prefix=origin.is_key_name_prefix,
                    strict=origin.strict,
                    allow_empty=origin.allow_empty,
                    progress=progress,
                    reader=client if origin.checks_reads else None,
                )
            listing = await self._list_named(client, references, progress)
            accept(self.source, listing.table, listing.refusals, strict=origin.strict, allow_empty=self._may_be_empty)
            if origin.checks_reads:
                await check_readable(client, samples_of_table(listing.table))
            return listing

    async def _list_named(
        self, objects: ObjectSource, references: Sequence[Reference], progress: ProgressCallback
    ) -> Listing:
        """List the objects that a manifest or an inventory names, or the `references` of the list of keys."""
        source, origin = self.source, self.origin
        if origin.inventory is not None:
            async with aclosing(S3Client(self.session.without_key(), retries=Retries(self.counters))) as client:
                return await list_inventory(client, origin.inventory, source, progress=progress)
        if origin.keys_from is not None:
            return await list_keys(objects, references, source, name=str(origin.keys_from), progress=progress)
        list_named = list_manifest
        if origin.kind is SourceKind.AUGMENTED_MANIFEST:
            list_named = partial(list_augmented_manifest, attribute_names=origin.attribute_names)
        return await list_named(objects, source, shard=origin.shard, allow_empty=origin.allow_empty, progress=progress)


async def _check_readable(snapshot: Snapshot, session: S3Session, counters: Counters | None) -> None:
    async with aclosing(S3Client(session, retries=Retries(counters))) as client:
        await check_readable(client, samples_of_table(snapshot.table))

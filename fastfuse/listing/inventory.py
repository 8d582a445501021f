"""Lists a source from an S3 Inventory report, without a single LIST."""

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from pathlib import Path

import trio

from fastfuse.errors import ConfigurationError, first_of
from fastfuse.inodes.builder import TableBuilder
from fastfuse.listing.acceptance import Listing
from fastfuse.listing.sweep import ListingProgress, ProgressCallback
from fastfuse.sources.inventory import DataFile, InventoryRows, Manifest, parse_manifest, read_rows
from fastfuse.sources.uri import S3Uri
from fastfuse.store.base import ObjectSource

__all__ = ["list_inventory"]

# A manifest names a file of up to 2 GB on each line of some 200 bytes: this is for 10^12 objects.
_MAX_MANIFEST_BYTES = 64 << 20
# One is parsed while the next is fetched; Python parses one at a time.
_FILES_AT_ONCE = 2
_STEP_BYTES = 8 << 20


async def list_inventory(
    objects: ObjectSource, manifest_uri: S3Uri, source: S3Uri, *, progress: ProgressCallback = lambda _: None
) -> Listing:
    """The objects of `source` in the report whose manifest.json is at `manifest_uri`.

    Raises:
        ConfigurationError: it is no report of the source's bucket, of no use, or damaged.
        SourceError, AccessError, ServiceError: S3 does not give it.
    """
    ref = await objects.head(manifest_uri.bucket, manifest_uri.path)
    manifest = parse_manifest(await objects.read(ref, limit_bytes=_MAX_MANIFEST_BYTES), str(manifest_uri))
    if manifest.source_bucket != source.bucket:
        raise ConfigurationError(
            f"{manifest_uri} is an inventory of the bucket {manifest.source_bucket!r}, not of {source.bucket!r}"
        )
    report = _Report(objects, manifest, manifest_uri.bucket, source, progress)
    await report.read()
    table, refusals = report.builder().build()
    return Listing(table, refusals, report.request_count)


class _Report:
    def __init__(
        self, objects: ObjectSource, manifest: Manifest, bucket: str, source: S3Uri, progress: ProgressCallback
    ) -> None:
        self._objects = objects
        self._manifest = manifest
        self._bucket = bucket
        self._source = source
        self._progress = progress
        self._folder = f"{source.path.rstrip('/')}/".encode() if source.path else b""
        self._below = TableBuilder(source.bucket, self._folder.decode())
        # The object that the source names, if it is none of a folder (N1).
        self._itself = InventoryRows()
        self.request_count = 2
        self._files_done = 0

    async def read(self) -> None:
        limiter = trio.CapacityLimiter(_FILES_AT_ONCE)
        try:
            async with trio.open_nursery() as nursery:
                for file in self._manifest.files:
                    nursery.start_soon(self._read_file, file, limiter)
        except ExceptionGroup as group:
            raise first_of(group) from group

    def builder(self) -> TableBuilder:
        """With all rows of the source in it."""
        if len(self._below) or not self._itself.keys:
            return self._below
        path = self._source.path
        builder = TableBuilder(self._source.bucket, path[: path.rfind("/") + 1])
        _add(builder, self._itself)
        return builder

    async def _read_file(self, file: DataFile, limiter: trio.CapacityLimiter) -> None:
        async with limiter:
            ref = await self._objects.head(self._bucket, file.key)
            fd = os.memfd_create("fastfuse-inventory", os.MFD_CLOEXEC)
            try:
                await self._objects.read_into(ref, fd)
                self.request_count += 2
                await trio.to_thread.run_sync(partial(self._parse, file, fd))
            finally:
                os.close(fd)
            self._files_done += 1
            self._tell()

    def _parse(self, file: DataFile, fd: int) -> None:
        """In a thread of its own; the rows go back to the task's."""
        name = f"s3://{self._bucket}/{file.key}"
        with Path(f"/proc/self/fd/{fd}").open("rb") as data:
            digest = hashlib.md5(usedforsecurity=False)
            while block := data.read(_STEP_BYTES):
                digest.update(block)
            if digest.hexdigest() != file.md5.lower():
                raise ConfigurationError(f"the inventory file {name} is not the one that its manifest names (MD5)")
            data.seek(0)
            for rows in read_rows(self._manifest, data, name):
                trio.from_thread.run_sync(self._take, rows)

    def _take(self, rows: InventoryRows) -> None:
        _add(self._below, _selected(rows, lambda key: key.startswith(self._folder)))
        itself = _selected(rows, self._source.path.encode().__eq__)
        if itself.keys:
            self._itself = itself
        self._tell()

    def _tell(self) -> None:
        self._progress(
            ListingProgress(
                objects=len(self._below),
                requests=self.request_count,
                in_flight=0,
                throttled=0,
                share=self._files_done / max(len(self._manifest.files), 1),
            )
        )


def _selected(rows: InventoryRows, is_wanted: Callable[[bytes], bool]) -> InventoryRows:
    chosen = [is_wanted(key) for key in rows.keys]
    if all(chosen):
        return rows
    return InventoryRows(*(list(compress(column, chosen)) for column in _columns(rows)))  # type: ignore[arg-type]


def _columns(rows: InventoryRows) -> tuple[Sequence[object], ...]:
    return rows.keys, rows.sizes, rows.mtimes_ns, rows.etags, rows.storage_classes


def _add(builder: TableBuilder, rows: InventoryRows) -> None:
    builder.add(rows.keys, rows.sizes, rows.mtimes_ns, rows.etags, rows.storage_classes)

"""Lists a source from an S3 Inventory report, without a single LIST."""

import hashlib
import os
from functools import partial
from io import BufferedReader

import trio

from fastfuse.errors import ConfigurationError, first_of
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.listing.acceptance import Listing, ListingProgress, ProgressCallback, partial_name
from fastfuse.index.sources.inventory_report import DataFile, Manifest, parse_manifest, read_rows
from fastfuse.index.sources.uri import S3Uri
from fastfuse.objects import ObjectColumns
from fastfuse.s3.base import ObjectSource
from fastfuse.s3.whole import read_into, read_whole

# A manifest names a file of up to 2 GB in about 200 bytes: this is enough for 10^12 objects.
_MAX_MANIFEST_BYTES = 64 << 20
# One file is parsed while the next is fetched; Python parses one at a time.
_FILES_AT_ONCE = 2


async def list_inventory(
    objects: ObjectSource, manifest_uri: S3Uri, source: S3Uri, *, progress: ProgressCallback = lambda _: None
) -> Listing:
    """List the objects of `source` in the report whose manifest.json is at `manifest_uri`.

    Raises:
        ConfigurationError: the report is of another bucket, lacks a field, or is damaged.
        SourceError: a file of the report does not exist, or the source is only the beginning of a name.
        AccessError, ServiceError: S3 does not return the report.
    """
    ref = await objects.head(manifest_uri.bucket, manifest_uri.path)
    text = await read_whole(objects, ref, limit_bytes=_MAX_MANIFEST_BYTES)
    manifest = parse_manifest(text, str(manifest_uri))
    if manifest.source_bucket != source.bucket:
        raise ConfigurationError(
            f"{manifest_uri} is an inventory of the bucket {manifest.source_bucket!r}, not of {source.bucket!r}"
        )
    report = _Report(objects, manifest, manifest_uri.bucket, source, progress)
    await report.read()
    return Listing(*report.builder().build(), 2 + 2 * len(manifest.files))


class _Report:
    def __init__(
        self, objects: ObjectSource, manifest: Manifest, bucket: str, source: S3Uri, progress: ProgressCallback
    ) -> None:
        self._objects = objects
        self._manifest = manifest
        self._bucket = bucket
        self._source = source
        self._progress = progress
        self._path = source.path.encode()
        self._folder = source.folder.encode()
        self._below = TableBuilder(source.bucket, source.folder)
        # The object that the source names, used if the source is no folder (N1).
        self._itself = TableBuilder(source.bucket, source.parent)
        # Names that begin with the source's path, for the error if it is neither.
        self._neighbours: set[bytes] = set()
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
        """Return a builder with all rows of the source; `SourceError` if it is neither a folder nor an object."""
        if len(self._below):
            return self._below
        if len(self._itself):
            return self._itself
        if self._neighbours:
            raise partial_name(self._source, sorted(self._neighbours))
        return self._below

    async def _read_file(self, file: DataFile, limiter: trio.CapacityLimiter) -> None:
        async with limiter:
            ref = await self._objects.head(self._bucket, file.key)
            if ref.size_bytes != file.size_bytes:
                raise self._is_another(file, "size")
            with os.fdopen(os.memfd_create("fastfuse-inventory"), "rb") as data:
                await read_into(self._objects, ref, data.fileno())
                await trio.to_thread.run_sync(self._parse, file, data)
            self._files_done += 1
            self._tell()

    def _is_another(self, file: DataFile, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"the inventory file s3://{self._bucket}/{file.key} is not the one that its manifest names ({what})"
        )

    def _parse(self, file: DataFile, data: BufferedReader) -> None:
        """Parse the `data` of `file` in a thread of its own, and hand the rows to trio's thread."""
        if hashlib.file_digest(data, partial(hashlib.md5, usedforsecurity=False)).hexdigest() != file.md5.lower():
            raise self._is_another(file, "MD5")
        data.seek(0)
        for rows in read_rows(self._manifest, data, f"s3://{self._bucket}/{file.key}", self._path):
            trio.from_thread.run_sync(self._take, rows)

    def _take(self, rows: ObjectColumns) -> None:
        is_below = [key.startswith(self._folder) for key in rows.keys]
        self._below.add(*rows.chosen(is_below))
        if not all(is_below):
            self._take_beside(rows.chosen([not one for one in is_below]))
        self._tell()

    def _take_beside(self, rows: ObjectColumns) -> None:
        """Take rows that begin with the source's path outside its folder; they count only if the folder is empty."""
        self._itself.add(*rows.chosen([key == self._path for key in rows.keys]))
        if len(self._below) or len(self._itself):
            self._neighbours.clear()
            return
        begun = len(self._path)
        self._neighbours.update(key[: key.find(b"/", begun) + 1] or key for key in rows.keys)

    def _tell(self) -> None:
        self._progress(ListingProgress(len(self._below), share=self._files_done / len(self._manifest.files)))

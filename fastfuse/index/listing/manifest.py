"""Lists the objects that a manifest names, in its order: reads it, and requests the attributes of each object."""

import os
from collections.abc import Sequence
from typing import Final

from fastfuse.errors import ConfigurationError, EmptySourceError, SourceError
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.listing.acceptance import ALLOW_EMPTY_HINT, Listing, ProgressCallback
from fastfuse.index.listing.keys import add_found, head_all
from fastfuse.index.sources.manifests import (
    AugmentedLine,
    Reference,
    filtered_manifest,
    read_augmented_manifest,
    read_manifest,
)
from fastfuse.index.sources.shard import Shard
from fastfuse.index.sources.uri import S3Uri
from fastfuse.objects import ObjectRef
from fastfuse.s3.base import ObjectSource
from fastfuse.s3.whole import read_into

__all__ = ["list_augmented_manifest", "list_manifest"]

# Ten million keys of a hundred bytes.
MAX_MANIFEST_BYTES: Final = 1 << 30


async def list_manifest(
    objects: ObjectSource,
    source: S3Uri,
    *,
    shard: Shard | None = None,
    allow_empty: bool = False,
    progress: ProgressCallback = lambda _: None,
) -> Listing:
    """List the objects of the manifest `source`, or only the part `shard`, under their whole keys.

    A shard is a part of all objects in the order of their keys, before objects are left out that cannot be shown. An
    object that is named twice is in one part, and twice in the table's source order.

    Raises:
        ConfigurationError: `source` is no manifest.
        EmptySourceError: the manifest names no object, unless `allow_empty`.
        SourceError, AccessError, ServiceError: the manifest or an object of it does not exist or cannot be read.
    """
    _, data = await _manifest(objects, source)
    references = read_manifest(data, str(source))
    _refuse_nothing(source, len(references), "names no object", allow_empty=allow_empty)
    named = _in_key_order(references)
    if shard is not None and not shard.by_bytes:
        named = [named[at] for at in shard.positions(range(len(named)))]
    found = await head_all(objects, named, str(source), progress)
    requests = 2 + len(found)
    if shard is not None and shard.by_bytes:
        found = [found[at] for at in shard.positions([ref.size_bytes for ref in found])]
    bucket = references[0].bucket if references else source.bucket
    return _listing(TableBuilder(bucket, ""), found, references, requests, bucket)


async def list_augmented_manifest(
    objects: ObjectSource,
    source: S3Uri,
    *,
    attribute_names: Sequence[str] = (),
    shard: Shard | None = None,
    allow_empty: bool = False,
    progress: ProgressCallback = lambda _: None,
) -> Listing:
    """List the objects that the lines of `source` refer to, and make a file of these lines beside them.

    The lines have the attributes `attribute_names` in this order (empty: all). A shard is a part of the lines; an
    object that two lines refer to may be in two parts. The paths begin with buckets if the whole manifest names more
    than one, whichever part is listed.

    Raises:
        As `list_manifest`.
    """
    ref, data = await _manifest(objects, source)
    lines = read_augmented_manifest(data, str(source), attribute_names)
    _refuse_nothing(source, len(lines), "has no lines", allow_empty=allow_empty)
    buckets = {reference.bucket for line in lines for reference in line.references} or {source.bucket}
    bucket = buckets.pop() if len(buckets) == 1 else ""
    if shard is not None and not shard.by_bytes:
        lines = [lines[at] for at in shard.positions(range(len(lines)))]
    found = await head_all(objects, _in_key_order(_references(lines)), str(source), progress)
    requests = 2 + len(found)
    if shard is not None and shard.by_bytes:
        sizes = {(one.bucket, one.key): one.size_bytes for one in found}
        lines = [lines[at] for at in shard.positions([_size(line, sizes) for line in lines])]
        kept = {(one.bucket, one.key) for one in _references(lines)}
        found = [one for one in found if (one.bucket, one.key) in kept]
    builder = TableBuilder(bucket, "")
    _add_lines(builder, source, ref, lines, bucket)
    return _listing(builder, found, _references(lines), requests, bucket)


async def _manifest(objects: ObjectSource, source: S3Uri) -> tuple[ObjectRef, bytes]:
    if not source.path or source.path.endswith("/"):
        raise ConfigurationError(f"{source} names no manifest", hint="write it as s3://BUCKET/KEY")
    ref = await objects.head(source.bucket, source.path)
    if ref.size_bytes > MAX_MANIFEST_BYTES:
        raise SourceError(
            f"the manifest {source} has {ref.size_bytes:,} bytes; it may have {MAX_MANIFEST_BYTES:,}",
            hint="is it the manifest? If so, divide it into several",
        )
    fd = os.memfd_create("fastfuse-manifest", os.MFD_CLOEXEC)
    try:
        await read_into(objects, ref, fd)
        return ref, os.pread(fd, ref.size_bytes, 0)
    finally:
        os.close(fd)


def _refuse_nothing(source: S3Uri, count: int, what: str, *, allow_empty: bool) -> None:
    if not count and not allow_empty:
        raise EmptySourceError(f"the manifest {source} {what}", hint=ALLOW_EMPTY_HINT)


def _references(lines: Sequence[AugmentedLine]) -> list[Reference]:
    return [reference for line in lines for reference in line.references]


def _in_key_order(references: Sequence[Reference]) -> list[Reference]:
    """Return the first reference to each object, in the order of buckets and keys."""
    named = {(one.bucket, one.key): one for one in reversed(references)}
    return [named[name] for name in sorted(named)]


def _size(line: AugmentedLine, sizes_bytes: dict[tuple[str, str], int]) -> int:
    return sum(sizes_bytes[reference.bucket, reference.key] for reference in line.references)


def _path(named: Reference | ObjectRef, bucket: str) -> str:
    """Return the path in a table of `bucket`, or in one of several buckets if `bucket` is empty."""
    return named.key if bucket else f"{named.bucket}/{named.key}"


def _add_lines(
    builder: TableBuilder, source: S3Uri, ref: ObjectRef, lines: Sequence[AugmentedLine], bucket: str
) -> None:
    """Add a made file with the lines and the manifest's name, beside the objects."""
    name = source.path.rpartition("/")[2]
    for reference in _references(lines):
        if _path(reference, bucket).partition("/")[0] == name:
            raise ConfigurationError(
                f"{source}:{reference.place}: the path of s3://{reference.bucket}/{reference.key} in the mount begins "
                f"with {name!r}, which is the name of the manifest itself",
                hint="give the manifest another name",
            )
    builder.add_made(name.encode(), filtered_manifest(lines), ref.modified_ns)


def _listing(
    builder: TableBuilder, found: Sequence[ObjectRef], references: Sequence[Reference], requests: int, bucket: str
) -> Listing:
    """Return the table of `found`, in the order of `references`, some of which may be of other parts."""
    add_found(builder, found, [_path(ref, bucket).encode() for ref in found])
    places = {(ref.bucket, ref.key): at for at, ref in enumerate(found)}
    order = (places.get((reference.bucket, reference.key), -1) for reference in references)
    builder.set_source_order([at for at in order if at >= 0])
    table, refusals = builder.build()
    return Listing(table, refusals, requests)

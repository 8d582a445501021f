"""Lists the keys that a file names: requests the attributes of each, many at a time, and reports the missing ones."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import trio

from fastfuse.errors import (
    AccessError,
    ConfigurationError,
    EmptySourceError,
    ForbiddenObjectError,
    MissingObjectError,
    SourceError,
    first_of,
)
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.listing.acceptance import ALLOW_EMPTY_HINT, Listing, ListingProgress, ProgressCallback
from fastfuse.index.sources.manifests import (
    AugmentedLine,
    Reference,
    filtered_manifest,
    read_augmented_manifest,
    read_manifest,
)
from fastfuse.index.sources.shard import Shard
from fastfuse.index.sources.uri import S3Uri, shown
from fastfuse.objects import MAX_KEY_BYTES, ObjectRef
from fastfuse.s3.base import ObjectSource
from fastfuse.s3.whole import read_whole

# An error names this many of the missing objects.
_MAX_NAMED = 10
# Ten million keys of a hundred bytes.
MAX_MANIFEST_BYTES: Final = 1 << 30


def read_keys(path: Path, source: S3Uri) -> list[Reference]:
    """Return the objects of `source` that the file `path` names, as `parse_keys`.

    This may run as root on a file of another user, before rights are given up, so the parser must stay trivial.

    Raises:
        ConfigurationError: the file cannot be read, or a line of it is no key of `source`.
    """
    try:
        with path.open("rb") as file:
            return parse_keys(file, source, str(path))
    except OSError as error:
        raise ConfigurationError(f"the list of keys {path} cannot be read: {error.strerror}") from error


async def list_keys(
    objects: ObjectSource,
    named: Sequence[Reference],
    source: S3Uri,
    *,
    name: str,
    progress: ProgressCallback = lambda _: None,
) -> Listing:
    """List the objects of `source` that the file `name` has `named`.

    Raises:
        SourceError, AccessError, ServiceError: as `head_all`.
    """
    is_one_object = [reference.key for reference in named] == [source.path]  # N1
    found = await head_all(objects, named, name, progress)
    builder = _builder(found, source.bucket, source.parent if is_one_object else source.folder)
    return Listing(*builder.build(), len(named))


def parse_keys(lines: Iterable[bytes], source: S3Uri, name: str) -> list[Reference]:
    """Return the keys in `lines`, each once, in byte order; errors call the file `name`.

    A line holds a key or ``s3://bucket/key``. Only the end of a line is special: a key may begin with ``#`` or a space,
    or end in a carriage return. If the first line ends in CR LF, a carriage return is part of the line's end. Empty
    lines are skipped.

    Raises:
        ConfigurationError: a line that is not UTF-8, or a key that does not lie in `source`; with its line number.
    """
    own = f"s3://{source.bucket}/"
    folder = source.folder
    end = ""
    found: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if number == 1 and line.endswith(b"\r\n"):
            end = "\r"
        try:
            text = line.removesuffix(b"\n").decode().removesuffix(end)
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{name}:{number}: the key is not UTF-8", hint="every S3 key is") from error
        if not text:
            continue
        key = text.removeprefix(own)
        is_short = len(key) <= MAX_KEY_BYTES and len(key.encode()) <= MAX_KEY_BYTES
        is_elsewhere = key == text and text.startswith("s3://")
        if not key or not is_short or is_elsewhere or not (key.startswith(folder) or key == source.path):
            raise ConfigurationError(
                f"{name}:{number}: {shown(text)} is no key in {source}",
                hint=f"a line holds a whole key of at most {MAX_KEY_BYTES} bytes, its prefix included, or its S3 URI",
            )
        found.setdefault(key, number)
    if len(found) > 1 and source.path in found and not source.path.endswith("/"):
        raise ConfigurationError(
            f"{name}:{found[source.path]}: {source.path!r} is an object beside the folder of the same name",
            hint=f"the mount shows only the folder {folder}",
        )
    return [Reference(source.bucket, key, found[key]) for key in sorted(found)]


async def head_all(
    objects: ObjectSource, references: Sequence[Reference], name: str, progress: ProgressCallback
) -> list[ObjectRef]:
    """Return the objects that the file `name` refers to as they are now, in the same order.

    Raises:
        SourceError, AccessError: some do not exist, or may not be read; with their places in the file.
        ServiceError: as `ObjectSource.head`; so do the other errors that end it at once, such as bad credentials.
    """
    found: dict[int, ObjectRef] = {}
    missing: list[Reference] = []
    denied: list[Reference] = []
    waiting = iter(enumerate(references))
    in_flight = 0

    async def request_some() -> None:
        nonlocal in_flight
        for at, reference in waiting:
            in_flight += 1
            try:
                found[at] = await objects.head(reference.bucket, reference.key)
            except MissingObjectError:
                missing.append(reference)
            except ForbiddenObjectError:
                denied.append(reference)
            finally:
                in_flight -= 1
            share = (len(found) + len(missing) + len(denied)) / len(references)
            progress(ListingProgress(len(found), in_flight, share=share))

    try:
        async with trio.open_nursery() as nursery:
            for _ in range(min(objects.max_connections, len(references))):
                nursery.start_soon(request_some)
    except ExceptionGroup as group:
        raise first_of(group) from group
    of_all = f"of the {len(references)} keys in {name}"
    if missing:
        raise SourceError(f"{len(missing)} {of_all} do not exist ({_named(missing, name)})")
    if denied:
        raise AccessError(f"{len(denied)} {of_all} may not be read with these credentials ({_named(denied, name)})")
    return [found[at] for at in range(len(references))]


def _named(failed: Sequence[Reference], name: str) -> str:
    """Return the first of `failed` with their places in the file `name`, and the number of the others."""
    in_order = sorted(failed, key=lambda reference: (reference.line, reference.column))
    file = name.rpartition("/")[2]
    named = [f"{file}:{one.place}: {f's3://{one.bucket}/{one.key}'!r}" for one in in_order[:_MAX_NAMED]]
    return "; ".join([*named, *([f"and {len(failed) - _MAX_NAMED:,} more"] if len(failed) > _MAX_NAMED else [])])


def _builder(found: Sequence[ObjectRef], bucket: str, key_prefix: str = "") -> TableBuilder:
    """Return a builder with `found`, for a table of `bucket`, or of several buckets if `bucket` is empty."""
    builder = TableBuilder(bucket, key_prefix)
    builder.add(
        [_path(ref, bucket).encode() for ref in found],
        [ref.size_bytes for ref in found],
        [ref.modified_ns for ref in found],
        [ref.etag for ref in found],
        [ref.storage_class for ref in found],
    )
    return builder


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
    return Listing(*_ordered(found, references, bucket).build(), requests)


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
    builder = _ordered(found, _references(lines), bucket)
    _add_lines(builder, source, ref, lines, bucket)
    return Listing(*builder.build(), requests)


async def _manifest(objects: ObjectSource, source: S3Uri) -> tuple[ObjectRef, bytes]:
    if not source.path or source.path.endswith("/"):
        raise ConfigurationError(f"{source} names no manifest", hint="write it as s3://BUCKET/KEY")
    ref = await objects.head(source.bucket, source.path)
    return ref, await read_whole(objects, ref, limit_bytes=MAX_MANIFEST_BYTES)


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
    """Return the path in the table of `_builder`. An ARN, which is one part of it, may have `:` for each `/`."""
    return named.key if bucket else f"{named.bucket.replace('/', ':')}/{named.key}"


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


def _ordered(found: Sequence[ObjectRef], references: Sequence[Reference], bucket: str) -> TableBuilder:
    """Return `_builder` with the order of `references`, some of which may be of other parts."""
    builder = _builder(found, bucket)
    places = {(ref.bucket, ref.key): at for at, ref in enumerate(found)}
    order = (places.get((reference.bucket, reference.key), -1) for reference in references)
    builder.set_source_order([at for at in order if at >= 0])
    return builder

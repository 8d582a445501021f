"""Lists the keys that a file names: requests the attributes of each, many at a time, and reports the missing ones."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import trio

from fastfuse.errors import (
    AccessError,
    ConfigurationError,
    ForbiddenObjectError,
    MissingObjectError,
    SourceError,
    first_of,
)
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.listing.acceptance import Listing, ListingProgress, ProgressCallback
from fastfuse.index.sources.manifests import Reference, shown
from fastfuse.index.sources.uri import S3Uri
from fastfuse.objects import MAX_KEY_BYTES, ObjectRef
from fastfuse.s3.base import ObjectSource

__all__ = ["add_found", "head_all", "list_keys", "parse_keys", "read_keys"]

# An error names this many of the missing objects.
_MAX_NAMED = 10


def read_keys(path: Path, source: S3Uri) -> list[Reference]:
    """Return the objects of `source` that the file `path` names, as `parse_keys`.

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
    if [reference.key for reference in named] == [source.path]:
        key_prefix = source.path[: source.path.rfind("/") + 1]  # the source is one object (N1)
    else:
        key_prefix = _folder(source)
    builder = TableBuilder(source.bucket, key_prefix)
    add_found(builder, await head_all(objects, named, name, progress))
    table, refusals = builder.build()
    return Listing(table, refusals, len(named))


def parse_keys(lines: Iterable[bytes], source: S3Uri, name: str) -> list[Reference]:
    """Return the keys in `lines`, each once, in byte order; errors call the file `name`.

    A line holds a key or ``s3://bucket/key``. Only the end of a line is special: a key may begin with ``#`` or a space,
    or end in a carriage return. If the first line ends in CR LF, a carriage return is part of the line's end. Empty
    lines are skipped.

    Raises:
        ConfigurationError: a line that is not UTF-8, or a key that does not lie in `source`; with its line number.
    """
    own = f"s3://{source.bucket}/"
    folder = _folder(source)
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
        if len(key) > MAX_KEY_BYTES or len(key.encode()) > MAX_KEY_BYTES:
            raise ConfigurationError(
                f"{name}:{number}: {shown(text)} is too long for a key", hint=f"a key has at most {MAX_KEY_BYTES} bytes"
            )
        if text.startswith("s3://") and not text.startswith(own):
            raise ConfigurationError(f"{name}:{number}: {text!r} is not in the bucket {source.bucket!r}")
        if not key:
            raise ConfigurationError(f"{name}:{number}: {text!r} names no object")
        if not key.startswith(folder) and key != source.path:
            raise ConfigurationError(
                f"{name}:{number}: {key!r} does not lie in {source}",
                hint="a line holds a whole key, its prefix included",
            )
        found.setdefault(key, number)
    if len(found) > 1 and source.path in found and not source.path.endswith("/"):
        raise ConfigurationError(
            f"{name}:{found[source.path]}: {source.path!r} is an object beside the folder of the same name",
            hint=f"the mount shows only the folder {folder}",
        )
    return [Reference(source.bucket, key, found[key]) for key in sorted(found)]


def _folder(source: S3Uri) -> str:
    return f"{source.path.rstrip('/')}/" if source.path else ""


async def head_all(
    objects: ObjectSource, references: Sequence[Reference], name: str, progress: ProgressCallback
) -> list[ObjectRef]:
    """Return the objects that the file `name` refers to as they are now, in the same order.

    Raises:
        SourceError, AccessError: some do not exist, or may not be read; with their places in the file.
        ServiceError: as `ObjectSource.head`; so do the other errors that end it at once, such as bad credentials.
    """
    heads = _Heads(objects, references, progress)
    await heads.request_all()
    heads.raise_if_incomplete(name)
    return [heads.found[at] for at in range(len(references))]


def add_found(builder: TableBuilder, found: Sequence[ObjectRef], keys: Sequence[bytes] | None = None) -> None:
    """Add objects to a table, under their own keys or under `keys`."""
    builder.add(
        [ref.key.encode() for ref in found] if keys is None else keys,
        [ref.size_bytes for ref in found],
        [ref.modified_ns for ref in found],
        [ref.etag for ref in found],
        [ref.storage_class for ref in found],
    )


class _Heads:
    def __init__(self, objects: ObjectSource, references: Sequence[Reference], progress: ProgressCallback) -> None:
        self._objects = objects
        self._references = references
        self._progress = progress
        self._waiting = list(range(len(references) - 1, -1, -1))
        self._in_flight = self._requests = 0
        self.found: dict[int, ObjectRef] = {}
        self._missing: list[Reference] = []
        self._denied: list[Reference] = []

    async def request_all(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(min(self._objects.max_connections, len(self._references))):
                    nursery.start_soon(self._request_some)
        except ExceptionGroup as group:
            raise first_of(group) from group

    async def _request_some(self) -> None:
        while self._waiting:
            at = self._waiting.pop()
            reference = self._references[at]
            self._in_flight += 1
            try:
                self.found[at] = await self._objects.head(reference.bucket, reference.key)
            except MissingObjectError:
                self._missing.append(reference)
            except ForbiddenObjectError:
                self._denied.append(reference)
            finally:
                self._in_flight -= 1
                self._requests += 1
            self._progress(
                ListingProgress(
                    objects=len(self.found),
                    requests=self._requests,
                    in_flight=self._in_flight,
                    throttled=0,
                    share=self._requests / len(self._references),
                )
            )

    def raise_if_incomplete(self, name: str) -> None:
        """Raise an error with the places of the objects that were not found."""
        for failed, kind, what in (
            (self._missing, SourceError, "do not exist"),
            (self._denied, AccessError, "may not be read with these credentials"),
        ):
            if failed:
                failed.sort(key=lambda reference: (reference.line, reference.column))
                file = name.rpartition("/")[2]
                shown = [f"{file}:{one.place}: {f's3://{one.bucket}/{one.key}'!r}" for one in failed[:_MAX_NAMED]]
                if len(failed) > _MAX_NAMED:
                    shown.append(f"and {len(failed) - _MAX_NAMED:,} more")
                raise kind(f"{len(failed)} of the {len(self._references)} keys in {name} {what} ({'; '.join(shown)})")

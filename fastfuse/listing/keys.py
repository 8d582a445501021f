"""Lists what a file names: asks S3 for the attributes of each key, many at a time."""

from collections.abc import Sequence
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
from fastfuse.inodes.builder import TableBuilder
from fastfuse.listing.acceptance import Listing
from fastfuse.listing.sweep import ListingProgress, ProgressCallback
from fastfuse.objects import ObjectRef
from fastfuse.sources.keys import ListedKey, parse_keys
from fastfuse.sources.uri import S3Uri
from fastfuse.store.base import ObjectSource

__all__ = ["list_keys"]

# Of the keys that are not there so many are named.
_MAX_NAMED = 10


async def list_keys(
    objects: ObjectSource, path: Path, source: S3Uri, *, progress: ProgressCallback = lambda _: None
) -> Listing:
    """The objects of `source` that the file `path` names.

    Raises:
        ConfigurationError: the file cannot be read, or a line of it is no key of `source`.
        SourceError, AccessError: some of the keys are not there, or not to be seen.
        ServiceError: as `ObjectSource.head`; so do the other errors that end it at once, bad credentials, say.
    """
    try:
        with path.open("rb") as file:
            keys = parse_keys(file, source, str(path))
    except OSError as error:
        raise ConfigurationError(f"the list of keys {path} cannot be read: {error.strerror}") from error
    heads = _Heads(objects, source, progress)
    await heads.ask(keys)
    heads.complain(path, len(keys))
    builder = TableBuilder(source.bucket, _key_prefix(source, keys))
    builder.add(
        [ref.key.encode() for ref in heads.found],
        [ref.size_bytes for ref in heads.found],
        [ref.modified_ns for ref in heads.found],
        [ref.etag for ref in heads.found],
        [ref.storage_class for ref in heads.found],
    )
    table, refusals = builder.build()
    return Listing(table, refusals, len(keys))


class _Heads:
    def __init__(self, objects: ObjectSource, source: S3Uri, progress: ProgressCallback) -> None:
        self._objects = objects
        self._source = source
        self._progress = progress
        self._waiting: list[ListedKey] = []
        self._in_flight = self._requests = 0
        self.found: list[ObjectRef] = []
        self._missing: list[ListedKey] = []
        self._denied: list[ListedKey] = []

    async def ask(self, keys: Sequence[ListedKey]) -> None:
        self._waiting = list(reversed(keys))
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(min(self._objects.max_connections, len(keys))):
                    nursery.start_soon(self._ask_some, len(keys))
        except ExceptionGroup as group:
            raise first_of(group) from group
        self.found.sort(key=lambda ref: ref.key)

    async def _ask_some(self, total: int) -> None:
        while self._waiting:
            listed = self._waiting.pop()
            self._in_flight += 1
            try:
                self.found.append(await self._objects.head(self._source.bucket, listed.key))
            except MissingObjectError:
                self._missing.append(listed)
            except ForbiddenObjectError:
                self._denied.append(listed)
            finally:
                self._in_flight -= 1
                self._requests += 1
            self._progress(
                ListingProgress(
                    objects=len(self.found),
                    requests=self._requests,
                    in_flight=self._in_flight,
                    throttled=0,
                    share=self._requests / total,
                )
            )

    def complain(self, path: Path, count: int) -> None:
        """Raise if not all of the keys were found."""
        for failed, kind, what in (
            (self._missing, SourceError, "do not exist"),
            (self._denied, AccessError, "may not be read with these credentials"),
        ):
            if failed:
                failed.sort(key=lambda listed: listed.line)
                named = "; ".join(f"{path.name}:{listed.line}: {listed.key!r}" for listed in failed[:_MAX_NAMED])
                more = "; ..." if len(failed) > _MAX_NAMED else ""
                raise kind(f"{len(failed)} of the {count} keys in {path} {what} ({named}{more})")


def _key_prefix(source: S3Uri, keys: Sequence[ListedKey]) -> str:
    """What stands before every path: the folder, or that of the one object that `source` names (N1)."""
    if [listed.key for listed in keys] == [source.path]:
        return source.path[: source.path.rfind("/") + 1]
    return f"{source.path.rstrip('/')}/" if source.path else ""

"""Asks S3 for the attributes of objects that somebody named, many at a time, and tells which of them are not there."""

from collections.abc import Sequence

import trio

from fastfuse.errors import AccessError, ForbiddenObjectError, MissingObjectError, SourceError, first_of
from fastfuse.index.inodes.builder import TableBuilder
from fastfuse.index.listing.sweep import ListingProgress, ProgressCallback
from fastfuse.index.sources.located import Reference
from fastfuse.objects import ObjectRef
from fastfuse.s3.base import ObjectSource

__all__ = ["add_found", "head_all"]

# Of the objects that are not there so many are named.
_MAX_NAMED = 10


async def head_all(
    objects: ObjectSource, references: Sequence[Reference], name: str, progress: ProgressCallback
) -> list[ObjectRef]:
    """What the objects that the file `name` refers to are now, in the same order.

    Raises:
        SourceError, AccessError: some are not there, or not to be seen; with their places in the file.
        ServiceError: as `ObjectSource.head`; so do the other errors that end it at once, bad credentials, say.
    """
    heads = _Heads(objects, references, progress)
    await heads.ask()
    heads.complain(name)
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

    async def ask(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(min(self._objects.max_connections, len(self._references))):
                    nursery.start_soon(self._ask_some)
        except ExceptionGroup as group:
            raise first_of(group) from group

    async def _ask_some(self) -> None:
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

    def complain(self, name: str) -> None:
        """Raise if not all of the objects were found."""
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

"""A complete listing, its progress, and the checks that decide whether it can be shown (clauses N2-N4) and read.

A GET of one byte checks that the objects of a source may be read, before a listing that may take minutes. A source may
hold objects that are denied one by one, by their tags or by another key of KMS. So a source is refused only if each of
up to three objects is denied. Any other failure is left to the reads, which are tried again.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import trio

from fastfuse.errors import (
    AccessError,
    EmptySourceError,
    ObjectArchivedError,
    ObjectDeniedError,
    ReadError,
    SourceError,
)
from fastfuse.index.inodes.selection import readable_rows, spread
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.inodes.tree import Refusals
from fastfuse.index.sources.uri import S3Uri
from fastfuse.objects import ARCHIVE_STORAGE_CLASSES, ObjectRef
from fastfuse.s3.base import RangeReader

_log = logging.getLogger(__name__)

ALLOW_EMPTY_HINT = "check the prefix, or mount it anyway with --allow-empty"
# The error for a partial name shows this many names that begin with it.
_MAX_CANDIDATES = 5
# A service that does not answer within this time is left to the reads, too.
_PATIENCE_S = 5.0
_HINT = "It takes s3:GetObject on the objects, and kms:Decrypt where KMS encrypts them; s3:ListBucket only lists them."


@dataclass(frozen=True, slots=True)
class Listing:
    """A complete listing; an incomplete one is an error."""

    table: InodeTable
    refusals: Refusals
    request_count: int


@dataclass(frozen=True, slots=True)
class ListingProgress:
    """The state of a listing; `share` is an estimate from 0 to 1 of what is done, or None without an estimate."""

    objects: int
    in_flight: int = 0
    throttled: int = 0
    share: float | None = None


ProgressCallback = Callable[[ListingProgress], None]


def accept(source: S3Uri, table: InodeTable, refusals: Refusals, *, strict: bool, allow_empty: bool) -> None:
    """Log which keys of `source` are left out.

    Raises:
        SourceError: a key is left out, and `strict` is set.
        EmptySourceError: no object can be shown, and `allow_empty` is not set.
    """
    if refusals.total:
        if strict:
            examples = "; ".join(f"{key!r}: {reason}" for key, reason in refusals.examples)
            raise SourceError(
                f"{refusals.total} keys of {source} cannot be shown as files ({examples})",
                hint="rename them, or mount without --strict to leave them out",
            )
        for key, reason in refusals.examples:
            _log.warning("left out: key %r has %s", key, reason)
        if refusals.total > len(refusals.examples):
            _log.warning("left out: %d keys in all; the first %d are above", refusals.total, len(refusals.examples))
    if not table.metadata.file_count and not allow_empty:
        raise EmptySourceError(f"{source} holds no object that can be shown", hint=ALLOW_EMPTY_HINT)


def partial_name(source: S3Uri, candidates: Sequence[bytes]) -> SourceError:
    """Return the error for a source that is only the beginning of the names of `candidates` (N1)."""
    return SourceError(
        f"{source} is only the beginning of a name; there is {shown_names(source.bucket, candidates)}",
        hint="give the whole name of one folder or object; "
        "a training job's File and Pipe channels take every key that begins with a name",
    )


def shown_names(bucket: str, names: Sequence[bytes]) -> str:
    """Return the first of `names` as URIs, and the number of the others."""
    shown = ", ".join(f"s3://{bucket}/{name.decode('utf-8', 'backslashreplace')}" for name in names[:_MAX_CANDIDATES])
    more = len(names) - _MAX_CANDIDATES
    return f"{shown} and {more} more" if more > 0 else shown


def has_readable_bytes(ref: ObjectRef) -> bool:
    """Return whether the object has bytes, and is in no archive."""
    return ref.size_bytes > 0 and ref.storage_class not in ARCHIVE_STORAGE_CLASSES


def samples(refs: Sequence[ObjectRef]) -> list[ObjectRef]:
    """Return the first, the middle and the last of `refs` that have readable bytes."""
    usable = list(filter(has_readable_bytes, refs))
    return list(dict.fromkeys(usable[at] for at in (0, len(usable) // 2, -1))) if usable else []


def samples_of_table(table: InodeTable) -> list[ObjectRef]:
    """Return as many of the objects in `table`; of those in an archive where there are no others."""
    return spread(table, readable_rows(table)) or spread(table, readable_rows(table, in_archive=True))


async def check_readable(objects: RangeReader, refs: Iterable[ObjectRef]) -> ReadError | None:
    """Read a byte of one of `refs`, and return any other failure of that than a refusal.

    Raises:
        AccessError: each of them is denied.
    """
    refusal: AccessError | None = None
    with trio.move_on_after(_PATIENCE_S) as patience:
        for ref in refs:
            try:
                await objects.get(ref, 0, 1)
            except ObjectDeniedError as error:
                if isinstance(error, ObjectArchivedError) and has_readable_bytes(ref):
                    continue  # the listing does not tell of such archives, and others may be in none
                refusal = refusal or AccessError(f"s3://{ref.bucket}/: {error}", hint=error.hint or _HINT)
                continue
            except ReadError as error:
                return error
            return None
    if refusal is not None and not patience.cancelled_caught:
        raise refusal
    return None

"""A complete listing, its progress, and the checks that decide whether it can be shown (clauses N2-N4)."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastfuse.errors import EmptySourceError, SourceError
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.inodes.tree import Refusals
from fastfuse.index.sources.uri import S3Uri

__all__ = [
    "ALLOW_EMPTY_HINT",
    "Listing",
    "ListingProgress",
    "ProgressCallback",
    "accept",
    "partial_name",
    "shown_names",
]

_log = logging.getLogger(__name__)

ALLOW_EMPTY_HINT = "check the prefix, or mount it anyway with --allow-empty"
# The error for a partial name shows this many names that begin with it.
_MAX_CANDIDATES = 5


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
    requests: int
    in_flight: int
    throttled: int
    share: float | None


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

"""A complete listing, and whether it is one that can be shown (clauses N2-N4)."""

import logging
from dataclasses import dataclass

from fastfuse.errors import EmptySourceError, SourceError
from fastfuse.inodes.names import Refusals
from fastfuse.inodes.table import InodeTable
from fastfuse.sources.uri import S3Uri

__all__ = ["ALLOW_EMPTY_HINT", "Listing", "accept"]

_log = logging.getLogger(__name__)

ALLOW_EMPTY_HINT = "check the prefix, or mount it anyway with --allow-empty"


@dataclass(frozen=True, slots=True)
class Listing:
    """A complete listing; there is no other kind."""

    table: InodeTable
    refusals: Refusals
    request_count: int


def accept(source: S3Uri, table: InodeTable, refusals: Refusals, *, strict: bool, allow_empty: bool) -> None:
    """Log which keys of `source` are left out.

    Raises:
        SourceError: with `strict`, if any is.
        EmptySourceError: there is no object to show, unless `allow_empty`.
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

"""Checks with a GET of one byte that the objects of a source may be read, before a listing that may take minutes.

A source may hold objects that are denied one by one, by their tags or by another key of KMS. So a source is refused
only if each of up to three objects is denied. Any other failure is left to the reads, which are tried again.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import trio

from fastfuse.errors import AccessError, ObjectArchivedError, ObjectDeniedError, ReadError
from fastfuse.index.inodes.columns import are_objects
from fastfuse.index.inodes.table import InodeTable
from fastfuse.objects import ARCHIVE_STORAGE_CLASSES, ObjectRef
from fastfuse.s3.base import RangeReader

__all__ = ["check_readable", "samples", "samples_of_table"]

# A service that does not answer within this time is left to the reads, too.
_PATIENCE_S = 5.0
_HINT = "It takes s3:GetObject on the objects, and kms:Decrypt where KMS encrypts them; s3:ListBucket only lists them."


def samples(refs: Sequence[ObjectRef]) -> list[ObjectRef]:
    """Return the first, the middle and the last of `refs` that have bytes and are in no archive."""
    usable = [ref for ref in refs if ref.size_bytes and ref.storage_class not in ARCHIVE_STORAGE_CLASSES]
    return list(dict.fromkeys(usable[at] for at in (0, len(usable) // 2, -1))) if usable else []


def samples_of_table(table: InodeTable) -> list[ObjectRef]:
    """Return `samples` of the objects in `table`."""
    archives = [name in ARCHIVE_STORAGE_CLASSES for name in table.metadata.storage_classes]
    is_usable = are_objects(table.columns["kinds"]) & (table.columns["sizes"] != 0)
    rows = np.flatnonzero(is_usable & ~np.array(archives, bool)[table.columns["storage_classes"]])
    return samples([table.ref(table.inode(int(rows[at]))) for at in (0, len(rows) // 2, -1)]) if len(rows) else []


async def check_readable(objects: RangeReader, refs: Iterable[ObjectRef]) -> None:
    """Read a byte of one of `refs`.

    Raises:
        AccessError: each of them is denied.
    """
    refusal: AccessError | None = None
    with trio.move_on_after(_PATIENCE_S) as patience:
        for ref in refs:
            try:
                await objects.get(ref, 0, 1)
            except ObjectArchivedError:
                continue
            except ObjectDeniedError as error:
                refusal = refusal or AccessError(f"s3://{ref.bucket}/: {error}", hint=error.hint or _HINT)
                continue
            except ReadError:
                pass
            return
    if refusal is not None and not patience.cancelled_caught:
        raise refusal

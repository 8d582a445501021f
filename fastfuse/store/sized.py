"""Two clients for one bucket: what is small is read by one of them, what is large by the other."""

import logging
import sys
from contextlib import suppress

from fastfuse.errors import StoreUnsuitableError
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.store.base import PreparedReader

__all__ = ["SizedRangeReader"]

_log = logging.getLogger(__name__)


class SizedRangeReader:
    """Ranges of up to `most_small_bytes` by `small`, until that is unsuitable, and all others by `large`."""

    def __init__(self, small: PreparedReader, large: PreparedReader, *, most_small_bytes: int | None) -> None:
        """`most_small_bytes` is None where `large` is only for what `small` is unsuitable for."""
        self._small = small
        self._large = large
        self._is_all_small = most_small_bytes is None
        self._most_small_bytes = sys.maxsize if most_small_bytes is None else most_small_bytes
        # Why the other client reads nothing of this bucket.
        self._large_reason: StoreUnsuitableError | None = None

    async def get_range(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        """See `RangeReader.get_range`. Unsuitable as a whole once both clients are."""
        if end - start <= self._most_small_bytes:
            try:
                return await self._small.get_range(ref, start, end)
            except StoreUnsuitableError as reason:
                if reason.whole_server and self._most_small_bytes:
                    _log.info("Reading %r with one client, whatever the size: %s", ref.bucket, reason)
                    self._most_small_bytes = 0
        if self._large_reason is None:
            try:
                return await self._large.get_range(ref, start, end)
            except StoreUnsuitableError as reason:
                if not reason.whole_server:
                    raise
                if self._most_small_bytes and self._large_reason is None:
                    _log.warning("Reading large ranges of %r with the slower client: %s", ref.bucket, reason)
                self._large_reason = reason
        raise StoreUnsuitableError(str(self._large_reason), whole_server=not self._most_small_bytes)

    async def prepare(self) -> None:
        """Do what the first reads would otherwise wait for. Raises as they would."""
        with suppress(StoreUnsuitableError):  # the first read says so
            await self._small.prepare()
            if self._is_all_small:
                return
        with suppress(StoreUnsuitableError):
            await self._large.prepare()

    async def aclose(self) -> None:
        await self._small.aclose()
        await self._large.aclose()

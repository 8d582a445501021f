"""Counts what a reader fetches, by outcome."""

import trio

from fastfuse.errors import (
    BadReplyError,
    DeadlineError,
    ObjectChangedError,
    ObjectDeniedError,
    ReadError,
    UnavailableError,
)
from fastfuse.metrics import Counters
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.store.base import RangeReader

__all__ = ["CountingReader"]

_OUTCOMES: tuple[tuple[type[BaseException], str], ...] = (
    (ObjectChangedError, "changed"),
    (ObjectDeniedError, "denied"),
    (UnavailableError, "unavailable"),
    (DeadlineError, "deadline"),
    (BadReplyError, "bad_reply"),
    (ReadError, "other"),
    (trio.Cancelled, "cancelled"),
)


class CountingReader:
    """A `RangeReader` that adds to ``fastfuse_fetch_requests`` and ``fastfuse_fetched_bytes`` as each GET ends."""

    def __init__(self, reader: RangeReader, counters: Counters) -> None:
        self._reader = reader
        self._counters = counters
        self._ok = counters.slot("fastfuse_fetch_requests", "ok")
        self._bytes = counters.slot("fastfuse_fetched_bytes")

    async def get_range(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        """See `RangeReader.get_range`."""
        try:
            data = await self._reader.get_range(ref, start, end)
        except BaseException as error:
            outcome = next((name for kind, name in _OUTCOMES if isinstance(error, kind)), "other")
            self._counters.add(self._counters.slot("fastfuse_fetch_requests", outcome))
            raise
        self._counters.add(self._ok)
        self._counters.add(self._bytes, len(data))
        return data

    async def aclose(self) -> None:
        await self._reader.aclose()

"""Decompresses one object that comes in chunks. Pure."""

import zlib
from collections.abc import Iterator

from fastfuse.objects import Buffer

__all__ = ["Gunzip"]

# Of input and output at a time: a few bytes can become a thousand times as many.
_STEP_BYTES = 1 << 20
_GZIP_ONLY = zlib.MAX_WBITS | 16


class Gunzip:
    """A gzip file: one or more members, and zeros behind them (RFC 1952, section 2.2). An empty one is empty.

    Each method raises `ValueError` where that is not what comes.
    """

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP_ONLY)
        # Whether a member has begun, and whether one has ended.
        self._is_within = self._is_past_first = False

    def feed(self, chunk: Buffer) -> Iterator[bytes]:
        """What `chunk` decompresses to, a MiB at a time. All of it must be taken before the next chunk."""
        data = memoryview(chunk)
        for start in range(0, len(data), _STEP_BYTES):
            yield from self._decompressed(data[start : start + _STEP_BYTES])

    def finish(self) -> None:
        """There are no more chunks."""
        if self._is_within:
            raise ValueError("the gzip data is cut short")

    def _decompressed(self, data: Buffer) -> Iterator[bytes]:
        while data:
            if not self._is_within and self._is_past_first:
                data = bytes(data).lstrip(b"\0")
                if not data:
                    return
            self._is_within = True
            try:
                piece = self._member.decompress(data, _STEP_BYTES)
            except zlib.error as error:
                raise ValueError(_meaning(error, is_first=not self._is_past_first)) from error
            if piece:
                yield piece
            data = self._member.unconsumed_tail
            if self._member.eof:
                data = self._member.unused_data
                self._member = zlib.decompressobj(_GZIP_ONLY)
                self._is_within, self._is_past_first = False, True


def _meaning(error: zlib.error, *, is_first: bool) -> str:
    if "incorrect header check" in str(error):
        return "it is not gzip data" if is_first else "something that is not gzip data follows the gzip data"
    return f"the gzip data is damaged ({error})"

"""The encodings of a stream: gzip, taken away, and RecordIO as dmlc-core writes it. Pure.

A RecordIO record is ``magic, cflag << 29 | length, data, zeros up to a multiple of four bytes``, numbers as
little-endian uint32. Readers find the magic at multiples of four. A record whose data has the magic there is split: the
magic is left out, and the pieces' ``cflag`` is 1, 2 ... 2, 3 instead of 0
(https://github.com/dmlc/dmlc-core/blob/main/src/recordio.cc).

A reader that refuses pieces (``sagemaker_tensorflow``) meets one in 16 GB of random data.
"""

import struct
import zlib
from collections.abc import Iterator

import numpy as np

from fastfuse.objects import Buffer

__all__ = ["MAX_RECORD_BYTES", "Framer", "Gunzip", "Scan"]

# The input and output of one step: a few bytes can become a thousand times as many.
_STEP_BYTES = 1 << 20
_GZIP_ONLY = zlib.MAX_WBITS | 16


class Gunzip:
    """A gzip file in chunks: members, and zeros behind them (RFC 1952, section 2.2). An empty one is empty.

    Each method raises `ValueError` where the data is anything else.
    """

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP_ONLY)
        # Whether a member has begun, and whether one has ended.
        self._is_within = self._is_past_first = False

    def feed(self, chunk: Buffer) -> Iterator[bytes]:
        """Yield what `chunk` decompresses to, a MiB at a time; take all of it before the next chunk."""
        data = memoryview(chunk)
        for start in range(0, len(data), _STEP_BYTES):
            yield from self._decompressed(data[start : start + _STEP_BYTES])

    def finish(self) -> None:
        """Check that the last member is complete."""
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


_MAGIC = 0xCED7230A
_MAGIC_BYTES = struct.pack("<I", _MAGIC)
_HEADER = struct.Struct("<II")
_FLAG_SHIFT = 29
_WORD_BYTES = 4
# Exclusive: dmlc-core takes no longer one, in however many pieces.
MAX_RECORD_BYTES = 1 << _FLAG_SHIFT


class Scan:
    """Find how long the data of one record is, and where it must be split, from chunks."""

    def __init__(self) -> None:
        self.size_bytes = 0
        # The offsets of the magic, multiples of four.
        self.magics: list[int] = []
        # The beginning of a word whose end comes with the next chunk.
        self._rest = b""

    def feed(self, chunk: Buffer) -> None:
        data = memoryview(chunk)
        if self._rest:
            head = self._rest + data[: _WORD_BYTES - len(self._rest)]
            at = self.size_bytes - len(self._rest)
            self.size_bytes += len(head) - len(self._rest)
            data = data[len(head) - len(self._rest) :]
            self._rest = b"" if len(head) == _WORD_BYTES else head
            if head == _MAGIC_BYTES:
                self.magics.append(at)
        whole = len(data) - len(data) % _WORD_BYTES
        if whole:
            words = np.frombuffer(data[:whole], "<u4")
            self.magics += (np.flatnonzero(words == _MAGIC) * _WORD_BYTES + self.size_bytes).tolist()
        if whole < len(data):
            self._rest = bytes(data[whole:])
        self.size_bytes += len(data)


class Framer:
    """Put the data of one record, which `scan` has seen, into its frame, in any chunks."""

    def __init__(self, scan: Scan) -> None:
        self._size_bytes = scan.size_bytes
        # Where pieces end, and where data is left out: the magic behind each but the last.
        self._ends = [*scan.magics, scan.size_bytes]
        self._at = 0
        self._piece = -1

    def feed(self, chunk: Buffer) -> Iterator[Buffer]:
        """Yield what to write for `chunk`; the header of a record without data comes with `finish`.

        Raises:
            ValueError: there is more data than the scan has seen.
        """
        data = memoryview(chunk)
        while data:
            if self._piece < 0:
                yield self._next_header()
            if self._at < (end := self._ends[self._piece]):
                taken = data[: end - self._at]
                yield taken
            else:
                taken = data[: end + _WORD_BYTES - self._at]
                if self._at + len(taken) == end + _WORD_BYTES:
                    yield self._next_header()
            self._at += len(taken)
            data = data[len(taken) :]

    def finish(self) -> bytes:
        """Return what follows the data: zeros, or nothing.

        Raises:
            ValueError: there was less data, or more, than the scan has seen.
        """
        header = self._next_header() if self._piece < 0 else b""
        if self._at != self._size_bytes:
            raise ValueError(f"a record of {self._size_bytes} bytes became one of {self._at}")
        return header + bytes(-self._size_bytes % _WORD_BYTES)

    def _next_header(self) -> bytes:
        self._piece += 1
        if self._piece == len(self._ends):
            raise ValueError(f"a record of {self._size_bytes} bytes became a longer one")
        start = self._ends[self._piece - 1] + _WORD_BYTES if self._piece else 0
        is_last = self._piece == len(self._ends) - 1
        flag = (3 if is_last else 2) if self._piece else (0 if is_last else 1)
        return _HEADER.pack(_MAGIC, flag << _FLAG_SHIFT | self._ends[self._piece] - start)

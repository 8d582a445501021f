"""The parts of a file that takes several GETs, and the journal of those that are there. Pure.

Layout of a journal, little-endian::

    0   8 bytes   magic "FFPARTS1"
    8   32 bytes  stamp: version and boot
    40  uint64    bytes of the file
    48  uint64    bytes of each part but the last
    56  uint32    CRC-32 of the above
    60  1 byte    for each part: 1 once all of it is written

A part's byte is written after the part, so that whatever a killed process leaves behind, the journal says no more than
what is there.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fastfuse.sagemaker.download.stamps import STAMP_BYTES, Stamp

__all__ = ["Journal", "Part"]

_MAGIC = b"FFPARTS1"
_HEADER = struct.Struct(f"<8s{STAMP_BYTES}sQQ")
_CRC = struct.Struct("<I")
_HEAD_BYTES = _HEADER.size + _CRC.size
_DONE = b"\1"


class Part(NamedTuple):
    """Bytes ``[start, end)`` of the file."""

    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Journal:
    """`done` has a byte for each part, 1 where it is there."""

    stamp: Stamp
    size_bytes: int
    part_bytes: int
    done: bytes

    @classmethod
    def new(cls, stamp: Stamp, size_bytes: int, part_bytes: int) -> "Journal":
        return cls(stamp, size_bytes, part_bytes, bytes(-(-size_bytes // part_bytes)))

    @classmethod
    def parse(cls, data: bytes) -> "Journal | None":
        """None for what is no journal, or not all of one."""
        if len(data) < _HEAD_BYTES:
            return None
        magic, stamp, size_bytes, part_bytes = _HEADER.unpack_from(data)
        (crc,) = _CRC.unpack_from(data, _HEADER.size)
        parsed, done = Stamp.parse(stamp), data[_HEAD_BYTES:]
        if magic != _MAGIC or crc != zlib.crc32(data[: _HEADER.size]) or parsed is None or not part_bytes:
            return None
        return cls(parsed, size_bytes, part_bytes, done) if len(done) == -(-size_bytes // part_bytes) else None

    def __bytes__(self) -> bytes:
        header = _HEADER.pack(_MAGIC, bytes(self.stamp), self.size_bytes, self.part_bytes)
        return header + _CRC.pack(zlib.crc32(header)) + self.done

    def mark(self, part: Part) -> tuple[bytes, int]:
        """What is to be written where once `part` is there."""
        return _DONE, _HEAD_BYTES + part.number

    def part(self, number: int) -> Part:
        start = number * self.part_bytes
        return Part(number, start, min(start + self.part_bytes, self.size_bytes))

    def missing(self) -> Iterator[Part]:
        """What is still to be fetched, in order."""
        return (self.part(number) for number, is_done in enumerate(self.done) if is_done != _DONE[0])

    @property
    def done_bytes(self) -> int:
        return sum(end - start for _, start, end in map(self.part, self._done_numbers()))

    @property
    def least_bytes(self) -> int:
        """What the file has at least, if the journal is right."""
        return max((self.part(number).end for number in self._done_numbers()), default=0)

    def _done_numbers(self) -> Iterator[int]:
        return (number for number, is_done in enumerate(self.done) if is_done == _DONE[0])

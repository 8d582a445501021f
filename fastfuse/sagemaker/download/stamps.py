"""The records on disk about a file: its stamp, and the journal of a file that takes several GETs. Pure.

Layout of a journal, little-endian::

    0   8 bytes   magic "FFPARTS1"
    8   32 bytes  stamp: version and boot
    40  uint64    bytes of the file
    48  uint64    bytes of each part but the last
    56  uint32    CRC-32 of the above
    60  1 byte    for each part: 1 once all of it is written

A part's byte is written after the part, so that the journal never claims more than is there.
"""

import hashlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

from fastfuse.objects import ObjectRef

__all__ = ["STAMP_BYTES", "Journal", "Part", "Stamp", "Trust", "version_of"]

_DIGEST_BYTES = 16
# An inode of 256 bytes has room for this; more would cost each file another block.
STAMP_BYTES = 2 * _DIGEST_BYTES


def version_of(ref: ObjectRef) -> bytes:
    """Return 16 bytes that are equal for equal versions of one object, and for nothing else."""
    fields = (ref.bucket, ref.key, ref.etag, str(ref.size_bytes), str(ref.modified_ns))
    # No key with a path contains NUL (clause N2).
    return hashlib.blake2b("\0".join(fields).encode(), digest_size=_DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Stamp:
    """The version of the object and the boot of the host that wrote the file, 16 bytes each."""

    version: bytes
    boot: bytes

    def __bytes__(self) -> bytes:
        return self.version + self.boot

    @classmethod
    def parse(cls, data: bytes) -> Self | None:
        """Parse a stamp; return None for anything else."""
        return cls(data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]) if len(data) == STAMP_BYTES else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """The files that hold what was written to them: those of this boot, and those unchanged since `settled_ns`.

    `settled_ns` is 0 where nothing ever waited for the disk.
    """

    boot: bytes
    settled_ns: int = 0

    def covers(self, stamp: Stamp, changed_ns: int) -> bool:
        """Return whether a file with `stamp`, last changed at `changed_ns`, holds what was written to it."""
        return stamp.boot == self.boot or changed_ns <= self.settled_ns


_MAGIC = b"FFPARTS1"
_HEADER = struct.Struct(f"<8s{STAMP_BYTES}sQQ")
_CRC = struct.Struct("<I")
_HEAD_BYTES = _HEADER.size + _CRC.size
_DONE = b"\1"


class Part(NamedTuple):
    """The bytes ``[start, end)`` of a file."""

    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Journal:
    """A byte for each part in `done`: 1 where the part is there."""

    stamp: Stamp
    size_bytes: int
    part_bytes: int
    done: bytes

    @classmethod
    def new(cls, stamp: Stamp, size_bytes: int, part_bytes: int) -> "Journal":
        return cls(stamp, size_bytes, part_bytes, bytes(-(-size_bytes // part_bytes)))

    @classmethod
    def parse(cls, data: bytes) -> "Journal | None":
        """Parse a journal; return None for anything else, or a part of one."""
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
        """Return the bytes that mark `part` as there, and their offset."""
        return _DONE, _HEAD_BYTES + part.number

    def part(self, number: int) -> Part:
        start = number * self.part_bytes
        return Part(number, start, min(start + self.part_bytes, self.size_bytes))

    def missing(self) -> Iterator[Part]:
        """Yield the parts still to be fetched, in order."""
        return (self.part(number) for number, is_done in enumerate(self.done) if is_done != _DONE[0])

    @property
    def done_bytes(self) -> int:
        return sum(end - start for _, start, end in map(self.part, self._done_numbers()))

    @property
    def least_bytes(self) -> int:
        """The least size of the file, if the journal is right."""
        return max((self.part(number).end for number in self._done_numbers()), default=0)

    def _done_numbers(self) -> Iterator[int]:
        return (number for number, is_done in enumerate(self.done) if is_done == _DONE[0])

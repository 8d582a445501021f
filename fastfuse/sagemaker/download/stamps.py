"""Which version of which object a file is, and when that is to be believed. Pure."""

import hashlib
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

from fastfuse.objects import ObjectRef

__all__ = ["STAMP_BYTES", "Journal", "Part", "Stamp", "Trust", "md5_of_etag", "version_of"]

_DIGEST_BYTES = 16
# With its name no longer than what an inode of 256 bytes has room for: another block for each file is what more costs.
STAMP_BYTES = 2 * _DIGEST_BYTES
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')


def version_of(ref: ObjectRef) -> bytes:
    """Equal for equal versions of the same object, and for nothing else: 16 bytes."""
    fields = (ref.bucket, ref.key, ref.etag, str(ref.size_bytes), str(ref.modified_ns))
    # Separated by what no key that has a path contains (clause N2).
    return hashlib.blake2b("\0".join(fields).encode(), digest_size=_DIGEST_BYTES).digest()


def md5_of_etag(etag: str) -> str | None:
    """The MD5 that `etag` tells in hexadecimal, if it looks like one; encrypted by KMS, it is none all the same."""
    match = _MD5.fullmatch(etag)
    return match[1] if match else None


@dataclass(frozen=True, slots=True)
class Stamp:
    """`boot` is the boot of the host that wrote the file: 16 bytes, as `version` is."""

    version: bytes
    boot: bytes

    def __bytes__(self) -> bytes:
        return self.version + self.boot

    @classmethod
    def parse(cls, data: bytes) -> Self | None:
        """None for what is no stamp."""
        return cls(data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]) if len(data) == STAMP_BYTES else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What was written in this boot is in the page cache if not on the disk; what changed before `settled_ns` is on it.

    `settled_ns` is 0 where nobody ever waited for the disk.
    """

    boot: bytes
    settled_ns: int = 0

    def covers(self, stamp: Stamp, changed_ns: int) -> bool:
        """Whether a file with `stamp`, whose inode changed last at `changed_ns`, holds what was written to it."""
        return stamp.boot == self.boot or changed_ns <= self.settled_ns


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

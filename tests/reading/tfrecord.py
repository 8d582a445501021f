"""TFRecord files: length, its masked checksum, data, its masked checksum (tensorflow/core/lib/io/record_writer.h)."""

import struct
from collections.abc import Iterator
from typing import BinaryIO

_LENGTH = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_CASTAGNOLI = 0x82F63B78
_MASK_DELTA = 0xA282EAD8


def _table_entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_CASTAGNOLI if byte & 1 else 0)
    return byte


_TABLE = tuple(map(_table_entry, range(256)))


def _crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


def _masked(data: bytes) -> int:
    value = _crc32c(data)
    return ((value >> 15 | value << 17) + _MASK_DELTA) & 0xFFFFFFFF


def read_records(file: BinaryIO) -> Iterator[bytes]:
    """`ValueError` for a checksum that does not hold, or a file that ends in a record."""
    while header := file.read(_LENGTH.size):
        if len(header) < _LENGTH.size:
            raise ValueError("the file ends in a header")
        length, checksum = _LENGTH.unpack(header)
        if checksum != _masked(header[:8]):
            raise ValueError("the length is corrupt")
        record = file.read(length)
        tail = file.read(_CHECKSUM.size)
        if len(record) < length or len(tail) < _CHECKSUM.size:
            raise ValueError("the file ends in a record")
        if _CHECKSUM.unpack(tail) != (_masked(record),):
            raise ValueError("the record is corrupt")
        yield record

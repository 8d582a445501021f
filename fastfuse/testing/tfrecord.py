"""Frames the records of TFRecord files: a length and a payload, each with a masked CRC-32C.

https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
"""

import struct

import google_crc32c

__all__ = ["FRAMING_BYTES", "frame"]

_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8

# The bytes of a record beside its payload.
FRAMING_BYTES = _LENGTH.size + 2 * _CHECKSUM.size


def frame(payload: bytes) -> bytes:
    """Return `payload` as one record."""
    length = _LENGTH.pack(len(payload))
    return b"".join((length, _masked_checksum(length), payload, _masked_checksum(payload)))


def _masked_checksum(data: bytes) -> bytes:
    checksum = google_crc32c.value(data)
    rotated = (checksum >> 15) | (checksum << 17) & 0xFFFFFFFF
    return _CHECKSUM.pack((rotated + _MASK_DELTA) & 0xFFFFFFFF)

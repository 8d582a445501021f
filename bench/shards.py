"""Shards of a data set: TFRecord files of noise, the same in every run."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import numpy as np

# Payloads are slices of one block: they must not compress, and need not be made anew for each record.
_NOISE_BYTES = 16 << 20
# Records of ImageNet have 110 KB on average.
_RECORD_BYTES = (50_000, 170_000)
# https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details: a length and a payload, each with a
# masked CRC-32C.
_LENGTH, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8
_FRAMING_BYTES = _LENGTH.size + 2 * _CHECKSUM.size
_BUFFER_BYTES = 8 << 20


class Shard(NamedTuple):
    """A file by its path below its directory."""

    name: str
    size_bytes: int


def create_shards(directory: Path, count: int, size_bytes: int) -> list[Shard]:
    """Write `count` TFRecord files of `size_bytes` each (one record at least) below `directory`."""
    random = np.random.default_rng(1)
    block = random.bytes(_NOISE_BYTES)
    shards = [Shard(f"shards/train-{number:05d}-of-{count:05d}.tfrecord", size_bytes) for number in range(count)]
    for shard in shards:
        path = directory / shard.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb", buffering=_BUFFER_BYTES) as file:
            file.writelines(_records(random, block, size_bytes))
    return shards


def _records(random: np.random.Generator, block: bytes, left_bytes: int) -> Iterator[bytes]:
    """Yield records of `left_bytes` in all."""
    while left_bytes > 0:
        payload_bytes = int(random.integers(*_RECORD_BYTES))
        if left_bytes < payload_bytes + 2 * _FRAMING_BYTES:
            payload_bytes = max(0, left_bytes - _FRAMING_BYTES)
        start = int(random.integers(_NOISE_BYTES // 2))
        yield frame(block[start : start + payload_bytes])
        left_bytes -= payload_bytes + _FRAMING_BYTES


def frame(payload: bytes) -> bytes:
    """Return `payload` as one record of a TFRecord file."""
    length = _LENGTH.pack(len(payload))
    return b"".join((length, _masked_checksum(length), payload, _masked_checksum(payload)))


def _masked_checksum(data: bytes) -> bytes:
    checksum = google_crc32c.value(data)
    rotated = (checksum >> 15) | (checksum << 17) & 0xFFFFFFFF
    return _CHECKSUM.pack((rotated + _MASK_DELTA) & 0xFFFFFFFF)

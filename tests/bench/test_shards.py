import struct
from pathlib import Path

import pytest

from bench.shards import create_shards, frame
from tests.reading.tfrecord import read_records


@pytest.mark.parametrize("size_bytes", [16, 17, 49_999, 170_016])
def test_a_shard_has_the_size_asked_for_and_consists_of_whole_records(tmp_path: Path, size_bytes: int) -> None:
    [shard] = create_shards(tmp_path, 1, size_bytes)
    assert (tmp_path / shard.name).stat().st_size == shard.size_bytes == size_bytes
    with (tmp_path / shard.name).open("rb") as file:
        assert sum(len(record) + len(frame(b"")) for record in read_records(file)) == size_bytes


def test_a_record_is_its_length_and_payload_each_with_a_masked_checksum() -> None:
    # The payload's CRC-32C is the standard's check value.
    rotated = (0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8
    assert frame(b"123456789")[-4:] == struct.pack("<I", rotated % 2**32)

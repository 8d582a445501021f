import struct
from pathlib import Path

import pytest

from bench.s3server import DirectoryObjects, parse_synthetic
from bench.shards import create_shards, frame
from bench.workloads import WORKLOADS, Scale

SCALE = Scale(shard_bytes=8 << 20, small_files=96, random_reads=40)


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_every_reader_reads_files_that_are_there_within_their_size(name: str, tmp_path: Path) -> None:
    workload = WORKLOADS[name]
    data = workload.data_set(SCALE, tmp_path)
    sizes = dict(data.files)
    tasks = workload.share(data, workload.readers, SCALE)
    assert len(tasks) == workload.readers
    assert all(tasks)
    assert all(0 <= span.start < span.end <= sizes[span.name] for spans in tasks for span in spans)
    made = DirectoryObjects(data.source) if isinstance(data.source, Path) else parse_synthetic(str(data.source))
    stored = {name: found.size_bytes for name in sizes if (found := made.view().lookup(name.encode()))}
    assert stored == sizes


def test_shuffled_files_are_each_read_once_in_another_order(tmp_path: Path) -> None:
    orders = {}
    for name in ("small-16", "small-16-shuffled"):
        data = WORKLOADS[name].data_set(SCALE, tmp_path)
        orders[name] = [span.name for spans in WORKLOADS[name].share(data, 16, SCALE) for span in spans]
    assert orders["small-16"] != orders["small-16-shuffled"]
    assert sorted(orders["small-16"]) == sorted(orders["small-16-shuffled"])


@pytest.mark.parametrize("size_bytes", [16, 17, 49_999, 170_016])
def test_a_shard_has_the_size_asked_for_and_consists_of_whole_records(tmp_path: Path, size_bytes: int) -> None:
    [shard] = create_shards(tmp_path, 1, size_bytes)
    assert (tmp_path / shard.name).stat().st_size == shard.size_bytes == size_bytes
    data = (tmp_path / shard.name).read_bytes()
    at = 0
    while at < size_bytes:
        at += len(frame(b"")) + struct.unpack_from("<Q", data, at)[0]
    assert at == size_bytes


def test_a_record_is_its_length_and_payload_each_with_a_masked_checksum() -> None:
    # The CRC-32C of the length, and that of the payload, which is the standard's check value.
    length, payload = (((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32 for crc in (0x872FCB77, 0xE3069283))
    assert frame(b"123456789") == struct.pack("<QI9sI", 9, length, b"123456789", payload)

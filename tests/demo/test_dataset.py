import struct
from pathlib import Path

import google_crc32c
import pytest

from fastfuse.demo.dataset import create_shards, create_small_files, frame, require_space
from fastfuse.errors import ConfigurationError


def records(data: bytes) -> list[bytes]:
    found = []
    while data:
        (length,) = struct.unpack_from("<Q", data)
        record, data = data[: length + 16], data[length + 16 :]
        found.append(record)
    return found


@pytest.mark.parametrize("size_bytes", [16, 17, 49_999, 170_016, 9_000_000])
def test_a_shard_has_the_size_asked_for_and_consists_of_whole_records(tmp_path: Path, size_bytes: int) -> None:
    (shard,) = create_shards(tmp_path, 1, size_bytes)
    data = (tmp_path / shard.name).read_bytes()
    assert len(data) == shard.size_bytes == size_bytes
    assert all(frame(record[12:-4]) == record for record in records(data))


def test_shards_differ_and_their_checksums_are_those_of_the_files(tmp_path: Path) -> None:
    shards = create_shards(tmp_path, 2, 9_000_000)  # more than is written at once
    assert [shard.checksum for shard in shards] == [
        google_crc32c.value((tmp_path / shard.name).read_bytes()) for shard in shards
    ]
    assert shards[0].checksum != shards[1].checksum


def test_small_files_lie_in_folders_of_a_thousand_with_their_checksums(tmp_path: Path) -> None:
    files = create_small_files(tmp_path, 1001, 10)
    assert {file.name.rpartition("/")[0] for file in files} == {"small/0000", "small/0001"}
    assert all(google_crc32c.value((tmp_path / file.name).read_bytes()) == file.checksum for file in files)
    assert {file.size_bytes for file in files} == {10}


def test_an_empty_small_file_is_made(tmp_path: Path) -> None:
    (file,) = create_small_files(tmp_path, 1, 0)
    assert (tmp_path / file.name).read_bytes() == b""


def test_a_small_file_may_be_larger_than_the_noise_it_is_cut_from(tmp_path: Path) -> None:
    (file,) = create_small_files(tmp_path, 1, 20_000_000)
    assert (tmp_path / file.name).stat().st_size == file.size_bytes == 20_000_000


def test_a_data_set_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the demo's data set takes 1048576 GiB"):
        require_space(tmp_path, 1 << 50)

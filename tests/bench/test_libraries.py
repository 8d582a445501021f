from pathlib import Path

import pytest

from bench import libraries

_SIZES = {"_TENSOR_BYTES": 64 << 10, "_ROWS": 200, "_READS": 50, "_KEYS": 1000, "_MEMBERS": 100, "_MEMBER_BYTES": 100}
_ASKED_BYTES = {
    "_sequential": 30 * 64 << 10,
    "_mapped_ends": 30 * 4096,
    "_mapped_tensor": 64 << 10,
    "_mapped_tensors": 30 * 64 << 10,
    "_mapped_rows": 50 * 8192,
    "_mapped_crops": 50 * 1025 * 2,
    "_read_crops": 50 * 1025 * 2,
    "_zarr_chunks": 100 * 100 * 1024,
    "_zarr_shards": 100 * 100 * 1024,
    "_row_group": 10 * 8192,
    "_biases": 30 * 4096,
    "_one_tensor": 64 << 10,
    "_hdf5": 50 * 8192,
    "_zip": sum(range(100, 200)),
    "_tar": sum(range(100, 200)),
}


def test_each_workload_reads_what_its_name_says_and_the_same_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in _SIZES.items():
        monkeypatch.setattr(libraries, name, value)
    libraries.make(tmp_path)
    for read, library in libraries._WORKLOADS.values():
        if library and not libraries._library(library):
            continue
        pieces = list(read(tmp_path))
        assert list(read(tmp_path)) == pieces
        if read.__name__ in _ASKED_BYTES:
            assert sum(map(len, pieces)) == _ASKED_BYTES[read.__name__]
        else:  # keys
            assert len(set(pieces)) == 50
            assert len({piece[-libraries._VALUE_BYTES :] for piece in pieces}) == 1

from pathlib import Path

import pytest

from bench import libraries
from bench.server import PROFILES

_SIZES = {"_TENSOR_BYTES": 64 << 10, "_ROWS": 200, "_READS": 50, "_KEYS": 1000, "_MEMBERS": 100, "_MEMBER_BYTES": 100}
_ASKED_BYTES = {
    "one reader of a whole shard": 30 * 64 << 10,
    "30 × 4 KiB of a mapped shard": 30 * 4096,
    "10 MiB of a mapped shard": 64 << 10,
    "all 30 × 10 MiB of a mapped shard": 30 * 64 << 10,
    "numpy memmap, 1,000 random rows": 50 * 8192,
    "numpy memmap, 1,000 crops": 50 * 1025 * 2,
    "the same crops by pread": 50 * 1025 * 2,
    "zarr, 100 crops": 100 * 100 * 1024,
    "pyarrow, one of 20 row groups": 10 * 8192,
    "safetensors, 30 biases": 30 * 4096,
    "safetensors, 1 tensor": 64 << 10,
    "h5py": 50 * 8192,
    "torch.load(mmap=True), 1 of 30 tensors": 64 << 10,
    "torch.load(mmap=True), all 30 tensors": 30 * 64 << 10,
    "polars, the first 1,000 rows": 50 * 8 * 8,
    "DuckDB, one of 8 columns": 200 * 1024,
    "lance, 1,000 random rows": 50 * 8192,
    "zipfile, 100 random members": sum(range(100, 200)),
    "tarfile, 100 random members": sum(range(100, 200)),
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in _SIZES.items():
        monkeypatch.setattr(libraries, name, value)


def test_each_workload_reads_what_its_name_says_and_the_same_each_time(tmp_path: Path) -> None:
    libraries.make(tmp_path)
    for name, (read, library, _) in libraries._WORKLOADS.items():
        if library and not libraries._library(library):
            continue
        pieces = list(read(str(tmp_path)))
        assert list(read(str(tmp_path))) == pieces
        asked = [size_bytes for start, size_bytes in _ASKED_BYTES.items() if name.startswith(start)]
        if asked:
            assert sum(map(len, pieces)) == asked[0]
        else:  # keys
            assert len(set(pieces)) == 50
            assert len({piece[-libraries._VALUE_BYTES :] for piece in pieces}) == 1


def test_a_library_with_its_own_reader_of_s3_reads_the_same_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read_here(name: str, place: str, endpoint_url: str) -> tuple[float, int, int]:
        for variable, value in libraries._environment(endpoint_url).items():
            monkeypatch.setenv(variable, value)
        return libraries._read(name, place)

    monkeypatch.setattr(libraries, "_read_apart", read_here)
    monkeypatch.setitem(PROFILES, "s3", PROFILES["fast"])
    libraries._measure(["own"], runs=1, only="")
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[1:]]
    own = {name.removeprefix("| "): cell for name, *_, cell in rows}
    for name, (_, library, own_reader) in libraries._WORKLOADS.items():
        if library and not libraries._library(library):
            assert name not in own
        elif not own_reader:
            assert own[name] == "– |"
        elif not libraries._library(own_reader):
            assert own[name] == f"{own_reader} is not installed |"
        else:
            assert own[name].endswith(f" ({own_reader}) |")
    assert float(own["pyarrow, one of 20 row groups of Parquet"].split(",")[0]) > 0

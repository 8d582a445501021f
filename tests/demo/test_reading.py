from dataclasses import replace
from pathlib import Path

import pytest

from fastfuse.demo.dataset import DataFile, Ledger, create_small_files, read_files


@pytest.fixture
def files(tmp_path: Path) -> list[DataFile]:
    return create_small_files(tmp_path, 20, 3_000_000)


@pytest.mark.parametrize("readers", [1, 3, 50])
def test_every_file_is_read_once_and_matches(tmp_path: Path, files: list[DataFile], readers: int) -> None:
    ledger = Ledger()
    done = read_files(tmp_path, files, readers, ledger)
    assert (done.files, done.size_bytes, done.readers) == (20, 60_000_000, min(readers, 20))
    assert (ledger.checked_reads, ledger.failures) == (20, [])
    assert 0 < done.first_byte_s < done.elapsed_s


def test_a_changed_byte_is_found(tmp_path: Path, files: list[DataFile]) -> None:
    path = tmp_path / files[7].name
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    ledger = Ledger()
    read_files(tmp_path, files, 2, ledger)
    assert [failure.partition(":")[0] for failure in ledger.failures] == [files[7].name]


def test_a_file_that_is_too_short_is_found(tmp_path: Path, files: list[DataFile]) -> None:
    (tmp_path / files[3].name).write_bytes(b"short")
    ledger = Ledger()
    read_files(tmp_path, files, 2, ledger)
    assert ledger.failures == [f"{files[3].name}: 5 bytes read instead of 3,000,000"]


def test_a_file_that_cannot_be_read_is_found_and_the_others_are_read(tmp_path: Path, files: list[DataFile]) -> None:
    (tmp_path / files[0].name).unlink()
    ledger = Ledger()
    read_files(tmp_path, files, 2, ledger)
    assert ledger.failures == [f"{files[0].name}: No such file or directory"]
    assert ledger.checked_reads == 19


def test_without_known_checksums_two_reads_must_agree(tmp_path: Path, files: list[DataFile]) -> None:
    unknown = [replace(file, checksum=None) for file in files]
    ledger = Ledger()
    read_files(tmp_path, unknown, 2, ledger)
    assert ledger.failures == []
    (tmp_path / files[1].name).write_bytes(bytes(3_000_000))
    read_files(tmp_path, unknown, 2, ledger)
    assert [failure.partition(":")[0] for failure in ledger.failures] == [files[1].name]

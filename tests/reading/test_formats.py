"""What training jobs read with: record files and archives."""

import random
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.server import Server
from tests.mounting import mounted
from tests.reading.tfrecord import crc32c, read_records, write_records


@dataclass(frozen=True)
class Formats:
    source: Path
    path: Path
    records: list[bytes]


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Formats]:
    source = tmp_path_factory.mktemp("formats")
    generator = random.Random(11)
    records = [generator.randbytes(generator.choice([0, 1, 100, 4096, 20_000])) for _ in range(300)]
    with (source / "records.tfrecord").open("wb") as file:
        write_records(file, records)
    samples = source / "samples"
    for number in range(60):
        folder = samples / f"class{number % 5}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number} é.bin").write_bytes(generator.randbytes(generator.randrange(100_000)))
    with tarfile.open(source / "samples.tar", "w") as tar:
        tar.add(samples, "samples")
    with zipfile.ZipFile(source / "samples.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for sample in sorted(samples.rglob("*.bin")):
            archive.write(sample, sample.relative_to(source))
    with Server(source) as server, mounted(f"s3://{server.bucket}", server.endpoint_url) as mount:
        yield Formats(source, mount.path, records)


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_checksum_is_that_of_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720, B.4 has more


def test_a_corrupt_record_is_noticed(formats: Formats, tmp_path: Path) -> None:
    data = bytearray((formats.source / "records.tfrecord").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "corrupt").write_bytes(data)
    with (tmp_path / "corrupt").open("rb") as file, pytest.raises(ValueError, match="corrupt"):
        list(read_records(file))


@pytest.mark.parametrize("buffering", [0, 8192, 1 << 20])
def test_records_and_their_checksums_are_read(formats: Formats, buffering: int) -> None:
    """D1"""
    with (formats.path / "records.tfrecord").open("rb", buffering=buffering) as file:
        assert list(read_records(file)) == formats.records


def test_tar_unpacks_an_archive_of_the_mount(formats: Formats, tmp_path: Path) -> None:
    """D1"""
    subprocess.run(["tar", "-xf", formats.path / "samples.tar", "-C", tmp_path], check=True)
    assert tree(tmp_path / "samples") == tree(formats.source / "samples")


def test_tar_packs_the_mount(formats: Formats, tmp_path: Path) -> None:
    """D1"""
    subprocess.run(["tar", "-cf", tmp_path / "all.tar", "-C", formats.path, "."], check=True, stderr=subprocess.PIPE)
    (tmp_path / "all").mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "all.tar", "-C", tmp_path / "all"], check=True)
    assert tree(tmp_path / "all") == tree(formats.source)


def test_members_of_a_tar_are_found_by_seeking(formats: Formats) -> None:
    """D1"""
    with tarfile.open(formats.path / "samples.tar") as packed:
        for member in reversed(packed.getmembers()):
            if member.isfile():
                content = packed.extractfile(member)
                assert content is not None
                assert content.read() == (formats.source / member.name).read_bytes()


def test_a_zip_archive_is_whole_and_its_members_are_right(formats: Formats) -> None:
    """D1"""
    with zipfile.ZipFile(formats.path / "samples.zip") as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        random.Random(5).shuffle(names)
        assert len(names) == 60
        assert all(archive.read(name) == (formats.source / name).read_bytes() for name in names)

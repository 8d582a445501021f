"""What changes while it is found and read is an error, never less than was there."""

import errno
import io
import os
import tarfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from fastfuse.errors import FastfuseError, OutputError
from fastfuse.sagemaker.outputs import sending
from fastfuse.sagemaker.outputs.found import content_of, open_found, walk
from tests.descriptors import open_descriptors


async def test_a_file_that_gets_shorter_meanwhile_is_an_error(tmp_path: Path) -> None:
    path, size_bytes = tmp_path / "weights", 17 << 20
    path.touch()
    os.truncate(path, size_bytes)
    with path.open("rb") as file:
        pieces = content_of(file, size_bytes, path)
        assert len(await anext(pieces)) == 16 << 20
        os.truncate(path, 16 << 20)
        with pytest.raises(OutputError, match="weights' was written to while it was sent"):
            await anext(pieces)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_took_the_place_of_a_file_is_not_an_empty_one(tmp_path: Path, make: object) -> None:
    assert callable(make)
    (tmp_path / "weights").write_bytes(b"weights")
    descriptors = open_descriptors()
    for found in walk(tmp_path, tmp_path):
        (tmp_path / "weights").unlink()
        make(tmp_path / "weights")
        with pytest.raises(OSError, match="it is no regular file"):
            open_found(found)
    assert open_descriptors() == descriptors


def test_a_directory_that_cannot_be_read_hides_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "closed", "z"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    opening = os.open

    def refuse(path: str, *arguments: int, dir_fd: int | None = None) -> int:
        """Refuse root, too."""
        if path == "closed":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return opening(path, *arguments, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse)
    failed: dict[str, FastfuseError] = {}
    found = [one.path for one in walk(tmp_path, tmp_path, fail=failed.setdefault)]
    assert found == ["a", "a/file", "closed", "z", "z/file"]
    assert str(failed["closed"]).endswith("/closed' cannot be read: Permission denied")
    with pytest.raises(OutputError, match="closed' cannot be read"):
        list(walk(tmp_path, tmp_path))


def test_an_archive_of_many_blocks_comes_in_pieces_of_one_gzip_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "usable_cpus", lambda: 1)
    weights = os.urandom(9 << 20) + bytes(3 << 20)
    (tmp_path / "weights").write_bytes(weights)
    pieces: list[bytes] = []
    sending.write_archive(tmp_path, walk(tmp_path, tmp_path), 4 << 20, pieces.append, lambda _: None)
    assert [len(piece) >= 4 << 20 for piece in pieces] == [True, True, False]
    packed = zlib.decompressobj(zlib.MAX_WBITS | 16)
    with tarfile.open(fileobj=io.BytesIO(packed.decompress(b"".join(pieces)))) as archive:
        [file] = map(archive.extractfile, archive)
        assert file is not None
        assert file.read() == weights
    assert packed.eof
    assert not packed.unused_data


@pytest.mark.parametrize(("cpus", "threads"), [(0.5, 1), (2.5, 3), (192, 32)])
def test_an_archive_takes_a_thread_for_each_usable_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: float, threads: int
) -> None:
    pool = Mock(wraps=ThreadPoolExecutor)
    monkeypatch.setattr(sending, "usable_cpus", lambda: cpus)
    monkeypatch.setattr(sending, "ThreadPoolExecutor", pool)
    sending.write_archive(tmp_path, [], 1 << 20, lambda _: None, lambda _: None)
    pool.assert_called_once_with(threads)

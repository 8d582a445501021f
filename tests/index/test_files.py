"""Index files are written and read as a whole."""

import os
import stat
from pathlib import Path

import pytest

from fastfuse.index.atomic_files import copy_into, open_file, replace_file


def memfd(data: bytes) -> int:
    fd = os.memfd_create("test")
    os.write(fd, data)
    return fd


def test_a_file_is_written_for_its_owner_only_and_read_back(tmp_path: Path) -> None:
    data = os.urandom(100_000)
    source, target = memfd(data), memfd(b"")
    replace_file(tmp_path / "index", source)
    assert stat.S_IMODE((tmp_path / "index").stat().st_mode) == 0o600
    with open_file(tmp_path / "index") as file:
        copy_into(target, file)
    assert os.pread(target, len(data) + 1, 0) == data
    os.close(source)
    os.close(target)


def test_who_has_the_old_file_open_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "index"
    path.write_bytes(b"old")
    fd = memfd(b"new")
    with path.open("rb") as held:
        replace_file(path, fd)
        assert held.read() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["index"]
    os.close(fd)


def test_what_cannot_be_put_in_place_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    fd = memfd(b"new")
    with pytest.raises(OSError, match="directory"):
        replace_file(tmp_path / "index", fd)
    assert os.listdir(tmp_path) == ["index"]
    os.close(fd)


@pytest.mark.parametrize("kind", ["directory", "fifo"])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "odd"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(OSError, match=r"regular file|directory"):
        open_file(path)

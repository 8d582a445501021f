"""Directories below a base directory: made, opened, and never through a link that somebody put there."""

import errno
import os
from pathlib import Path

import pytest

from fastfuse.sagemaker.files import open_directory, path_of


def test_what_is_missing_is_made_and_what_is_there_is_opened(tmp_path: Path) -> None:
    base = tmp_path / "base"
    for _ in range(2):
        fd = open_directory(base / "a/b", base)
        assert os.path.samestat(os.fstat(fd), (base / "a/b").stat())
        os.close(fd)


def test_the_path_of_a_descriptor_leads_to_the_directory_under_any_name(tmp_path: Path) -> None:
    fd = open_directory(tmp_path / "a", tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    (path_of(fd) / "file").write_text("x")
    os.close(fd)
    assert (tmp_path / "b/file").read_text() == "x"


@pytest.mark.parametrize("place", ["input", "input/data", "input/data/train"])
@pytest.mark.parametrize("is_there", [True, False], ids=["to a directory", "to nothing"])
def test_a_link_below_the_base_is_not_followed(tmp_path: Path, place: str, is_there: bool) -> None:
    base, elsewhere = tmp_path / "base", tmp_path / "elsewhere"
    (base / place).parent.mkdir(parents=True)
    if is_there:
        elsewhere.mkdir()
    (base / place).symlink_to(elsewhere)
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=f"{base / place} is a symbolic link, and none below {base} is followed"):
        open_directory(base / "input/data/train", base)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert not is_there or not any(elsewhere.iterdir())


def test_a_base_that_is_a_link_is_followed_because_its_user_named_it(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "base").symlink_to(tmp_path / "disk")
    os.close(open_directory(tmp_path / "base/input", tmp_path / "base"))
    assert (tmp_path / "disk/input").is_dir()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "input").write_text("")
    with pytest.raises(OSError, match="Not a directory") as caught:
        open_directory(tmp_path / "input/data", tmp_path)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOTDIR, str(tmp_path / "input"))

"""Directories that cannot be a channel, and what is said of them."""

from pathlib import Path

import pytest

from fastfuse.errors import ConfigurationError, EmptySourceError, SourceError
from fastfuse.filesystem.mountpoint import mount_holding
from fastfuse.sagemaker.description.channel import LocalDirectory
from fastfuse.sagemaker.local_files import Found, find_directory
from tests.sagemaker.local.conftest import mounted_tmpfs, write_files

ID = "fs-0123456789abcdef0"
PLACE = Path("/nowhere/input/data/train")


def found(path: object, mounted_at: object = "", place: Path = PLACE, *, allow_empty: bool = False) -> Found:
    file_system = ID if mounted_at else ""
    source = LocalDirectory(path=str(path), file_system=file_system, mounted_at=str(mounted_at))
    return find_directory(source, place, allow_empty=allow_empty)


def test_a_directory_is_found_behind_links(tmp_path: Path) -> None:
    directory = write_files(tmp_path / "data")
    (tmp_path / "link").symlink_to("data/b")
    assert found(tmp_path / "link/") == Found(directory / "b", directory / "b")


def test_what_is_no_directory_to_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=r"/missing' cannot be used: '.*/missing': No such file or directory"):
        found(tmp_path / "missing")
    with pytest.raises(SourceError, match=r"/file' cannot be used: '.*/file': Not a directory"):
        found(tmp_path / "file")
    with pytest.raises(EmptySourceError, match="/empty' is empty") as refused:
        found(tmp_path / "empty")
    assert "is its file system mounted?" in refused.value.hint
    assert found(tmp_path / "empty", allow_empty=True).path == tmp_path / "empty"


@pytest.mark.parametrize("directory", ["", "ml", "ml/input/data/train"])
def test_a_directory_that_holds_the_channels_place_is_refused(tmp_path: Path, directory: str) -> None:
    write_files(tmp_path / "ml/input/data/train")
    (tmp_path / "link").symlink_to("ml/input/data")
    with pytest.raises(ConfigurationError, match="where the channel belongs"):
        found(tmp_path / directory, place=tmp_path / "link/train")
    assert found(tmp_path / "ml/input/data/train", place=tmp_path / "link/other").path.name == "train"


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("fs-1.efs.eu-west-1.amazonaws.com:/", "/data/train"),
        ("10.0.0.1@tcp:10.0.0.2@tcp:/mountname", "/mountname/data/train"),
        ("10.0.0.1@tcp:/mountname", "/data/train/"),
        ("10.0.0.1@tcp:/data", "/data/data/train"),
        ("/dev/nvme1n1", "/data/train"),
    ],
)
def test_a_directory_path_begins_at_the_root_of_the_file_system(tmp_path: Path, source: str, path: str) -> None:
    """What an NFS or Lustre mount of a folder shows begins below that root."""
    with mounted_tmpfs(tmp_path / "fsx", source) as fsx:
        write_files(fsx / "data/train")
        assert found(path, fsx) == Found(fsx / "data/train", fsx)


def test_no_link_leads_out_of_a_file_system(tmp_path: Path) -> None:
    outside = write_files(tmp_path / "outside")
    with mounted_tmpfs(tmp_path / "efs") as efs:
        write_files(efs / "data")
        (efs / "in").symlink_to("data")
        (efs / "out").symlink_to("../outside")
        assert found("/in", efs).path == efs / "data"
        for path in ("/out", "/out/b"):
            with pytest.raises(SourceError, match=f"'{efs}{path}' is a link to '{outside}.*outside of the file system"):
                found(path, efs)


def test_a_file_system_that_is_not_mounted_is_refused_whatever_lies_there() -> None:
    root = next(path for path in Path("/usr/share").iterdir() if mount_holding(path).path == Path("/"))
    with pytest.raises(SourceError, match="nothing is mounted at") as refused:
        found("/", root)
    assert ID in str(refused.value)

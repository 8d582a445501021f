"""Channels that are directories: where they are found, what they hold, and what they cannot be."""

import os
from pathlib import Path

import pytest

from fastfuse.errors import (
    ConfigurationError,
    EmptySourceError,
    ObjectChangedError,
    ReadError,
    SourceError,
    UnavailableError,
)
from fastfuse.filesystem.mounting.mountpoint import mount_holding
from fastfuse.index.inodes.table import InodeTable
from fastfuse.metrics import Counters
from fastfuse.objects import ObjectRef
from fastfuse.s3.buffers import PartBuffers
from fastfuse.sagemaker.description.channel import InputMode, LocalDirectory, TrainingJob
from fastfuse.sagemaker.description.job import channels_job, located
from fastfuse.sagemaker.local_files import FileReader, Found, find_directory, list_files
from fastfuse.sagemaker.pipe.content import source_order
from tests.mounting import tmpfs
from tests.sagemaker.jobs import CHANNEL, job_of, request, with_field
from tests.sagemaker.local.conftest import FILES, write_files
from tests.tables import check_table

ID = "fs-0123456789abcdef0"


def described(access: str = "ro") -> TrainingJob:
    source = {"FileSystemId": ID, "FileSystemAccessMode": access, "FileSystemType": "EFS", "DirectoryPath": "/train"}
    return job_of(with_field(request(), (*CHANNEL, "DataSource"), {"FileSystemDataSource": source}))


def test_a_file_system_is_where_the_option_says() -> None:
    [channel] = located(described(access="rw"), [f"{ID}=/mnt/a=b", "fs-00000000=/mnt/c", f"{ID}=/mnt/a=b"]).channels
    expected = LocalDirectory(path="/train", file_system=ID, mounted_at="/mnt/a=b", is_writable=True)
    assert channel.source == expected
    assert str(channel.source) == f"{ID}:/train"
    assert channel.input_mode is InputMode.FILE
    assert channel.is_put_in_place


def test_channels_elsewhere_need_no_file_system() -> None:
    job = channels_job(["a=s3://bucket/a", "b=/data/b,mode=Pipe,distribution=sharded", "c=file:///data/c"])
    assert located(job, []) == job
    _, pipe, mounted = job.channels
    assert pipe.source == LocalDirectory(path="/data/b")
    assert (pipe.is_sharded, pipe.is_put_in_place, mounted.is_put_in_place) == (True, False, True)
    assert str(mounted.source) == "file:///data/c"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], f"channel train lies in the file system {ID}, and nothing says where that is mounted"),
        (["fs-00000000=/mnt"], f"channel train lies in the file system {ID}"),
        ([ID], "does not say where a file system is mounted"),
        ([f"{ID}=mnt"], "does not say where a file system is mounted"),
        (["=/mnt"], "does not say where a file system is mounted"),
        ([f"{ID}=/a", f"{ID}=/b"], f"--file-system {ID} is given with /a and with /b"),
    ],
)
def test_an_option_that_helps_nobody_is_refused(options: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        located(described(), options)
    assert message in str(refused.value)
    assert refused.value.hint


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
        ("10.0.0.1@tcp:/data", "//data/data/train"),
        ("/dev/nvme1n1", "/data/train"),
    ],
)
def test_a_directory_path_begins_at_the_root_of_the_file_system(tmp_path: Path, source: str, path: str) -> None:
    """What an NFS or Lustre mount of a folder shows begins below that root."""
    with tmpfs(tmp_path / "fsx", source=source) as fsx:
        write_files(fsx / "data/train")
        assert found(path, fsx) == Found(fsx / "data/train", fsx)


def test_no_link_leads_out_of_a_file_system(tmp_path: Path) -> None:
    outside = write_files(tmp_path / "outside")
    with tmpfs(tmp_path / "efs") as efs:
        write_files(efs / "data")
        (efs / "in").symlink_to("data")
        (efs / "out").symlink_to("../outside")
        assert found("/in", efs).path == efs / "data"
        for path in ("/out", "/out/b"):
            with pytest.raises(SourceError, match=f"'{efs}{path}' is a link to '{outside}.*outside of the file system"):
                found(path, efs)


def test_a_file_system_that_is_not_mounted_is_refused_whatever_lies_there() -> None:
    root = next(path for path in Path("/usr/share").iterdir() if mount_holding(path) == mount_holding(Path("/")))
    with pytest.raises(SourceError, match="nothing is mounted at") as refused:
        found("/", root)
    assert ID in str(refused.value)


def listed(directory: Path, root: Path | None = None) -> InodeTable:
    return list_files(Found(directory, root or directory), None, allow_empty=False)


def refs(table: InodeTable) -> list[ObjectRef]:
    return [table.ref(int(inode)) for inode in source_order(table)]


def test_files_come_in_the_order_of_keys(tmp_path: Path) -> None:
    table = listed(write_files(tmp_path))
    assert [(ref.bucket, ref.key) for ref in refs(table)] == [(str(tmp_path), name) for name in FILES]
    assert [ref.size_bytes for ref in refs(table)] == [len(content) for content in FILES.values()]
    check_table(table)


def test_a_link_to_a_file_is_taken_unless_it_leads_out(tmp_path: Path) -> None:
    directory = write_files(tmp_path / "fs/data", {"a": b"a"})
    write_files(tmp_path, {"fs/blobs/b": b"bb", "secret": b""})
    (directory / "b").symlink_to("../blobs/b")
    assert [ref.size_bytes for ref in refs(listed(directory, root=tmp_path / "fs"))] == [1, 2]
    with pytest.raises(SourceError, match=r"/data/b' is a link to '.*/blobs/b', outside of"):
        listed(directory)
    (directory / "c").symlink_to(tmp_path / "secret")
    with pytest.raises(SourceError, match=r"/data/c' is a link to '.*/secret', outside of"):
        listed(directory, root=tmp_path / "fs")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    directory = write_files(tmp_path / "data", {"a/b": b""})
    (directory / "a/link").symlink_to(".")
    with pytest.raises(SourceError, match="a/link' is neither a file nor a directory, nor a link to a file"):
        listed(directory)
    (directory / "a/link").unlink()
    os.mkfifo(directory / "fifo")
    with pytest.raises(SourceError, match="fifo' is neither"):
        listed(directory)
    (directory / "fifo").unlink()
    (directory / "dangling").symlink_to("nothing")
    with pytest.raises(SourceError, match="dangling' cannot be read: No such file"):
        listed(directory)
    (directory / "dangling").unlink()
    os.close(os.open(os.fsencode(directory) + b"/\xff", os.O_CREAT))
    with pytest.raises(SourceError, match=r"'\\udcff' in .* cannot be taken"):
        listed(directory)


def test_a_directory_without_a_file_is_empty(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with pytest.raises(EmptySourceError, match="no file is below"):
        listed(tmp_path)
    assert len(list_files(Found(tmp_path, tmp_path), None, allow_empty=True)) == 1


def changed(path: Path) -> None:
    os.utime(path, ns=(0, 0))


def shorter(path: Path) -> None:
    path.write_bytes(b"")


def replaced_by_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def looping(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("happens", "error"),
    [
        (changed, ObjectChangedError),
        (shorter, ObjectChangedError),
        (Path.unlink, ObjectChangedError),
        (replaced_by_a_directory, ObjectChangedError),
        (looping, UnavailableError),
    ],
)
async def test_a_file_that_is_another_one_is_not_read(tmp_path: Path, happens: object, error: type[ReadError]) -> None:
    directory = write_files(tmp_path / "data", {"a": b"0123456789"})
    [ref] = refs(listed(directory))
    reader = FileReader(PartBuffers(part_bytes=1 << 20, limit_bytes=1 << 24), Counters())
    assert bytes(await reader.get(ref, 2, 5)) == b"234"
    assert callable(happens)
    happens(directory / "a")
    with pytest.raises(error, match="data/a'"):
        await reader.get(ref, 0, 10)
    await reader.aclose()


async def test_a_file_that_is_written_to_while_it_is_read_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_files(tmp_path / "data", {"a": b"0123456789"})
    [ref] = refs(listed(directory))
    preadv = os.preadv

    def interrupted(fd: int, buffers: list[memoryview], offset: int) -> int:
        count = preadv(fd, [buffers[0][:5]], offset)
        if not offset:
            (directory / "a").write_bytes(b"abcdefghij")
            os.utime(directory / "a", ns=(0, ref.modified_ns + 1))
        return count

    monkeypatch.setattr(os, "preadv", interrupted)
    reader = FileReader(PartBuffers(part_bytes=1 << 20, limit_bytes=1 << 24), Counters())
    with pytest.raises(ObjectChangedError, match="data/a' has changed"):
        await reader.get(ref, 0, 10)
    await reader.aclose()

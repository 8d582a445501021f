"""The files of a directory as a table: their order, their shards, and what cannot be taken."""

import os
from pathlib import Path

import pytest

from fastfuse.errors import EmptySourceError, ObjectChangedError, ReadError, SourceError, UnavailableError
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.sources.shard import Shard
from fastfuse.objects import ObjectRef
from fastfuse.s3.buffers import PartBuffers
from fastfuse.sagemaker.local_files import FileReader, Found, list_files
from fastfuse.sagemaker.pipe.content import source_order
from tests.sagemaker.local.conftest import FILES, write_files
from tests.tables import check_table


def listed(directory: Path, shard: Shard | None = None, root: Path | None = None) -> InodeTable:
    return list_files(Found(directory, root or directory), shard, allow_empty=False)


def refs(table: InodeTable) -> list[ObjectRef]:
    return [table.ref(int(inode)) for inode in source_order(table)]


def test_files_come_in_the_order_of_keys(tmp_path: Path) -> None:
    table = listed(write_files(tmp_path))
    assert [(ref.bucket, ref.key) for ref in refs(table)] == [(str(tmp_path), name) for name in FILES]
    assert [ref.size_bytes for ref in refs(table)] == [len(content) for content in FILES.values()]
    check_table(table)


@pytest.mark.parametrize("by_bytes", [False, True])
@pytest.mark.parametrize("count", [1, 3, 9])
def test_the_shares_of_all_hosts_are_the_directory(tmp_path: Path, count: int, *, by_bytes: bool) -> None:
    write_files(tmp_path, {f"{number % 4}/{number}": bytes(number) for number in range(20)})
    shares = [refs(listed(tmp_path, Shard(index=index, count=count, by_bytes=by_bytes))) for index in range(count)]
    assert sorted(ref.key for share in shares for ref in share) == sorted(ref.key for ref in refs(listed(tmp_path)))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1 or by_bytes


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
    reader = FileReader(PartBuffers(part_bytes=1 << 20, limit_bytes=1 << 24))
    assert bytes(await reader.get(ref, 2, 5)) == b"234"
    assert callable(happens)
    happens(directory / "a")
    with pytest.raises(error, match="data/a'"):
        await reader.get(ref, 0, 10)
    await reader.aclose()

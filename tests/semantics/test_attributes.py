"""Clauses A1 to A3 and L6: what `stat`, `statfs` and `getxattr` tell."""

import ctypes
import errno
import os
import stat
from collections.abc import Iterator

import pytest

from bench.s3server import MemoryObjects
from tests.semantics.places import BUCKET, Place, place

OLD_S, NEW_S = 1_000_000_000, 1_600_000_000
SIZES = {"zero": 0, "one": 1, "sector": 512, "over": 513, "folder/big": 100_000}
# What `os.stat` and everything built on it reads with: see `fastfuse.filesystem.serving.operations`.
BLOCK_BYTES = 128 * 1024


def objects() -> MemoryObjects:
    held = MemoryObjects()
    for name, size in SIZES.items():
        held.put(f"data/{name}", b"x" * size, modified_s=OLD_S)
    held.put("data/folder/cold", b"x", modified_s=NEW_S, storage_class="STANDARD_IA", etag='"not-an-md5"')
    return held


@pytest.fixture(scope="module")
def here() -> Iterator[Place]:
    with place(objects(), uri=f"s3://{BUCKET}/data/") as place_:
        yield place_


@pytest.mark.parametrize("name", SIZES)
def test_a_file_has_the_attributes_of_its_object(here: Place, name: str) -> None:
    """A1"""
    status = os.stat(here.path / name)
    assert stat.filemode(status.st_mode) == "-r--r--r--"
    assert (status.st_uid, status.st_gid) == (os.getuid(), os.getgid())
    assert status.st_nlink == 1
    assert status.st_size == SIZES[name]
    assert status.st_blocks == -(-SIZES[name] // 512)
    assert status.st_blksize == BLOCK_BYTES
    assert status.st_mtime_ns == OLD_S * 10**9


def test_a_directory_has_the_time_of_its_newest_object(here: Place) -> None:
    """A1"""
    for path in (here.path, here.path / "folder"):
        status = os.stat(path)
        assert stat.filemode(status.st_mode) == "dr-xr-xr-x"
        assert (status.st_uid, status.st_gid) == (os.getuid(), os.getgid())
        assert status.st_mtime_ns == NEW_S * 10**9


def test_umask_and_owner_are_what_the_options_say() -> None:
    """A1"""
    with place({"folder/file": b"x"}, "--umask", "027", "--uid", "1234", "--gid", "5678") as other:
        for path, mode in ((other.path, "dr-xr-x---"), (other.path / "folder" / "file", "-r--r-----")):
            status = os.stat(path)
            assert stat.filemode(status.st_mode) == mode
            assert (status.st_uid, status.st_gid) == (1234, 5678)


def test_statfs_tells_the_bytes_and_files_of_the_table_and_nothing_free(here: Place) -> None:
    """A2"""
    told = os.statvfs(here.path)
    assert told.f_blocks == -(-(sum(SIZES.values()) + 1) // told.f_frsize)
    assert told.f_files == len(SIZES) + 1 + 2  # the files, the root and the folder
    assert (told.f_bfree, told.f_bavail, told.f_ffree, told.f_favail) == (0, 0, 0, 0)
    assert told.f_namemax == 255
    assert told.f_flag & os.ST_RDONLY


def test_extended_attributes_name_the_object_or_the_prefix(here: Place) -> None:
    """A3"""
    of_object = {"key": b"data/folder/cold", "etag": b'"not-an-md5"', "storage_class": b"STANDARD_IA"}
    for name, told in {"folder/cold": of_object, "folder": {"key": b"data/folder/"}}.items():
        path = here.path / name
        found = {attribute: os.getxattr(path, attribute) for attribute in os.listxattr(path)}
        assert found == {f"user.s3.{short}": value for short, value in {"bucket": b"bucket", **told}.items()}
    stored = here.objects.view().lookup(b"data/one")
    assert stored is not None
    assert os.getxattr(here.path / "one", "user.s3.etag").decode() == stored.etag


@pytest.mark.parametrize("name", ["user.s3.nothing", "user.other", "security.capability", "system.posix_acl_access"])
def test_an_attribute_that_is_not_there_is_no_data(here: Place, name: str) -> None:
    """A3"""
    with pytest.raises(OSError, match=r"No data|not supported") as caught:
        os.getxattr(here.path / "one", name)
    assert caught.value.errno in (errno.ENODATA, errno.ENOTSUP)


def test_a_buffer_that_is_too_small_for_an_attribute_is_refused(here: Place) -> None:
    """A3"""
    # Python asks for the size first; `getfattr` and `cp --preserve=xattr` do, too.
    libc = ctypes.CDLL(None, use_errno=True)
    path = os.fsencode(here.path / "one")
    assert libc.getxattr(path, b"user.s3.bucket", None, 0) == 6
    assert libc.getxattr(path, b"user.s3.bucket", ctypes.create_string_buffer(5), 5) == -1
    assert ctypes.get_errno() == errno.ERANGE

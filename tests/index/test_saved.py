"""Saved indexes: written as a whole, checked when they are read back, and used for their own source only."""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fastfuse.errors import ConfigurationError
from fastfuse.index.inodes.tree import Refusals
from fastfuse.index.origin import KEY_NAME_PREFIX, SourceKind
from fastfuse.index.saved import copy_index, load_index, store_index, verify_index
from fastfuse.index.snapshot import Snapshot
from fastfuse.index.sources.uri import S3Uri
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from tests.index.indexes import index_bytes, index_of, memory_file, table_of

SOURCE = S3Uri("bucket", "")


@pytest.fixture
def fd() -> Iterator[int]:
    with memory_file() as fd:
        yield fd


def load(path: Path, source: S3Uri, fd: int) -> Snapshot:
    copy_index(path, fd)
    return load_index(path, S3Session(ConnectionConfig()), source, fd)


def stored(path: Path, source: str) -> Path:
    with memory_file(index_bytes(index_of({"a": 1}, source=source))) as fd:
        store_index(path, ConnectionConfig(), fd)
    return path


@pytest.mark.parametrize("source", ["s3://bucket/", "s3://bucket/a"])
def test_an_index_of_a_bucket_or_of_one_object_is_read_back(tmp_path: Path, fd: int, source: str) -> None:
    path = stored(tmp_path / "x.index", source)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    snapshot = load(path, S3Uri.parse(source), fd)
    assert (snapshot.source, snapshot.table.key(2)) == (source, "a")


def test_an_index_that_holds_keys_of_another_bucket_is_refused(tmp_path: Path, fd: int) -> None:
    path = stored(tmp_path / "x.index", "s3://other/")
    told = r"x\.index: it says .* of s3://other/ and holds keys of s3://bucket/$"
    with pytest.raises(ConfigurationError, match=told):
        load(path, S3Uri("other", ""), fd)


def test_a_reader_that_has_the_replaced_file_open_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "index"
    path.write_bytes(b"old")
    with path.open("rb") as held:
        new = stored(path, "s3://bucket/").read_bytes()
        assert held.read() == b"old"
    assert new != b"old"
    assert os.listdir(tmp_path) == ["index"]


def test_an_index_that_cannot_be_put_in_place_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    with pytest.raises(ConfigurationError, match="index cannot be written: Is a directory"):
        stored(tmp_path / "index", "s3://bucket/")
    assert os.listdir(tmp_path) == ["index"]


def test_a_file_that_is_too_large_for_an_index_is_refused_before_it_is_read(tmp_path: Path, fd: int) -> None:
    with (tmp_path / "large").open("wb") as file:
        os.truncate(file.fileno(), 1 << 40)
    with pytest.raises(ConfigurationError, match="large has 1024 GiB, more than the 64 GiB of any index"):
        load(tmp_path / "large", S3Uri("bucket", ""), fd)
    assert os.fstat(fd).st_size == 0


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_directory_or_a_fifo_is_refused_without_waiting_for_it(
    tmp_path: Path, fd: int, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "odd")
    with pytest.raises(ConfigurationError, match="odd cannot be read"):
        load(tmp_path / "odd", SOURCE, fd)


def test_a_file_that_this_user_makes_may_be_missing(tmp_path: Path, fd: int) -> None:
    assert not copy_index(tmp_path / "x.index", fd, is_own=True)
    assert not os.fstat(fd).st_size
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        copy_index(tmp_path / "x.index", fd)


@pytest.mark.parametrize(("mode", "uid"), [(0o600, 54321), (0o620, 0), (0o602, 0)])
def test_a_file_that_others_could_have_written_is_not_taken_for_one_that_this_user_makes(
    tmp_path: Path, fd: int, mode: int, uid: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = stored(tmp_path / "x.index", "s3://bucket/")
    path.chmod(mode)
    if uid and os.geteuid():
        pytest.skip("only root gives files away")
    os.chown(path, uid or os.geteuid(), -1)
    assert not copy_index(path, fd, is_own=True)
    assert f"the index {path} is made anew: it is of user {uid} with mode {mode:o}, so others may" in caplog.text
    assert copy_index(path, fd)


def index(source: str, bucket: str, prefix: str, *names: str, view: str = "") -> Snapshot:
    table = table_of(names, bucket=bucket, prefix=prefix)
    return Snapshot(source=source, listed_at_ns=17, table=table, refusals=Refusals(), view=view)


def verified(snapshot: Snapshot, asked: str, view: str = "") -> None:
    with memory_file(index_bytes(snapshot)) as fd:
        verify_index(fd, S3Uri.parse(asked), {view})


@pytest.mark.parametrize(
    ("snapshot", "asked"),
    [
        (index("s3://b/", "b", "", "x", "y/z"), "s3://b"),
        (index("s3://b/a", "b", "a/", "x", "y/z"), "s3://b/a"),
        (index("s3://b/a", "b", "a/", "x"), "s3://b/a/"),
        (index("s3://b/a/", "b", "a/", "x"), "s3://b/a"),
        (index("s3://b/a", "b", "", "a"), "s3://b/a"),
        (index("s3://b/a/x", "b", "a/", "x"), "s3://b/a/x"),
        (index("s3://b/a/x", "b", "a/x/"), "s3://b/a/x"),
        (index("s3://b/a//", "b", "a//", "x"), "s3://b/a//"),
        (index("s3://b/a//", "b", "a/", "x"), "s3://b/a//"),  # an inventory's
        (index("s3://b//", "b", "/", "x"), "s3://b//"),
    ],
)
def test_an_index_of_the_folder_or_the_object_is_one_of_the_source(snapshot: Snapshot, asked: str) -> None:
    verified(snapshot, asked)


@pytest.mark.parametrize(
    ("snapshot", "asked", "message"),
    [
        (index("s3://b/a", "b", "a/", "x"), "s3://b/c", "it is an index of s3://b/a, not of s3://b/c"),
        (index("s3://b/a", "other", "a/", "x"), "s3://b/a", "holds keys of s3://other/a/"),
        (index("s3://b/a", "b", "c/", "x"), "s3://b/a", "holds keys of s3://b/c/"),
        (index("s3://b/a", "b", "", "a", "c"), "s3://b/a", "holds keys of s3://b/"),
        (index("s3://b/a/x", "b", "a/", "y"), "s3://b/a/x", "holds keys of s3://b/a/"),
        (index("s3://b/a", "b", "", "a"), "s3://b/a/", "holds keys of s3://b/"),
        (index("s3://b/", "b", "/", "a"), "s3://b/", "holds keys of s3://b//"),
        (index("s3://b/", "b", "a/", "x"), "s3://b/", "holds keys of s3://b/a/"),
    ],
)
def test_an_index_of_anything_else_is_refused(snapshot: Snapshot, asked: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{message}$"):
        verified(snapshot, asked)


@pytest.mark.parametrize("view", ["", KEY_NAME_PREFIX])
def test_only_an_index_of_a_manifest_has_contents_of_its_own(view: str) -> None:
    table = table_of([], bucket="b", prefix="a/", made={b"made": b"content"})
    made = Snapshot(source="s3://b/a/", listed_at_ns=17, table=table, refusals=Refusals(), view=view)
    with pytest.raises(ConfigurationError, match="has contents of files of its own"):
        verified(made, "s3://b/a/", view)
    manifest = str(SourceKind.AUGMENTED_MANIFEST)
    verified(replace(made, view=manifest), "s3://b/a/", manifest)


@pytest.mark.parametrize(
    ("prefix", "names"), [("p/", ["a", "a.b", "a-1/x"]), ("p/", ["a/x", "a-1"]), ("p/a/", ["x", "y/z"])]
)
def test_an_index_of_a_key_name_prefix_holds_every_key_that_begins_with_it(prefix: str, names: list[str]) -> None:
    snapshot = index("s3://b/p/a", "b", prefix, *names, view=KEY_NAME_PREFIX)
    verified(snapshot, "s3://b/p/a", KEY_NAME_PREFIX)
    with pytest.raises(ConfigurationError, match="as key name prefix, not as a whole prefix"):
        verified(snapshot, "s3://b/p/a")


@pytest.mark.parametrize(("prefix", "names"), [("p/", ["a", "b"]), ("", ["p/a"]), ("q/", ["a"])])
def test_an_index_with_a_key_that_does_not_begin_with_the_prefix_is_refused(prefix: str, names: list[str]) -> None:
    snapshot = index("s3://b/p/a", "b", prefix, *names, view=KEY_NAME_PREFIX)
    with pytest.raises(ConfigurationError, match="holds keys of"):
        verified(snapshot, "s3://b/p/a", KEY_NAME_PREFIX)

"""Clauses N1 to N6: which keys are which paths."""

import os
import shlex
import subprocess
from collections.abc import Iterator

import pytest

from fastfuse.testing import LoopbackServer, MemoryObjects, ServerConfig
from tests.mounting import mounted
from tests.semantics.directories import Directory
from tests.semantics.places import BUCKET, Place, place, refused

# In ASCII order of their meaning, not of their bytes: what has to be escaped in XML, in a URL, in a log line or not at
# all, and what a path may be mistaken for.
HOSTILE_NAMES = (
    *("new\nline", "sp ace", " leading", "trailing ", "per%cent", "per%20cent", "plus+", "que?ry", "ha#sh", "🎉 emoji"),
    *("am&p", "am&amp;p", "<lt>", "'single'", '"double"', "back\\slash", "...", "..x", ".hidden", "-rf", "~", "*"),
    *("tab\t", "return\r", "bell\a", "esc\x1b[2J", "del\x7f", "\x01", "nel\x85", "nbsp\xa0", "zero\u200bwidth", "$x"),
    *("e\u0301", "\u00e9", "a" * 255, "é" * 127 + "x", "semi;colon", "co:lon", "eq=ual", "com,ma", "pi|pe", "{brace}"),
    *("]]>", "<!--", "&#10;", "\ufffe", "\ufeffbom", "\U0010ffff", "%2F", "%00", "@", "index.html"),
)


@pytest.fixture(scope="module")
def hostile() -> Iterator[Place]:
    objects = {f"{folder}/{name}": name.encode() for name in HOSTILE_NAMES for folder in (name, "files")}
    with place(objects) as here:
        yield here


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
def test_a_hostile_name_can_be_listed_looked_up_and_read(hostile: Place, name: str) -> None:
    """N5"""
    for folder in (name, "files"):
        assert name in os.listdir(hostile.path / folder)
        assert (hostile.path / folder / name).read_bytes() == name.encode()
        assert os.getxattr(hostile.path / folder / name, "user.s3.key") == f"{folder}/{name}".encode()


def test_every_ascii_character_but_the_slash_and_nul_can_be_part_of_a_name() -> None:
    """N5"""
    names = {f"{chr(code)}x{chr(code)}" for code in range(1, 128) if chr(code) != "/"}
    with place({name: name.encode() for name in names}) as here:
        assert set(os.listdir(here.path)) == names
        assert {(here.path / name).read_bytes().decode() for name in names} == names


def test_a_server_that_does_not_encode_keys_shows_the_same_names() -> None:
    """N5"""
    # Bare XML cannot carry most control characters; AWS and everyone else encodes when asked.
    names = sorted(name for name in HOSTILE_NAMES if not set(name) & set(map(chr, range(32))))
    objects = MemoryObjects({name: name.encode() for name in names})
    with (
        LoopbackServer({BUCKET: objects}, ServerConfig(encode_keys=False)) as server,
        mounted(f"s3://{BUCKET}", server.endpoint_url) as mount,
    ):
        assert set(os.listdir(mount.path)) == set(names)
        assert {(mount.path / name).read_bytes() for name in names} == {name.encode() for name in names}


def test_a_hostile_prefix_is_taken_verbatim() -> None:
    """N1, N5"""
    prefix = "a b+%20&<é🎉>/?#"
    with place({f"{prefix}/x": b"in", "a b": b"out"}, uri=f"s3://{BUCKET}/{prefix}") as here:
        assert os.listdir(here.path) == ["x"]
        assert (here.path / "x").read_bytes() == b"in"


def test_keys_below_the_prefix_become_paths() -> None:
    """N1"""
    objects = {"train/a": b"1", "train/b/c": b"2", "train-01/x": b"3", "trainer": b"4", "other": b"5"}
    with place(objects, uri=f"s3://{BUCKET}/train") as here:
        found = sorted(str(path.relative_to(here.path)) for path in here.path.rglob("*"))
        assert found == ["a", "b", "b/c"]
        assert (here.path / "b" / "c").read_bytes() == b"2"
        assert "train-01/" in here.mount.log


def test_a_partial_name_is_refused_with_the_candidates() -> None:
    """N1, L5"""
    done = refused({"train-01/x": b"", "train-02/x": b""}, uri=f"s3://{BUCKET}/train")
    assert done.returncode == 4
    assert f"s3://{BUCKET}/train-01/" in done.stderr
    assert f"s3://{BUCKET}/train-02/" in done.stderr


def test_one_object_is_mounted_as_a_directory_with_one_file() -> None:
    """N1"""
    objects = {"path/file.tfrecord": b"one", "path/file.tfrecord.index": b"no", "path/other": b"no"}
    with place(objects, uri=f"s3://{BUCKET}/path/file.tfrecord") as here:
        assert os.listdir(here.path) == ["file.tfrecord"]
        assert (here.path / "file.tfrecord").read_bytes() == b"one"


UNREPRESENTABLE = (
    *(b"a//b", b"/root", b"./dot", b"x/../dotdot", b"x/.", b"nul\0nul"),
    *(b"l" * 256, b"\xff\xfe", b"d/\xc3("),
)


def test_keys_that_cannot_be_paths_are_left_out_counted_and_logged() -> None:
    """N2"""
    with place({**dict.fromkeys(UNREPRESENTABLE, b"data"), b"good": b"data"}) as here:
        assert os.listdir(here.path) == ["good"]
        for key in UNREPRESENTABLE:
            assert f"key {key!r}".encode("unicode_escape").replace(b"\\\\", b"\\") in here.mount.log.encode()
        assert here.mount.log.count("left out: key") == len(UNREPRESENTABLE)


def test_many_keys_that_cannot_be_paths_are_counted_and_ten_are_named() -> None:
    """N2"""
    with place({"good": b"", **{f"bad//{number:02}": b"" for number in range(25)}}) as here:
        assert os.listdir(here.path) == ["good"]
        assert here.mount.log.count("left out: key") == 10
        assert "left out: 25 keys" in here.mount.log


def test_strict_refuses_the_mount_and_names_the_first_ten() -> None:
    """N2, L5"""
    objects = {"good": b"", **{f"bad//{number:02}": b"" for number in range(12)}}
    done = refused(objects, "--strict")
    assert done.returncode == 4
    assert "12 keys" in done.stderr
    assert [f"bad//{number:02}" in done.stderr for number in range(12)] == [True] * 10 + [False] * 2


def test_an_empty_marker_makes_an_empty_directory() -> None:
    """N3"""
    with place({"empty/": b"", "nested/deep/": b"", "full/": b"", "full/x": b"1"}) as here:
        assert os.listdir(here.path / "empty") == []
        assert os.listdir(here.path / "nested" / "deep") == []
        assert os.listdir(here.path / "full") == ["x"]
        assert "left out" not in here.mount.log


def test_a_marker_with_data_is_left_out() -> None:
    """N3, N2"""
    with place({"marker/": b"data", "both/": b"data", "both/x": b"1"}) as here:
        assert os.listdir(here.path) == ["both"]
        assert os.listdir(here.path / "both") == ["x"]
        assert "b'marker/'" in here.mount.log
        assert "b'both/'" in here.mount.log


def test_a_directory_wins_over_a_file_of_its_name() -> None:
    """N4"""
    with place({"a": b"shadowed", "a/b": b"shown", "c": b"shadowed", "c/": b"", "a-": b"before a/"}) as here:
        assert sorted(os.listdir(here.path)) == ["a", "a-", "c"]
        assert (here.path / "a" / "b").read_bytes() == b"shown"
        assert os.listdir(here.path / "c") == []
        assert "key b'a' has" in here.mount.log
        assert "key b'c' has" in here.mount.log


@pytest.fixture(scope="module")
def wide() -> Iterator[Place]:
    """A directory of 5000 entries, a few of them directories, in an order that is not that of their keys."""
    names = [f"{number:05}" for number in range(4000)] + [f"é{number:03}" for number in range(500)]
    folders = [f"{number:05}{sign}" for number in range(0, 1000, 4) for sign in (".", "0")]
    keys = [f"wide/{name}" for name in names] + [f"wide/{folder}/inner" for folder in folders]
    with place(dict.fromkeys(keys, b"x")) as here:
        yield here


def expected_wide(here: Place) -> list[bytes]:
    keys = [here.objects.view().key_at(index) for index in range(len(here.objects.view()))]
    return [b".", b"..", *sorted({key.split(b"/")[1] for key in keys})]


def test_a_large_directory_is_complete_in_byte_order_with_the_inodes_of_stat(wide: Place) -> None:
    """N6"""
    with Directory(wide.path / "wide") as directory:
        entries = directory.rest()
    assert len(entries) == 5002
    assert [entry.name for entry in entries] == expected_wide(wide)
    folder = os.fsencode(wide.path / "wide")
    assert all(os.lstat(os.path.join(folder, entry.name)).st_ino == entry.inode for entry in entries)
    assert len({entry.inode for entry in entries}) == 5002


def test_scandir_gives_the_inodes_and_types_of_stat(wide: Place) -> None:
    """N6"""
    with os.scandir(wide.path / "wide") as entries:
        for entry in entries:
            status = os.lstat(entry.path)
            assert entry.inode() == status.st_ino
            assert entry.is_dir(follow_symlinks=False) == (status.st_nlink > 0 and os.path.isdir(entry.path))


def test_ls_shows_the_inodes_of_stat(wide: Place) -> None:
    """N6"""
    listed = subprocess.run(["ls", "-aiU1", wide.path / "wide"], capture_output=True, text=True, check=True).stdout
    shown = [line.split(maxsplit=1) for line in listed.splitlines()]
    assert len(shown) == 5002
    inner = wide.path / "wide" / "00000." / "inner"
    assert {name: int(inode) for inode, name in shown}["."] == os.stat(inner.parent.parent).st_ino


def test_a_reader_of_a_directory_can_go_back_to_any_entry(wide: Place) -> None:
    """N6"""
    with Directory(wide.path / "wide") as directory:
        entries = directory.rest()
        for position in (4999, 0, 1, 2, 17, 2500, 5000):
            directory.seek(entries[position].resume_offset)
            assert directory.rest() == entries[position + 1 :]
        directory.rewind()
        assert directory.rest() == entries


def test_two_readers_of_a_directory_do_not_disturb_each_other(wide: Place) -> None:
    """N6"""
    with Directory(wide.path / "wide") as one, Directory(wide.path / "wide") as other:
        pairs = [(one.next(), other.next()) for _ in range(5003)]
    assert all(left == right for left, right in pairs)
    assert pairs[-1] == (None, None)


def test_shell_tools_walk_the_tree(hostile: Place) -> None:
    """N5, N6"""
    command = f"find {shlex.quote(str(hostile.path))} -type f -print0 | tr -cd '\\0' | wc -c"
    counted = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    assert int(counted) == 2 * len(HOSTILE_NAMES)

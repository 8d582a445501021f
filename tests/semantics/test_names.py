"""Clauses N1 to N6: which keys are which paths."""

import ctypes
import errno
import os
import re
import stat
import subprocess
from collections.abc import Iterator

import pytest

from tests.filesystem.waiting import wait_until
from tests.semantics.places import BUCKET, Place, errno_of, forget, place

# Tells how many inodes the kernel forgets at once, which leaves as many objects as in a mount of millions of files.
_TELLS_FORGOTTEN = """
import gc
from fastfuse.filesystem.serving.operations import MountOperations
forget, left = MountOperations.forget, []
async def tell(self, inodes):
    print("forgotten:", len(inodes), file=sys.stderr, flush=True)
    left.extend([] for _ in range(50_000))
    await forget(self, inodes)
MountOperations.forget = tell
def collect(phase, info):
    if phase == "start" and info["generation"] == 2:
        print("all objects are looked through", file=sys.stderr, flush=True)
gc.callbacks.append(collect)
"""

# In ASCII order of their meaning, not of their bytes: what has to be escaped in XML, in a URL, in a log line or not at
# all, and what a path may be mistaken for.
HOSTILE_NAMES = (
    *("new\nline", "sp ace", " leading", "trailing ", "per%cent", "per%20cent", "plus+", "que?ry", "ha#sh", "🎉 emoji"),
    *("am&p", "am&amp;p", "<lt>", "'single'", '"double"', "back\\slash", "...", "..x", ".hidden", "-rf", "~", "*"),
    *("tab\t", "return\r", "bell\a", "esc\x1b[2J", "del\x7f", "\x01", "nel\x85", "nbsp\xa0", "zero\u200bwidth", "$x"),
    *("e\u0301", "\u00e9", "a" * 255, "é" * 127 + "x", "semi;colon", "co:lon", "eq=ual", "com,ma", "pi|pe", "{brace}"),
    *("]]>", "<!--", "&#10;", "\ufffe", "\ufeffbom", "\U0010ffff", "%2F", "%00", "@", "index.html"),
)


def test_a_hostile_name_can_be_listed_looked_up_and_read() -> None:
    """N5"""
    names = {*HOSTILE_NAMES, *(f"{chr(code)}x{chr(code)}" for code in range(1, 128) if chr(code) != "/")}
    keys = {f"{folder}/{name}": name for name in names for folder in (name, "files")}
    with place({key: name.encode() for key, name in keys.items()}) as here:
        assert set(os.listdir(here.path)) == names | {"files"}
        assert set(os.listdir(here.path / "files")) == names
        for key, name in keys.items():
            assert (here.path / key).read_bytes() == name.encode()
            assert os.getxattr(here.path / key, "user.s3.key") == key.encode()
        lengths = (255, 256, 1024, 1025)
        errors = [errno_of(os.stat, here.path / ("b" * length)) for length in lengths]
        assert errors == [errno.ENOENT, *[errno.ENAMETOOLONG] * 3]


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


UNREPRESENTABLE = (
    *(b"a//b", b"/root", b"./dot", b"x/../dotdot", b"x/.", b"nul\0nul"),
    *(b"l" * 256, b"\xff\xfe", b"d/\xc3("),
)


MARKERS = {"empty/": b"", "nested/deep/": b"", "full/": b"", "full/x": b"1", "marker/": b"data", "both/": b"data"}
SHADOWED = {"a": b"shadowed", "a/b": b"shown", "c": b"shadowed", "c/": b"", "a-": b"before a/", "both/x": b"1"}


def test_keys_that_cannot_be_paths_are_left_out_and_logged_and_directories_win() -> None:
    """N2, N3, N4"""
    keys = {key.encode(): data for key, data in (MARKERS | SHADOWED).items()}
    with place({**dict.fromkeys(UNREPRESENTABLE, b"data"), **keys}) as here:
        paths = {str(path.relative_to(here.path)) for path in here.path.rglob("*")}
        assert paths == {"a", "a/b", "a-", "both", "both/x", "c", "empty", "full", "full/x", "nested", "nested/deep"}
        assert (here.path / "a" / "b").read_bytes() == b"shown"
        assert os.listdir(here.path / "c") == os.listdir(here.path / "empty") == []
        log = here.mount.log
        assert "left out: key b'a//b' has an empty path segment" in log
        assert log.count("left out: key") == 10
        assert f"left out: {len(UNREPRESENTABLE) + 4} keys in all" in log


@pytest.fixture(scope="module")
def wide() -> Iterator[Place]:
    """A directory of 5000 entries, a few of them directories, in an order that is not that of their keys."""
    names = [f"{number:05}" for number in range(4000)] + [f"é{number:03}" for number in range(500)]
    folders = [f"{number:05}{sign}" for number in range(0, 1000, 4) for sign in (".", "0")]
    keys = [f"wide/{name}" for name in names] + [f"wide/{folder}/inner" for folder in folders]
    with place(dict.fromkeys(keys, b"x")) as here:
        yield here


def test_a_large_directory_is_complete_in_byte_order_with_the_inodes_and_types_of_stat(wide: Place) -> None:
    """N6"""
    view = wide.objects.view()
    expected = sorted({view.key_at(index).split(b"/")[1] for index in range(len(view))})
    folder = os.fsencode(wide.path / "wide")
    assert subprocess.check_output(["ls", "-f", folder]).split() == [b".", b"..", *expected]
    with os.scandir(folder) as one, os.scandir(folder) as other:  # neither disturbs the other
        entries = [entry for entry, _ in zip(one, other, strict=True)]
    assert [entry.name for entry in entries] == expected
    assert len({entry.inode() for entry in entries}) == 5000
    for entry in entries:
        status = os.lstat(entry.path)
        assert (entry.inode(), entry.is_dir(follow_symlinks=False)) == (status.st_ino, stat.S_ISDIR(status.st_mode))


def names_from(place: int, directory: int) -> list[tuple[bytes, int]]:
    """Return what the C library reads of an open directory from `place` on: names, each with the place behind it."""
    libc = ctypes.CDLL(None)
    libc.readdir.restype = ctypes.c_void_p
    libc.seekdir(ctypes.c_void_p(directory), ctypes.c_long(place))
    found = []
    while entry := libc.readdir(ctypes.c_void_p(directory)):  # <dirent.h>: the inode, the place behind, 3 bytes, a name
        found.append((ctypes.string_at(entry + 19), ctypes.c_int64.from_address(entry + 8).value))
    return found


def test_a_reader_of_a_directory_can_go_back_to_any_entry(wide: Place) -> None:
    """N6"""
    libc = ctypes.CDLL(None)
    libc.opendir.restype = ctypes.c_void_p
    directory = libc.opendir(os.fsencode(wide.path / "wide"))
    entries = names_from(0, directory)
    assert len(entries) == 5002
    for position in (4999, 0, 1, 2, 17, 2500, 5000):
        assert names_from(entries[position][1], directory) == entries[position + 1 :]
    assert names_from(0, directory) == entries
    libc.closedir(ctypes.c_void_p(directory))


def test_names_that_the_kernel_forgets_hold_the_loop_for_a_moment_only() -> None:
    """D6"""
    names = {f"{index:04}" for index in range(1500)}
    with place(dict.fromkeys(names, b"x"), change=_TELLS_FORGOTTEN) as here:
        started = here.mount.log
        assert {entry.name for entry in os.scandir(here.path) if entry.stat().st_size} == names
        forget(here.path)

        def forgotten() -> list[int]:
            return [int(count) for count in re.findall(r"forgotten: (\d+)", here.mount.log)]

        wait_until(lambda: sum(forgotten()) >= len(names))
        assert max(forgotten()) < 512
        assert "all objects" not in here.mount.log.removeprefix(started)

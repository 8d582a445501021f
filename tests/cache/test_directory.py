"""Directories that are taken, and what is said of others; all before anything is mounted."""

import errno
import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import Mock

import pytest

from fastfuse.cache import catalog, directory
from fastfuse.cache.directory import open_cache, open_or_none, prepare
from fastfuse.cache.shared import may_have_object
from fastfuse.cli.config import mount_settings
from fastfuse.cli.options import cache
from fastfuse.errors import ConfigurationError
from fastfuse.s3.base import ConnectionConfig
from tests.cache.node import settings_of

NOBODY = 65534


def other_owner(path: Path) -> None:
    prepare(settings_of(path), os.geteuid())
    os.chown(path, 12345, 12345)


def world_writable(path: Path) -> None:
    path.mkdir()
    os.chmod(path, 0o2777)


def group_writable(path: Path) -> None:
    path.mkdir()
    os.chmod(path, 0o770)


def foreign_files(path: Path) -> None:
    path.mkdir()
    (path / "thesis.tex").write_text("all of it")


def other_format(path: Path) -> None:
    prepare(settings_of(path), os.geteuid())
    with sqlite3.connect(path / "index.db") as index:
        index.execute("PRAGMA user_version = 99")
    index.close()


def other_database(path: Path) -> None:
    prepare(settings_of(path), os.geteuid())
    (path / "index.db").unlink()
    with sqlite3.connect(path / "index.db") as index:
        index.execute("CREATE TABLE bank (accounts)")
    index.close()


def link_of_another_user(path: Path) -> None:
    (path.parent / "elsewhere").mkdir()
    (path.parent / "current").symlink_to("elsewhere")
    os.lchown(path.parent / "current", 12345, 12345)
    path.symlink_to("current")


def link_to_a_file_of_root(path: Path) -> None:
    path.mkdir()
    (path.parent / "precious").write_text("precious")
    (path / "index.db").symlink_to(path.parent / "precious")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (other_owner, "belongs to the user 12345, and is used here by"),
        (world_writable, "can be written to by others"),
        (group_writable, "can be written to by others"),
        (foreign_files, "holds 'thesis.tex', which is not of a cache"),
        (other_database, r"holds an 'index.db' that is not of a cache"),
        (Path.touch, "Not a directory"),
        (lambda path: path.symlink_to("/nonexistent/x"), "cannot be used"),
        (lambda path: path.symlink_to("cache"), "Too many levels of symbolic links"),
        (link_of_another_user, "cannot be used: the link .*/current belongs to the user 12345"),
    ],
)
def test_a_directory_that_cannot_be_trusted_is_refused(make: Callable[[Path], None], why: str, tmp_path: Path) -> None:
    make(tmp_path / "cache")
    with pytest.raises(ConfigurationError, match=why) as refused:
        prepare(settings_of(tmp_path / "cache"), os.geteuid())
    assert refused.value.hint


@pytest.mark.parametrize(
    ("limit_bytes", "kinds", "why"),
    [
        (None, directory._IN_MEMORY, ""),
        (128 << 20, directory._IN_MEMORY, ""),
        (127 << 20, directory._IN_MEMORY, "in memory .*, of which it may take 64 MiB, more than half .* of 127 MiB"),
        (127 << 20, {0xEF53}, ""),
    ],
    ids=["no limit", "half of the limit", "more", "on a disk"],
)
def test_a_directory_in_memory_takes_at_most_half_of_it(
    monkeypatch: pytest.MonkeyPatch, limit_bytes: int | None, kinds: set[int], why: str
) -> None:
    monkeypatch.setattr(directory, "memory_limit_bytes", lambda: limit_bytes)
    monkeypatch.setattr(directory, "_IN_MEMORY", kinds)
    refusal = pytest.raises(ConfigurationError, match=why) if why else nullcontext()
    with TemporaryDirectory(dir="/dev/shm") as place, refusal:
        prepare(settings_of(Path(place, "cache"), size_bytes=64 << 20), os.geteuid())


def test_a_directory_of_another_version_begins_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other_format(tmp_path / "cache")
    (tmp_path / "cache" / "filter").write_bytes(b"\xff" * (4 << 10))
    prepare(settings_of(tmp_path / "cache"), os.geteuid())
    assert (tmp_path / "cache" / "filter").read_bytes() == bytes(4 << 10)
    assert "another version of fastfuse made it, in format 99 and not" in caplog.text
    with closing(open_cache(settings_of(tmp_path / "cache"), os.geteuid())):
        assert "begins anew" in caplog.text


def test_a_directory_that_another_version_uses_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = settings_of(tmp_path / "cache")
    prepare(settings, os.geteuid())
    with closing(open_cache(settings, os.geteuid())):
        other_format(tmp_path / "cache")
        prepare(settings, os.geteuid())
        assert open_or_none(settings, os.geteuid()) is None
    assert caplog.text.count("cannot be used; reads come from S3: another version of fastfuse made it") == 2
    with closing(sqlite3.connect(settings.directory / "index.db")) as index:
        assert index.execute("PRAGMA user_version").fetchone() == (99,)


@pytest.mark.parametrize("make", [other_owner, world_writable, foreign_files])
def test_a_directory_that_came_in_place_of_the_prepared_one_is_checked(
    make: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_of(tmp_path / "cache")
    prepare(settings, os.geteuid())
    files = {file.name: file.read_bytes() for file in settings.directory.iterdir()}
    settings.directory.rename(tmp_path / "before")
    make(settings.directory)
    for name, data in files.items():
        (settings.directory / name).write_bytes(data)
    assert open_or_none(settings, os.geteuid()) is None
    assert "cannot be used; reads come from S3: --cache" in caplog.text


def test_only_the_first_process_gives_an_empty_directory_away(tmp_path: Path) -> None:
    """Later, the owner of the tier may have put a link in its place."""
    settings, owner_uid = settings_of(tmp_path / "cache"), os.geteuid() + 1
    (tmp_path / "cache").mkdir()
    assert open_or_none(settings, owner_uid) is None
    assert (tmp_path / "cache").stat().st_uid == os.geteuid()


def test_no_link_in_it_is_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    link_to_a_file_of_root(tmp_path / "cache")
    prepare(settings_of(tmp_path / "cache"), os.geteuid())
    assert "cannot be used" in caplog.text
    assert (tmp_path / "precious").read_text() == "precious"


def test_mounts_that_make_one_directory_at_once_do_so_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The second does not see that the first has just made it, and comes while the first makes the index."""
    settings, first = settings_of(tmp_path / "cache"), threading.get_ident()
    steps, others = list[str](), list[Future[None]]()
    take, make, waits = fcntl.flock, catalog.create, threading.Event()

    def flock(fd: int, how: int) -> None:
        if threading.get_ident() != first:
            waits.set()
        take(fd, how)

    def create(path: str) -> int:
        if threading.get_ident() == first:
            others.append(executor.submit(prepare, settings, os.geteuid()))
            assert waits.wait(30)
        steps.append("first" if threading.get_ident() == first else "second")
        return make(path)

    monkeypatch.setattr(Path, "exists", lambda _: False)
    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr("fastfuse.cache.directory.create", create)
    with ThreadPoolExecutor(1) as executor:
        prepare(settings, os.geteuid())
        others[0].result()
    assert steps == ["first", "second"]
    assert not caplog.messages


def test_a_lock_that_others_hold_costs_the_cache_and_not_the_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The directory is one that anybody may lock."""
    settings, held = settings_of(tmp_path / "cache"), "another process has held its lock for 0.1 s"
    prepare(settings, os.geteuid())
    for limit in ("_OPENED_WITHIN_S", "_MADE_WITHIN_S"):
        monkeypatch.setattr(directory, limit, 0.1)
    for name, said in (
        ("", []),
        ("filter", [f"the cache {settings.directory} was not checked: {held}"]),
        ("claims", [f"the cache {settings.directory} cannot be used; reads come from S3: {held}"]),
    ):
        fd = os.open(settings.directory / name, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX)
        prepare(settings, os.geteuid())
        opened = open_or_none(settings, os.geteuid())
        os.close(fd)
        if opened is not None:
            opened.close()
        assert (opened is None, caplog.messages) == (name == "claims", said)
        caplog.clear()


def test_an_empty_directory_of_another_user_stays_theirs(tmp_path: Path) -> None:
    """They have chosen its group and mode, and would share it."""
    (tmp_path / "cache").mkdir()
    os.chown(tmp_path / "cache", 12345, 12345)
    os.chmod(tmp_path / "cache", 0o2770)
    with pytest.raises(ConfigurationError, match="belongs to the user 12345"):
        prepare(settings_of(tmp_path / "cache"), NOBODY)
    assert (tmp_path / "cache").stat().st_uid == 12345


def test_an_empty_directory_of_root_becomes_that_of_its_workers(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir(0o700)
    (tmp_path / "current").symlink_to("made")
    (tmp_path / "cache").symlink_to("current")
    prepare(settings_of(tmp_path / "cache"), NOBODY)
    assert {path.stat().st_uid for path in (tmp_path / "cache", *(tmp_path / "cache").iterdir())} == {NOBODY}
    prepare(settings_of(tmp_path / "cache"), NOBODY)


def test_an_index_is_made_whole_or_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its making ends amid the schema, as with the process. What is no index of ours would be refused for good."""
    settings = settings_of(tmp_path / "cache")
    with monkeypatch.context() as patched:
        patched.setattr(catalog, "_SCHEMA", f"{catalog._SCHEMA}THE END")
        prepare(settings, os.geteuid())
        assert open_or_none(settings, os.geteuid()) is None
    prepare(settings, os.geteuid())
    open_cache(settings, os.geteuid()).close()


def test_a_filter_is_made_whole_or_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its making fails in the middle. The index has a row that a disk has damaged."""
    settings, object_id = settings_of(tmp_path / "cache"), (1 << 63) - 1
    prepare(settings, os.geteuid())
    with closing(sqlite3.connect(settings.directory / "index.db")) as index, index:
        rows = [(name, 0, 1, 1, 0, b"", 0) for name in (object_id, "damaged")]
        index.executemany("INSERT INTO extents VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the disk fails")

    path = settings.directory / "filter"
    path.unlink()
    with monkeypatch.context() as patched:
        patched.setattr(directory, "add", fail)
        prepare(settings, os.geteuid())
    prepare(settings, os.geteuid())
    with path.open("rb") as made:
        assert may_have_object(made.fileno(), object_id)
        assert not may_have_object(made.fileno(), object_id - 1)


def test_a_filter_that_is_there_stays_whatever_size_is_asked_for(tmp_path: Path) -> None:
    """As by `fastfuse cache status`, which knows nothing of the size that a mount was given."""
    prepare(settings_of(tmp_path / "cache"), os.geteuid())
    path = tmp_path / "cache" / "filter"
    path.write_bytes(bytes([1]) + path.read_bytes()[1:])
    prepare(settings_of(tmp_path / "cache", size_bytes=1 << 40), os.geteuid())
    assert path.read_bytes() == bytes([1]) + bytes((4 << 10) - 1)


def test_a_group_may_share_one_on_purpose(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    os.chown(tmp_path / "cache", 12345, os.getegid())
    os.chmod(tmp_path / "cache", 0o2770)
    prepare(settings_of(tmp_path / "cache"), os.geteuid())
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "cache").iterdir()} == {0o660}
    with pytest.raises(ConfigurationError, match="belongs to the user 12345"):
        prepare(settings_of(tmp_path / "cache"), NOBODY)  # whose worker is in no group


def test_the_first_size_holds_while_another_process_lives(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, owner_uid = tmp_path / "cache", os.geteuid()
    large, small = settings_of(path, size_bytes=128 << 20), settings_of(path, size_bytes=64 << 20)
    prepare(small, owner_uid)
    with closing(open_cache(large, owner_uid)), closing(open_cache(small, owner_uid)) as second:
        assert second.settings == large
        assert caplog.messages == [f"the cache {path} is kept to 128 MiB, not 64 MiB: another process gave it that"]
    with closing(open_cache(small, owner_uid, fills=False)) as looking:
        assert looking.settings == large
        with closing(open_cache(small, owner_uid)) as alone:
            assert alone.settings == small
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"cache_size": "1GiB"}, "take --cache"),
        ({"cache": Path("/dev/shm/x"), "cache_size": "63MiB"}, "at least 64 MiB"),
        ({"cache": Path("/dev/shm/x"), "cache_size": "101%"}, "its file system has"),
        ({"cache": Path("/dev/shm/x"), "cache_size": "much"}, "--cache-size 'much' is not a size"),
        ({"cache": Path("/dev/shm/x"), "cache_min_free": "-1"}, "--cache-min-free '-1' is not a size"),
        ({"cache": Path("/dev/shm/no/such/x")}, "No such file or directory"),
    ],
)
def test_an_option_that_cannot_be_right_is_refused(arguments: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        cache(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(("size_mib", "hint"), [(1000, "give a percentage"), (79, "a larger file system")])
def test_a_small_disk_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_mib: int, hint: str) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: Mock(f_blocks=size_mib, f_frsize=1 << 20))
    with pytest.raises(ConfigurationError, match="at least 64 MiB") as caught:
        cache(tmp_path, "5%")
    assert hint in caught.value.hint


def test_a_percentage_is_one_of_the_file_system(tmp_path: Path) -> None:
    there = os.statvfs(tmp_path)
    found = cache(tmp_path / "new", "50%", "10GiB")
    assert found is not None
    assert found.size_bytes == there.f_blocks * there.f_frsize // 2
    assert found.min_free_bytes == 10 << 30
    assert cache() is None


def test_what_a_key_of_the_user_decrypts_is_not_kept_in_the_clear(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="in the clear"):
        mount_settings(
            source="s3://bucket",
            connection=ConnectionConfig(sse_c_key_file=str(tmp_path / "key")),
            cache=tmp_path / "cache",
            cache_size="64MiB",
        )

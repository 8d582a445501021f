"""A channel in File mode: from a server's objects to files, again after changes, and past whatever is in the way."""

import os
import stat
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.s3server import ACCESS_DENIED, INTERNAL_ERROR, FaultRule, Flip, MemoryObjects
from fastfuse.errors import AccessError, ConfigurationError, DiskError, ServiceError, SourceError
from fastfuse.s3 import retry_policy
from fastfuse.s3.checksums import digest_of
from fastfuse.s3.failures import Kind
from fastfuse.sagemaker.download.disk import PRIVATE_NAME, open_root
from fastfuse.sagemaker.download.file_channel import DownloadReport
from tests.sagemaker.download.channels import PART_BYTES, Source, files_below, refs_of, table_of

PRIVATE = os.fsdecode(PRIVATE_NAME)
LARGE = os.urandom(5 * PART_BYTES + 123)
OBJECTS = {
    "a": b"a",
    "deep/er/file": b"deep",
    "deep/file": os.urandom(PART_BYTES),
    "empty": b"",
    "large": LARGE,
    "odd/n\nl +%?\u20ac": b"odd",
    "void/": b"",
}
FILES = {key: data for key, data in OBJECTS.items() if not key.endswith("/")}
TOTAL_BYTES = sum(map(len, FILES.values()))


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects(OBJECTS)


@pytest.fixture
def channel(s3: Source, tmp_path: Path) -> Path:
    directory = tmp_path / "channel"
    s3.run(directory)
    s3.server.clear_requests()
    return directory


def test_every_object_becomes_a_file_and_every_marker_a_directory(channel: Path, s3: Source) -> None:
    assert files_below(channel) == FILES
    assert PRIVATE not in os.listdir(channel)
    assert (channel / "void").is_dir()
    for ref in refs_of(s3.objects):
        if ref.key in FILES:
            status = (channel / ref.key).stat()
            assert status.st_mtime_ns == ref.modified_ns
            assert stat.S_IMODE(status.st_mode) == 0o644


def test_the_umask_is_respected(s3: Source, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        s3.run(tmp_path / "channel")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "channel").rglob("*")}
    assert modes == {0o600, 0o700}


def test_paths_are_those_below_the_prefix(s3: Source, tmp_path: Path) -> None:
    refs = [ref for ref in refs_of(s3.objects) if ref.key.startswith("deep/")]
    s3.run(tmp_path, table=table_of(refs, prefix="deep/"))
    assert files_below(tmp_path) == {"er/file": FILES["deep/er/file"], "file": FILES["deep/file"]}


def test_each_byte_is_fetched_once_and_progress_ends_with_all(s3: Source, tmp_path: Path) -> None:
    told: list[DownloadReport] = []
    report = s3.run(tmp_path, tell=told.append)
    assert report.fetched_bytes == report.total_bytes == TOTAL_BYTES
    assert report.files == len(FILES)
    assert report.kept_files == report.unknown_files == 0
    gets = [record for record in s3.server.requests if record.operation == "GetObject"]
    assert report.requests == len(gets) == 10  # 6 parts and 4 small files: nothing is asked for an empty one
    assert sum(record.sent_bytes for record in gets) == TOTAL_BYTES
    assert told[-1] == report
    assert report.done_bytes == TOTAL_BYTES
    assert [one.done_bytes for one in told] == sorted(one.done_bytes for one in told)


def test_a_second_run_fetches_nothing(s3: Source, channel: Path) -> None:
    told: list[DownloadReport] = []
    report = s3.run(channel, tell=told.append)
    assert (report.kept_files, report.requests) == (len(FILES), 0)
    assert told[-1].done_bytes == TOTAL_BYTES
    assert s3.server.requests == ()
    assert files_below(channel) == FILES


def test_a_replaced_object_of_the_same_size_and_time_is_fetched_again(s3: Source, channel: Path) -> None:
    other = bytes(len(LARGE))
    s3.objects.put("large", other)
    report = s3.run(channel)
    assert (report.kept_files, report.fetched_bytes) == (len(FILES) - 1, len(other))
    assert files_below(channel) == FILES | {"large": other}


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(path.read_bytes() + b"more"),
        lambda path: path.write_bytes(b"?" * path.stat().st_size),
        lambda path: os.truncate(path, 3),
        lambda path: path.unlink(),
        lambda path: os.utime(path, ns=(1, 1)),
    ],
    ids=["longer", "written to", "shorter", "removed", "touched"],
)
def test_a_file_that_was_changed_is_fetched_again(s3: Source, channel: Path, change: Callable[[Path], object]) -> None:
    change(channel / "deep/file")
    report = s3.run(channel)
    assert report.fetched_bytes == len(FILES["deep/file"])
    assert files_below(channel) == FILES


def test_what_the_listing_does_not_know_is_counted_and_left_alone(s3: Source, channel: Path) -> None:
    (channel / "deep/mine").write_bytes(b"mine")
    (channel / "link").symlink_to("a")
    report = s3.run(channel)
    assert report.unknown_files == 2
    assert (channel / "deep/mine").read_bytes() == b"mine"


@pytest.mark.parametrize("place", ["deep", "large"])
def test_a_link_in_a_place_leads_nothing_out_of_the_directory(s3: Source, tmp_path: Path, place: str) -> None:
    outside, channel = tmp_path / "outside", tmp_path / "channel"
    outside.mkdir()
    (outside / "victim").write_bytes(b"victim")
    channel.mkdir()
    (channel / place).symlink_to(outside if place == "deep" else outside / "victim")
    if place == "deep":
        with pytest.raises(DiskError, match="something else is in its place"):
            s3.run(channel)
    else:
        s3.run(channel)
        assert files_below(channel) == FILES
        assert not (channel / "large").is_symlink()
    assert files_below(outside) == {"victim": b"victim"}


def test_a_private_directory_that_is_not_of_this_user_alone_is_refused(s3: Source, tmp_path: Path) -> None:
    outside, linked, shared = (tmp_path / name for name in ("outside", "linked", "shared"))
    for path in (outside, linked, shared / PRIVATE):
        path.mkdir(parents=True)
    (linked / PRIVATE).symlink_to(outside)
    with pytest.raises(DiskError, match="fastfuse-download' cannot be made: something else is in its place"):
        s3.run(linked)
    assert files_below(outside) == {}
    (shared / PRIVATE).chmod(0o777)
    with pytest.raises(DiskError, match="not a directory of this user alone"):
        s3.run(shared)
    assert s3.server.requests == ()


@pytest.mark.parametrize(("key", "in_the_way"), [("x/y", "x"), ("x", "x/y")])
def test_something_of_another_kind_in_the_way_is_told(s3: Source, tmp_path: Path, key: str, in_the_way: str) -> None:
    s3.objects.put(key, b"new")
    path = tmp_path / in_the_way
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"mine")
    with pytest.raises(DiskError, match=r"'.*/x' cannot be made: something else is in its place"):
        s3.run(tmp_path)
    assert path.read_bytes() == b"mine"


def test_a_key_with_the_private_name_is_a_file_like_any_other(s3: Source, tmp_path: Path) -> None:
    s3.objects.put(f"{PRIVATE}/x", b"x")
    s3.run(tmp_path)
    assert files_below(tmp_path) == FILES | {f"{PRIVATE}/x": b"x"}


def test_two_at_once_are_refused(s3: Source, tmp_path: Path) -> None:
    other = open_root(tmp_path, tmp_path.parent)
    try:
        with pytest.raises(ConfigurationError, match="another fastfuse downloads to"):
            s3.run(tmp_path)
    finally:
        other.close()
    s3.run(tmp_path)


@pytest.mark.parametrize(("action", "kind"), [(ACCESS_DENIED, AccessError), (INTERNAL_ERROR, ServiceError)])
def test_the_first_failure_names_its_key_and_the_next_run_goes_on(
    s3: Source, tmp_path: Path, action: object, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(retry_policy._ATTEMPTS, Kind.BUSY, 2)  # so that no deadline ends a request, and perhaps another
    s3.server.faults.add(FaultRule(action=action, operation="GetObject", key="large", skip=3))  # type: ignore[arg-type]
    with pytest.raises(kind, match="'large'"):
        s3.run(tmp_path, max_connections=1)  # a part is fetched once those two before it are written
    assert not (tmp_path / "large").exists()
    s3.server.faults.clear()
    s3.server.clear_requests()
    report = s3.run(tmp_path)
    assert files_below(tmp_path) == FILES
    assert report.fetched_bytes < TOTAL_BYTES


def test_an_object_that_changes_after_the_listing_stops_it(s3: Source, tmp_path: Path) -> None:
    table = s3.table()
    s3.objects.put("large", bytes(len(LARGE)))
    with pytest.raises(SourceError, match="'large' was replaced"):
        s3.run(tmp_path, table=table)
    assert not (tmp_path / "large").exists()


def test_a_channel_without_objects_is_an_empty_directory(s3: Source, tmp_path: Path) -> None:
    report = s3.run(tmp_path / "channel", table=table_of([]))
    assert (report.files, report.requests) == (0, 0)
    assert os.listdir(tmp_path / "channel") == []


def test_a_directory_that_cannot_be_made_is_told(s3: Source, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DiskError, match=r"'.*/file/channel' "):
        s3.run(tmp_path / "file/channel")


@pytest.mark.parametrize("key", ["deep/er/file", "large"])
def test_what_was_received_damaged_becomes_no_file_and_is_fetched_anew(s3: Source, tmp_path: Path, key: str) -> None:
    digest = b64encode(digest_of("crc32c", OBJECTS[key])).decode()
    s3.objects.put(key, OBJECTS[key], checksums={"x-amz-checksum-crc32c": digest})
    table = s3.table()
    flips = s3.server.faults.add(FaultRule(action=Flip(lambda start, end: [3]), operation="GetObject", key=key))
    with pytest.raises(ServiceError, match=f"{key!r} was received damaged.*{digest_of('crc32c', OBJECTS[key]).hex()}"):
        s3.run(tmp_path, table=table, verify=True)
    assert not (tmp_path / key).exists()
    s3.server.faults.remove(flips)
    s3.run(tmp_path, table=table)  # even one that checks less
    assert files_below(tmp_path) == FILES

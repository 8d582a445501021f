"""A channel in File mode: from a server's objects to files, again after changes, and past whatever is in the way."""

import os
import stat
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fastfuse.errors import AccessError, ConfigurationError, DiskError, ServiceError, SourceError
from fastfuse.s3.checksums import digest_of
from fastfuse.sagemaker.download.disk import PRIVATE_NAME, open_root
from fastfuse.sagemaker.download.file_channel import DownloadReport, settle_channel
from fastfuse.testing import ACCESS_DENIED, INTERNAL_ERROR, FaultRule, Flip, LoopbackServer, MemoryObjects, Reset
from tests.sagemaker.download.channels import PART_BYTES, files_below, refs_of, run, table_of

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
def channel(server: LoopbackServer, objects: MemoryObjects, tmp_path: Path) -> Path:
    """A directory with all of it."""
    directory = tmp_path / "channel"
    run(server, table_of(refs_of(objects)), directory)
    server.clear_requests()
    return directory


def test_every_object_becomes_a_file_and_every_marker_a_directory(channel: Path, objects: MemoryObjects) -> None:
    assert files_below(channel) == FILES
    assert (channel / "void").is_dir()
    for ref in refs_of(objects):
        if ref.key in FILES:
            status = (channel / ref.key).stat()
            assert status.st_mtime_ns == ref.modified_ns
            assert stat.S_IMODE(status.st_mode) == 0o644


def test_the_umask_is_respected(server: LoopbackServer, objects: MemoryObjects, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        run(server, table_of(refs_of(objects)), tmp_path / "channel")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "channel").rglob("*")}
    assert modes == {0o600, 0o700}


def test_paths_are_those_below_the_prefix(server: LoopbackServer, objects: MemoryObjects, tmp_path: Path) -> None:
    refs = [ref for ref in refs_of(objects) if ref.key.startswith("deep/")]
    run(server, table_of(refs, prefix="deep/"), tmp_path)
    assert files_below(tmp_path) == {"er/file": FILES["deep/er/file"], "file": FILES["deep/file"]}


def test_each_byte_is_fetched_once_and_progress_ends_with_all(
    server: LoopbackServer, objects: MemoryObjects, tmp_path: Path
) -> None:
    told: list[DownloadReport] = []
    report = run(server, table_of(refs_of(objects)), tmp_path, tell=told.append)
    assert report.fetched_bytes == report.total_bytes == TOTAL_BYTES
    assert report.files == len(FILES)
    assert report.kept_files == report.unknown_files == 0
    gets = [record for record in server.requests if record.operation == "GetObject"]
    assert report.requests == len(gets) == 10  # 6 parts and 4 small files: nothing is asked for an empty one
    assert sum(record.sent_bytes for record in gets) == TOTAL_BYTES
    assert told[-1] == report
    assert (report.done_files, report.done_bytes) == (len(FILES), TOTAL_BYTES)
    assert [one.done_bytes for one in told] == sorted(one.done_bytes for one in told)


def test_a_second_run_fetches_nothing(server: LoopbackServer, objects: MemoryObjects, channel: Path) -> None:
    told: list[DownloadReport] = []
    report = run(server, table_of(refs_of(objects)), channel, tell=told.append)
    assert (report.kept_files, report.requests) == (len(FILES), 0)
    assert told[-1].done_bytes == TOTAL_BYTES
    assert server.requests == ()
    assert files_below(channel) == FILES


def test_a_replaced_object_of_the_same_size_and_time_is_fetched_again(
    server: LoopbackServer, objects: MemoryObjects, channel: Path
) -> None:
    other = bytes(len(LARGE))
    objects.put("large", other)
    report = run(server, table_of(refs_of(objects)), channel)
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
def test_a_file_that_somebody_changed_is_fetched_again(
    server: LoopbackServer, objects: MemoryObjects, channel: Path, change: Callable[[Path], object]
) -> None:
    change(channel / "deep/file")
    report = run(server, table_of(refs_of(objects)), channel)
    assert report.fetched_bytes == len(FILES["deep/file"])
    assert files_below(channel) == FILES


def test_what_the_listing_does_not_know_is_counted_and_left_alone(
    server: LoopbackServer, objects: MemoryObjects, channel: Path
) -> None:
    (channel / "deep/mine").write_bytes(b"mine")
    (channel / "link").symlink_to("a")
    report = run(server, table_of(refs_of(objects)), channel)
    assert report.unknown_files == 2
    assert (channel / "deep/mine").read_bytes() == b"mine"


@pytest.mark.parametrize("place", ["deep", "large"])
def test_a_link_in_a_place_leads_nothing_out_of_the_directory(
    server: LoopbackServer, objects: MemoryObjects, tmp_path: Path, place: str
) -> None:
    outside, channel = tmp_path / "outside", tmp_path / "channel"
    outside.mkdir()
    (outside / "victim").write_bytes(b"victim")
    channel.mkdir()
    (channel / place).symlink_to(outside if place == "deep" else outside / "victim")
    if place == "deep":
        with pytest.raises(DiskError, match="something else is in its place"):
            run(server, table_of(refs_of(objects)), channel)
    else:
        run(server, table_of(refs_of(objects)), channel)
        assert files_below(channel) == FILES
        assert not (channel / "large").is_symlink()
    assert files_below(outside) == {"victim": b"victim"}


def test_a_private_directory_that_is_a_link_is_refused(
    server: LoopbackServer, objects: MemoryObjects, tmp_path: Path
) -> None:
    outside, channel = tmp_path / "outside", tmp_path / "channel"
    outside.mkdir()
    channel.mkdir()
    (channel / os.fsdecode(PRIVATE_NAME)).symlink_to(outside)
    with pytest.raises(DiskError, match="fastfuse-download' cannot be made: something else is in its place"):
        run(server, table_of(refs_of(objects)), channel)
    assert files_below(outside) == {}
    assert server.requests == ()


def test_a_private_directory_that_others_may_write_to_is_refused(
    server: LoopbackServer, objects: MemoryObjects, tmp_path: Path
) -> None:
    private = tmp_path / os.fsdecode(PRIVATE_NAME)
    private.mkdir()
    private.chmod(0o777)
    with pytest.raises(DiskError, match="not a directory of this user alone"):
        run(server, table_of(refs_of(objects)), tmp_path)


@pytest.mark.parametrize(("key", "in_the_way"), [("x/y", "x"), ("x", "x/y")])
def test_a_file_in_the_place_of_a_directory_and_the_reverse_are_told(
    server: LoopbackServer, objects: MemoryObjects, tmp_path: Path, key: str, in_the_way: str
) -> None:
    objects.put(key, b"new")
    path = tmp_path / in_the_way
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"mine")
    with pytest.raises(DiskError, match=r"'.*/x' cannot be made: something else is in its place"):
        run(server, table_of(refs_of(objects)), tmp_path)
    assert path.read_bytes() == b"mine"


def test_a_key_with_the_private_name_is_a_file_like_any_other(
    server: LoopbackServer, objects: MemoryObjects, tmp_path: Path
) -> None:
    objects.put(f"{os.fsdecode(PRIVATE_NAME)}/x", b"x")
    run(server, table_of(refs_of(objects)), tmp_path)
    assert files_below(tmp_path) == FILES | {f"{os.fsdecode(PRIVATE_NAME)}/x": b"x"}


def test_nothing_private_is_left(channel: Path) -> None:
    assert os.fsdecode(PRIVATE_NAME) not in os.listdir(channel)


def test_leftovers_of_a_killed_run_are_removed(server: LoopbackServer, objects: MemoryObjects, tmp_path: Path) -> None:
    private = tmp_path / os.fsdecode(PRIVATE_NAME)
    private.mkdir(0o700)
    (private / "7.new").write_bytes(b"half")
    (private / ("0" * 32)).write_bytes(b"of another version")
    (private / ("0" * 32 + ".parts")).write_bytes(b"?")
    run(server, table_of(refs_of(objects)), tmp_path)
    assert files_below(tmp_path) == FILES


def test_two_at_once_are_refused(server: LoopbackServer, objects: MemoryObjects, tmp_path: Path) -> None:
    other = open_root(tmp_path)
    try:
        with pytest.raises(ConfigurationError, match="another fastfuse downloads to"):
            run(server, table_of(refs_of(objects)), tmp_path)
    finally:
        other.close()
    run(server, table_of(refs_of(objects)), tmp_path)


@pytest.mark.parametrize(
    ("action", "kind"), [(ACCESS_DENIED, AccessError), (INTERNAL_ERROR, ServiceError), (Reset(None), ServiceError)]
)
def test_the_first_failure_names_its_key_and_the_next_run_goes_on(
    server: LoopbackServer, objects: MemoryObjects, tmp_path: Path, action: object, kind: type[Exception]
) -> None:
    server.faults.add(FaultRule(action=action, operation="GetObject", key="large", skip=3))  # type: ignore[arg-type]
    with pytest.raises(kind, match="'large'"):
        run(server, table_of(refs_of(objects)), tmp_path, deadline_s=5.0)
    assert not (tmp_path / "large").exists()
    server.faults.clear()
    server.clear_requests()
    report = run(server, table_of(refs_of(objects)), tmp_path)
    assert files_below(tmp_path) == FILES
    assert report.fetched_bytes < TOTAL_BYTES


def test_an_object_that_changes_after_the_listing_stops_it(
    server: LoopbackServer, objects: MemoryObjects, tmp_path: Path
) -> None:
    table = table_of(refs_of(objects))
    objects.put("large", bytes(len(LARGE)))
    with pytest.raises(SourceError, match="'large' was replaced"):
        run(server, table, tmp_path)
    assert not (tmp_path / "large").exists()


def test_passing_faults_are_not_noticed(server: LoopbackServer, objects: MemoryObjects, tmp_path: Path) -> None:
    server.faults.add(FaultRule(action=INTERNAL_ERROR, operation="GetObject", probability=0.3, times=6, seed=1))
    server.faults.add(FaultRule(action=Reset(1000), operation="GetObject", key="large", times=2))
    run(server, table_of(refs_of(objects)), tmp_path)
    assert files_below(tmp_path) == FILES


def test_a_channel_without_objects_is_an_empty_directory(server: LoopbackServer, tmp_path: Path) -> None:
    report = run(server, table_of([]), tmp_path / "channel")
    assert (report.files, report.requests) == (0, 0)
    assert os.listdir(tmp_path / "channel") == []


def test_what_does_not_fit_is_refused_before_the_first_byte(
    server: LoopbackServer, objects: MemoryObjects, tmp_path: Path
) -> None:
    refs = refs_of(objects)
    with pytest.raises(DiskError, match=r"needs 1048576 GiB in '.*', and .* are free there"):
        run(server, table_of([*refs, replace(refs[0], key="huge", size_bytes=1 << 50)]), tmp_path)
    assert server.requests == ()


def test_a_directory_that_cannot_be_made_is_told(
    server: LoopbackServer, objects: MemoryObjects, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DiskError, match=r"'.*/file/channel' "):
        run(server, table_of(refs_of(objects)), tmp_path / "file/channel")


def test_a_settled_channel_says_so(channel: Path) -> None:
    settle_channel(channel)
    assert int(os.getxattr(channel, "user.fastfuse.settled")) > (channel / "large").stat().st_ctime_ns


@pytest.mark.parametrize("key", ["deep/er/file", "large"])
def test_what_was_received_damaged_becomes_no_file_and_is_fetched_anew(
    server: LoopbackServer, objects: MemoryObjects, tmp_path: Path, key: str
) -> None:
    digest = b64encode(digest_of("crc32c", OBJECTS[key])).decode()
    objects.put(key, OBJECTS[key], checksums={"x-amz-checksum-crc32c": digest})
    table = table_of(refs_of(objects))
    flips = server.faults.add(FaultRule(action=Flip(lambda start, end: [3]), operation="GetObject", key=key))
    with pytest.raises(ServiceError, match=f"{key!r} was received damaged.*{digest_of('crc32c', OBJECTS[key]).hex()}"):
        run(server, table, tmp_path, verify=True)
    assert not (tmp_path / key).exists()
    server.faults.remove(flips)
    run(server, table, tmp_path)  # even one that checks less
    assert files_below(tmp_path) == FILES


def test_a_checked_run_does_not_continue_what_another_began(
    server: LoopbackServer, objects: MemoryObjects, tmp_path: Path
) -> None:
    table = table_of(ref for ref in refs_of(objects) if ref.key == "large")
    server.faults.add(FaultRule(action=Flip(lambda start, end: [3]), operation="GetObject", key="large"))
    server.faults.add(FaultRule(action=ACCESS_DENIED, operation="GetObject", key="large", skip=2))
    with pytest.raises(AccessError):
        run(server, table, tmp_path)
    server.faults.clear()
    report = run(server, table, tmp_path, verify=True)
    assert files_below(tmp_path) == {"large": LARGE}
    assert (report.requests, report.fetched_bytes) == (6, len(LARGE))

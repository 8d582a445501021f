"""What a download needs of the disk and notes on it, that no name leads elsewhere, and its fetches side by side."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing

from bench.s3server import MemoryObjects
from fastfuse.errors import ConfigurationError, DiskError, UnavailableError, first_of
from fastfuse.index.inodes.table import InodeTable
from fastfuse.index.made import MadeReader
from fastfuse.objects import Buffer, ObjectRef
from fastfuse.s3.room import Room
from fastfuse.sagemaker.download import landing
from fastfuse.sagemaker.download.disk import open_root, version_of
from fastfuse.sagemaker.download.file_channel import DownloadReport, download
from fastfuse.sagemaker.download.landing import Places, jobs
from tests.descriptors import open_descriptors
from tests.fakes import CountingReader, FailingReader, SlowReader
from tests.index import indexes
from tests.mounting import tmpfs
from tests.sagemaker.download.channels import MEMORY_BYTES, PART_BYTES, Source, files_below, settings_for, table_of
from tests.store import MemoryStore

MIB = 1 << 20
OBJECTS = {"large": os.urandom(2 * MIB), "small": b"s"}


@pytest.fixture(scope="module")
def objects() -> MemoryObjects:
    return MemoryObjects(OBJECTS)


def test_a_channel_that_does_not_fit_is_refused_before_the_first_byte(s3: Source, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", f"size={MIB}") as place:
        with pytest.raises(DiskError, match=r"the channel needs 2 MiB in '.*', and .* are free there") as refused:
            s3.run(place / "channel")
        assert "cache clear" in refused.value.hint
        assert s3.server.requests == ()


def test_a_file_system_that_tells_no_size_takes_what_comes(s3: Source, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "size=0") as place:
        assert os.statvfs(place).f_blocks == 0
        s3.run(place / "channel")
        assert files_below(place / "channel") == OBJECTS


def test_a_disk_that_others_fill_meanwhile_is_told_and_the_next_run_goes_on(
    s3: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tmpfs(tmp_path / "disk", f"size={4 * MIB}") as place:
        (place / "other").write_bytes(bytes(3 * MIB))
        with monkeypatch.context() as patched:
            patched.setattr(landing, "check_room", lambda *_: None)
            with pytest.raises(DiskError, match=r"the disk is full: '.*/large'"):
                s3.run(place / "channel")
        (place / "other").unlink()
        s3.run(place / "channel")
        assert files_below(place / "channel") == OBJECTS


def test_objects_of_16_eib_in_all_are_refused_with_their_sum(s3: Source, tmp_path: Path) -> None:
    ref = ObjectRef("bucket", "a", (1 << 63) - 1, '"e"', 0)
    with pytest.raises(DiskError, match=r"the channel needs 17179869184 GiB in "):
        s3.run(tmp_path, table=table_of([ref, replace(ref, key="b")]))


def test_who_needs_nothing_is_not_refused_for_a_full_disk(s3: Source, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", f"size={4 * MIB}") as place:
        s3.run(place / "channel")
        (place / "other").write_bytes(bytes(os.statvfs(place).f_bavail * os.statvfs(place).f_frsize))
        assert s3.run(place / "channel").requests == 0


REF = ObjectRef("bucket", "key", 3, '"etag"', 10**18)


@pytest.mark.parametrize(
    "change",
    [{"bucket": "b"}, {"key": "k"}, {"size_bytes": 4}, {"etag": '"other"'}, {"etag": ""}, {"modified_ns": 10**18 + 1}],
)
def test_whatever_changes_of_an_object_makes_it_another_version(change: dict[str, object]) -> None:
    assert version_of(replace(REF, **change)) != version_of(REF)  # type: ignore[arg-type]
    assert version_of(replace(REF)) == version_of(REF)


def table_with(*keys: str) -> InodeTable:
    return table_of([ObjectRef("bucket", key, 1, '"etag"', 10**18) for key in keys])


@pytest.mark.parametrize("name", [b"..", b"./", b"x/", b"x\0"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: bytes) -> None:
    table = table_with("ab/c")
    names = table.columns["names"].copy()
    names[:2] = np.frombuffer(name, "uint8")
    damaged = InodeTable(table.metadata, {**table.columns, "names": names})
    channel = tmp_path / "channel"
    with pytest.raises(ConfigurationError, match="the index is damaged"):
        list(jobs(Places(damaged, open_root(channel, channel.parent)), bytearray(len(table))))
    assert os.listdir(channel) == []


def test_a_link_that_takes_a_directorys_place_meanwhile_is_not_followed(tmp_path: Path) -> None:
    outside, channel = tmp_path / "outside", tmp_path / "channel"
    outside.mkdir()
    table = table_with("a", "b/c", "z")
    walk = jobs(Places(table, open_root(channel, channel.parent)), bytearray(len(table)))
    assert [next(walk).name, next(walk).name] == [b"a", b"z"]
    (channel / "b").rmdir()
    (channel / "b").symlink_to(outside)
    with pytest.raises(DiskError, match="something else is in its place"):
        next(walk)


@dataclass
class WeighingReader(CountingReader):
    """Remembers how many bytes were on their way at most, and how many descriptors were open, too."""

    bytes_in_flight: int = 0
    most_bytes: int = 0
    most_descriptors: int = 0

    async def get(self, ref: ObjectRef, start: int, end: int) -> Buffer:
        self.bytes_in_flight += end - start
        self.most_bytes = max(self.most_bytes, self.bytes_in_flight)
        self.most_descriptors = max(self.most_descriptors, len(os.listdir("/proc/self/fd")))
        try:
            return await super().get(ref, start, end)
        finally:
            self.bytes_in_flight -= end - start


def ignore(_: DownloadReport) -> None:
    pass


def filled(objects: dict[str, bytes]) -> tuple[MemoryStore, list[ObjectRef]]:
    store = MemoryStore()
    return store, [store.put(key, data) for key, data in objects.items()]


async def fetched(
    directory: Path, objects: dict[str, bytes], delay_s: float, *, most: int = 64, **settings: int
) -> WeighingReader:
    """Download the objects, each GET of which takes so long, and return the reader."""
    store, refs = filled(objects)
    reader = WeighingReader(SlowReader(store, delay_s))
    changed = replace(settings_for(directory), **settings)  # type: ignore[arg-type]
    await download(table_of(refs), reader, changed, ignore, most_gets=most)
    assert files_below(directory) == objects
    return reader


MANY = {f"{number:03}": b"%d" % number for number in range(300)}


async def test_bytes_on_their_way_fit_the_memory_target(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    reader = await fetched(tmp_path, {f"{number:02}": os.urandom(4 * PART_BYTES) for number in range(20)}, 1.0)
    assert PART_BYTES <= reader.most_bytes <= MEMORY_BYTES


async def test_no_more_gets_are_on_their_way_than_there_are_connections_and_fewer_where_they_take_long(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    assert 4 < (await fetched(tmp_path / "fast", MANY, 1.0, most=16)).most_in_flight <= 16
    assert (await fetched(tmp_path / "slow", dict([*MANY.items()][:30]), 30.0)).most_in_flight == 4


async def test_descriptors_are_few_for_many_directories(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    before = len(open_descriptors())
    reader = await fetched(tmp_path, {f"{number:04}/file": b"%d" % number for number in range(600)}, 0.01)
    # Jobs ahead, and fetches under way: a directory and a file each.
    assert reader.most_descriptors - before < 128 + 2 * 128 + 20
    assert len(open_descriptors()) == before


async def test_a_memory_target_below_a_part_makes_smaller_parts(tmp_path: Path) -> None:
    large = {"large": os.urandom(3 * MEMORY_BYTES)}
    reader = await fetched(tmp_path, large, 0.0, most=4, part_size_bytes=8 * MEMORY_BYTES)
    assert max(end - start for _, start, end in reader.calls) == MEMORY_BYTES // 2


async def test_the_first_error_ends_everything(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    store, refs = filled(MANY)
    error = UnavailableError("'050' failed")
    reader = CountingReader(FailingReader(SlowReader(store, 1.0), lambda: error, 1, lambda ref, *_: ref.key == "050"))
    with pytest.raises(ExceptionGroup) as told:
        await download(table_of(refs), reader, settings_for(tmp_path), ignore, most_gets=64)
    assert first_of(told.value) is error
    assert len(reader.calls) < 300
    whole = {name: data for name, data in files_below(tmp_path).items() if not name.startswith(".")}
    assert whole.items() <= MANY.items()


async def test_made_files_are_made_again_each_time(tmp_path: Path) -> None:
    table = indexes.table_of([], made={b"order.txt": b"1\n2\n"})
    reader = MadeReader(MemoryStore(), lambda: table)
    for _ in range(2):
        report = await download(table, reader, settings_for(tmp_path), ignore, most_gets=4)
        assert (report.kept_files, report.fetched_bytes) == (0, 4)
    assert files_below(tmp_path) == {"order.txt": b"1\n2\n"}


async def test_writes_that_are_not_through_hold_gets_back() -> None:
    room = Room(most_gets=4, most_fetches=6, memory_bytes=100)

    async def is_let_in() -> bool:
        with trio.move_on_after(0):
            await room.enter(1)
            return True
        return False

    for _ in range(6):
        await room.enter(1)
        room.landed(trio.current_time())
    assert not await is_let_in()
    room.leave(1)
    assert await is_let_in()

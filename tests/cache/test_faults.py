"""The faults of a disk, and of what lies on it, in one table: reads go on with the right bytes, and it is told."""

import errno
import os
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
import trio
import trio.testing

from fastfuse.cache import upkeep, writer
from fastfuse.cache.directory import open_cache, prepare
from fastfuse.cache.reader import CachedReader
from fastfuse.cache.writer import Range
from fastfuse.metrics import CACHE_FAILURES, Counters
from tests.cache.node import KIB, MIB, CountingStore, content, settings_of, tier
from tests.mounting import tmpfs

DATA = {f"{n}": content(f"{n}", 700 * KIB if n % 4 == 0 else 39_000) for n in range(20)}


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.segment"))


def each_segment(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def change_all(directory: Path) -> None:
        for path in segments(directory):
            path.write_bytes(change(path.read_bytes()))

    return change_all


def flip(data: bytes) -> bytes:
    return data[:5000] + bytes([data[5000] ^ 4]) + data[5001:]


def unlink_segments(directory: Path) -> None:
    for path in segments(directory):
        path.unlink()


def swap(directory: Path) -> None:
    first, second = segments(directory)[:2]
    first.rename(directory / "x")
    second.rename(first)
    (directory / "x").rename(second)


def index_is(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        path = directory / "index.db"
        fd = os.open(path, os.O_RDWR)  # the same file, for those who have it open
        data = change(path.read_bytes())
        os.ftruncate(fd, 0)
        os.pwrite(fd, data, 0)
        os.close(fd)

    return write


def rows_are(change: str) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        other = sqlite3.connect(directory / "index.db", isolation_level=None)
        other.execute(f"UPDATE extents SET {change}")
        other.close()

    return write


@contextmanager
def locked_index(directory: Path) -> Iterator[None]:
    other = sqlite3.connect(directory / "index.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield
    other.close()


def full(directory: Path) -> None:
    fd = os.open(directory.parent / "others", os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        fill(fd)
    os.close(fd)


def fill(fd: int) -> None:
    while True:
        os.write(fd, bytes(4096))


def failing(name: str) -> Callable[[Path], AbstractContextManager[None]]:
    @contextmanager
    def fail(_: Path) -> Iterator[None]:
        with patch.object(os, name, side_effect=OSError(errno.EIO, os.strerror(errno.EIO))):
            yield

    return fail


@contextmanager
def without_locks(_: Path) -> Iterator[None]:
    with patch("fastfuse.cache.claims.set_lock", side_effect=OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))):
        yield


@contextmanager
def without_thread(_: Path) -> Iterator[None]:
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name == "cache writer":
            raise RuntimeError("can't start new thread")
        start(thread)

    with patch.object(threading.Thread, "start", fail):
        yield


@dataclass(frozen=True)
class Fault:
    name: str
    # It lasts as long as the context that this returns, or for good.
    happens: Callable[[Path], AbstractContextManager[None] | None]
    # The failure counted while the tier is open, and by those who open it later; None: it depends.
    live: str | None
    later: str | None
    # A line that the log has to have.
    line: str = ""


FAULTS = (
    Fault("a bit is flipped", each_segment(flip), "corrupt", "corrupt"),
    Fault("segments are truncated", each_segment(lambda data: data[: len(data) // 3]), "corrupt", "corrupt"),
    Fault("segments are lost in a power failure", each_segment(lambda data: bytes(len(data))), "corrupt", "corrupt"),
    Fault("segments are those of others", swap, None, "corrupt"),
    Fault("segments are removed", unlink_segments, None, None),
    Fault("the index is truncated", index_is(lambda data: data[: len(data) // 2]), None, None),
    Fault("the index is none", index_is(lambda data: b"no index" * (len(data) // 8)), "index", None, "begins anew"),
    Fault("the index is empty", index_is(lambda _: b""), None, None),
    Fault("rows are of no type", rows_are("digests = 'x', offset = 'y', end = 'z'"), None, None),
    Fault("rows begin between two bytes", rows_are("start = start + 0.5"), None, None),
    Fault("rows lead nowhere", rows_are("offset = -1"), None, None),
    Fault("rows lead beyond", rows_are("offset = offset + (1 << 39)"), "corrupt", "corrupt"),
    Fault("rows are too long", rows_are("end = 1 << 62"), "corrupt", "corrupt"),
    Fault("the index is locked", locked_index, "index", "index"),
    Fault("the directory is removed", shutil.rmtree, None, None),
    Fault("the disk is full", full, None, None),
    Fault("the disk cannot be read", failing("preadv"), "disk", "disk"),
    Fault("the disk cannot be written", failing("pwrite"), "disk", "disk"),
    Fault("nothing can be claimed", without_locks, "disk", "disk"),
    Fault("no thread can be started", without_thread, None, "disk", "see ulimit -u and pids.max"),
)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    with tmpfs(tmp_path, "size=24m"):
        yield tmp_path / "cache"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastfuse.cache.catalog._WRITER_WAITS_S", 0.05)
    monkeypatch.setattr(writer, "_PAUSE_S", 0.0)


async def read(directory: Path, counters: Counters, *, step: int = 1, fault: Fault | None = None) -> None:
    """Read every `step`-th object twice, and before `fault` happens every second one."""
    store = CountingStore(DATA)
    async with tier(store, settings_of(directory, size_bytes=20 * MIB), counters) as reader:
        for key in [*DATA][::2] if fault is not None else ():
            await reader.get(store.ref(key), 0, len(DATA[key]))
        happening = None if fault is None else await trio.to_thread.run_sync(fault.happens, directory)
        with happening or nullcontext():
            for key in 2 * [*DATA][::step]:
                assert bytes(await reader.get(store.ref(key), 0, len(DATA[key]))) == DATA[key]


def told(counters: Counters) -> dict[str, int]:
    counts = {kind: counters.get("fastfuse_cache_failures", kind) for kind in CACHE_FAILURES}
    return {kind: count for kind, count in counts.items() if count}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_reads_go_on_through_a_fault(fault: Fault, directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    counters = Counters()
    await read(directory, Counters(), step=2)
    await read(directory, counters, fault=fault)
    if fault.live is not None:
        assert [*told(counters)] == [fault.live]
    failures = [line for line in caplog.messages if "no room beyond" not in line]
    assert len(failures) == len(told(counters)), failures  # one line each
    await read(directory, Counters())  # and whoever comes later


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_a_tier_is_used_after_a_fault(fault: Fault, directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    await read(directory, Counters(), step=2)
    counters = Counters()
    with fault.happens(directory) or nullcontext():
        await read(directory, counters)
    if fault.later is not None:
        assert [*told(counters)] == [fault.later]
    assert fault.line in caplog.text
    if fault.happens is full:
        (directory.parent / "others").unlink()
    await read(directory, Counters())
    counters = Counters()
    await read(directory, counters)
    assert counters.get("fastfuse_cache_bytes", "served") == 2 * sum(map(len, DATA.values()))
    assert told(counters) == {}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_writer_that_ends_unforeseen_claims_nothing(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, counters, may_fail = CountingStore(DATA), Counters(), threading.Event()

    def fail(*_: object) -> None:
        may_fail.wait(30)
        raise RuntimeError("unforeseen")

    with patch.object(writer.Writer, "_write", fail):
        async with tier(store, settings_of(directory, size_bytes=20 * MIB), counters) as reader:
            assert isinstance(reader, CachedReader)
            for key in DATA:
                assert bytes(await reader.get(store.ref(key), 0, len(DATA[key]))) == DATA[key]
            assert reader.writer.queued_bytes > 0
            may_fail.set()
            with trio.fail_after(30):
                await trio.to_thread.run_sync(reader.writer._thread.join)
            assert reader._claims._held == {}
            assert reader._claims.take(1, 0, 4)
            assert reader.writer.offer(Range(1, 0, 0, memoryview(b"late"), None))
            assert reader._claims._held == {}
            assert reader.writer.queued_bytes == 0  # or `warm` would wait for ever
            await trio.testing.wait_all_tasks_blocked()
            assert "is not used any more: RuntimeError('unforeseen')" in caplog.text
    await read(directory, Counters())


def test_a_disk_that_cannot_be_written_is_no_reason_to_fail(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    trio.run(partial(read, directory, Counters()))
    subprocess.run(["mount", "-o", "remount,ro", str(directory.parent)], check=True)
    trio.run(partial(read, directory, Counters()))
    assert "cannot be used; reads come from S3" in caplog.text


async def test_a_tier_gives_room_back_once_the_disk_is_full(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    await read(directory, Counters())
    store, settings = CountingStore(DATA), settings_of(directory, size_bytes=20 * MIB, min_free_bytes=2 * MIB)
    counters = Counters()
    async with tier(store, settings, counters) as reader:
        await reader.get(store.ref("0"), 0, len(DATA["0"]))
        full(directory)
        with trio.fail_after(30):
            while free_bytes(directory) < 2 * MIB:  # noqa: ASYNC110 - nothing tells when the tier has looked
                await trio.sleep(0.05)
        assert bytes(await reader.get(store.ref("0"), 0, len(DATA["0"]))) == DATA["0"]
    assert caplog.text.count(" of 20 MiB: its disk has no room beyond --cache-min-free (2 MiB)") == 1
    assert not told(counters)


async def test_what_a_tier_has_no_room_for_is_declined_and_no_failure(directory: Path) -> None:
    counters = Counters()
    with patch.object(writer.Writer, "_roll", return_value=False):
        await read(directory, counters)
    found = {what: counters.get("fastfuse_cache_bytes", what) for what in ("written", "dropped", "declined")}
    assert found == {"written": 0, "dropped": 0, "declined": 2 * sum(map(len, DATA.values()))}


async def test_a_tier_whose_directory_was_removed_is_shown_as_not_used(directory: Path) -> None:
    store, counters = CountingStore(DATA), Counters()
    async with tier(store, settings_of(directory, size_bytes=20 * MIB), counters) as reader:
        assert isinstance(reader, CachedReader)
        await reader.get(store.ref("0"), 0, len(DATA["0"]))
        await trio.to_thread.run_sync(shutil.rmtree, directory)
        with trio.fail_after(30):
            while not reader.writer.is_gone:  # noqa: ASYNC110 - nothing tells when the tier has looked
                await trio.sleep(0.05)
    assert [counters.get(f"fastfuse_cache_{name}_bytes") for name in ("size", "used")] == [0, 0]


async def test_clear_makes_room_on_a_full_disk(directory: Path) -> None:
    settings = settings_of(directory, size_bytes=20 * MIB)
    await read(directory, Counters())
    prepare(settings, os.geteuid())
    with closing(open_cache(settings, os.geteuid())) as cache:
        full(directory)
        assert upkeep.clear(cache)["busy_segments"] == 0
        assert upkeep.status(cache)["segments"] == 0
    assert segments(directory) == []
    assert free_bytes(directory) >= 2 * MIB


def free_bytes(directory: Path) -> int:
    there = os.statvfs(directory)
    return there.f_bavail * there.f_frsize

"""Tiers serve what is kept, fetch what is missing, and share it on their node."""

import errno
import math
import os
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from fastfuse.cache import reader as reader_module
from fastfuse.cache import writer
from fastfuse.cache.catalog import Extent, Index, identity
from fastfuse.cache.claims import Claims
from fastfuse.cache.directory import open_cache
from fastfuse.cache.hanging_disk import OFF_S, Disk
from fastfuse.cache.reader import CachedReader
from fastfuse.cache.segments import DamagedError, Filling, Segments
from fastfuse.errors import DeadlineError, IntegrityError, UnavailableError
from fastfuse.metrics import Counters
from fastfuse.s3.base import RangeReader
from fastfuse.s3.buffers import PartBuffers
from tests.cache.node import KIB, MIB, CountingStore, content, settings_of, tier

BIG = content("big", 3 * MIB + 12_345)


async def test_every_cut_of_what_is_kept_comes_back(tmp_path: Path) -> None:
    data = {f"{n}": content(f"{n}", size) for n, size in enumerate((39_000, 1, 5000, 300_000, 260_001, 39_000, 39_001))}
    store = CountingStore(data | {"big": BIG})
    async with tier(store, settings_of(tmp_path / "cache")) as reader:
        for key, whole in (data | {"big": BIG}).items():
            await reader.get(store.ref(key), 0, len(whole))
    store.fetched.clear()
    async with tier(store, settings_of(tmp_path / "cache")) as reader:
        for key, whole in data.items():
            assert await reader.get(store.ref(key), 0, len(whole)) == whole
        for start, end in ((0, 1), (4095, 4097), (262_143, 262_145), (1_000_000, 1_262_145), (len(BIG) - 1, len(BIG))):
            assert await reader.get(store.ref("big"), start, end) == BIG[start:end]
    assert not store.fetched


async def test_a_disk_that_hangs_keeps_no_more_threads_than_asked_it_at_once_and_is_used_again_once_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    data = {f"{n}": content(f"{n}", 39_000) for n in range(8)}
    store, counters, asked, answers = CountingStore(data), Counters(), list[int](), threading.Event()
    refs = [store.ref(key) for key in data]
    async with tier(store, settings_of(tmp_path / "cache")) as reader:
        for ref in refs:
            await reader.get(ref, 0, ref.size_bytes)
    store.fetched.clear()
    read = Segments.read

    def hang(segments: Segments, extent: Extent, seed: int, start: int, end: int, into: memoryview) -> None:
        asked.append(start)
        answers.wait()
        read(segments, extent, seed, start, end, into)

    find, looked_for = Index.find, list[int]()

    def note(index: Index, object_id: int, start: int, end: int) -> list[Extent]:
        looked_for.append(object_id)
        return find(index, object_id, start, end)

    async def read_all(reader: RangeReader) -> None:
        async with trio.open_nursery() as nursery:
            for ref in refs:
                nursery.start_soon(reader.get, ref, 0, ref.size_bytes)

    async with tier(store, settings_of(tmp_path / "cache"), counters) as reader:
        assert isinstance(reader, CachedReader)
        monkeypatch.setattr(Segments, "read", hang)
        monkeypatch.setattr(Index, "find", note)
        mock_clock.autojump_threshold = 0
        for _ in range(3):
            await read_all(reader)
            await trio.sleep(OFF_S + 1)
        assert len(store.fetched) == 24
        assert len(looked_for) == len(refs)  # the index lies on that disk, too, and the loop reads it
        assert counters.get("fastfuse_cache_failures", "disk") == len(refs)
        mock_clock.autojump_threshold = math.inf
        answers.set()
        while not reader.is_used:
            await trio.lowlevel.checkpoint()
        await read_all(reader)
        assert (len(asked), len(store.fetched)) == (2 * len(refs), 24)


async def test_a_disk_is_off_once_an_answer_is_late_that_nobody_waits_for(mock_clock: MockClock) -> None:
    disk, answers = Disk(10.0), threading.Event()

    def hang() -> None:
        answers.wait()

    with trio.CancelScope() as reading:
        reading.cancel()
        await disk.ask(hang)
    was_off = [disk.is_off]
    mock_clock.jump(10.0)
    was_off.append(disk.is_off)
    assert was_off == [False, True]
    answers.set()
    while disk.is_off:
        await trio.lowlevel.checkpoint()


async def test_a_disk_that_hangs_for_threads_without_the_interpreter_is_off_until_one_read_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    store, asked, answers = CountingStore({"a": content("a", 39_000)}), list[int](), threading.Event()
    async with tier(store, settings_of(tmp_path / "cache")) as reader:
        assert isinstance(reader, CachedReader)
        await reader.get(store.ref("a"), 0, 39_000)

        def hang(_: Segments, number: int) -> None:
            asked.append(number)
            answers.wait()

        monkeypatch.setattr(Segments, "probe", hang)
        mock_clock.autojump_threshold = 0
        for _ in range(3):
            reader.note_hang(7, 10.0)
            await trio.sleep(OFF_S + 1)
            assert not reader.is_used
        mock_clock.autojump_threshold = math.inf
        answers.set()
        while not reader.is_used:
            await trio.lowlevel.checkpoint()
        assert asked == [7]


def test_a_probe_reads_a_segment_and_fails_where_there_is_none(tmp_path: Path) -> None:
    directory_fd = os.open(tmp_path, os.O_RDONLY)
    segments = Segments(directory_fd)
    (tmp_path / "7.segment").write_bytes(bytes(4096))
    (tmp_path / "8.segment").touch()
    segments.probe(7)
    with pytest.raises(DamagedError):
        segments.probe(8)
    with pytest.raises(FileNotFoundError):
        segments.probe(9)
    os.close(directory_fd)


@pytest.mark.parametrize(
    ("kept", "asked", "missing"),
    [
        ([(0, 1 * MIB)], (512 * KIB, 2 * MIB), [(1 * MIB, 2 * MIB)]),
        ([(1 * MIB, 2 * MIB)], (0, len(BIG)), [(0, 1 * MIB), (2 * MIB, len(BIG))]),
        ([(0, 4 * KIB), (8 * KIB, 300 * KIB)], (100, 9000), [(4 * KIB, 8 * KIB)]),
        ([(3 * MIB, len(BIG))], (3 * MIB + 5, len(BIG) - 1), []),
        ([(0, 700 * KIB), (600 * KIB, 1 * MIB)], (1, 1 * MIB), []),
    ],
)
async def test_only_what_is_missing_of_a_range_is_fetched(
    tmp_path: Path, kept: list[tuple[int, int]], asked: tuple[int, int], missing: list[tuple[int, int]]
) -> None:
    store = CountingStore({"big": BIG})
    ref = store.ref("big")
    async with tier(store, settings_of(tmp_path / "cache")) as reader:
        for start, end in kept:
            await reader.get(ref, start, end)
    store.fetched.clear()
    async with tier(store, settings_of(tmp_path / "cache")) as reader:
        assert bytes(await reader.get(ref, *asked)) == BIG[slice(*asked)]
    assert store.fetched == [("big", start, end) for start, end in missing]


async def test_without_memory_a_kept_range_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    store = CountingStore({"big": BIG})
    async with tier(store, settings_of(tmp_path / "cache")) as reader:
        await reader.get(store.ref("big"), 0, MIB)
    async with tier(store, settings_of(tmp_path / "cache")) as reader:
        monkeypatch.setattr(PartBuffers, "take", no_memory)
        assert bytes(await reader.get(store.ref("big"), 0, MIB)) == BIG[:MIB]
        assert isinstance(reader, CachedReader)
        assert reader.is_used
    assert store.fetched == 2 * [("big", 0, MIB)]


async def test_another_version_is_another_object_and_one_without_etag_is_not_kept(tmp_path: Path) -> None:
    """HEAD tells whole seconds, and the listings of some services fractions of them."""
    store, second_ns = CountingStore({"a": b"old" * 1000}), 10**9
    ref = replace(store.ref("a"), modified_ns=1_700_000_000 * second_ns)
    async with tier(store, settings_of(tmp_path / "cache")) as reader:
        for later_ns, fetches in ((0, 1), (second_ns - 1, 1), (second_ns, 2), (-1, 3)):
            await reader.get(replace(ref, modified_ns=ref.modified_ns + later_ns), 0, 3000)
            assert len(store.fetched) == fetches
        for fetches in (4, 5):
            await reader.get(replace(store.ref("a"), etag=""), 0, 3000)
            assert len(store.fetched) == fetches
        assert bytes(await reader.get(store.put("a", b"new" * 1000), 0, 3000)) == b"new" * 1000


async def test_nothing_is_kept_of_an_object_that_has_not_the_checksum_of_the_service(tmp_path: Path) -> None:
    """The service's checksum shows with the last piece only: a later process would not fetch, and so not check."""
    store, settings = CountingStore({"big": BIG}), settings_of(tmp_path / "cache")
    ref = store.ref("big")

    async def fail_the_last() -> None:
        if store.fetched[-1][2] == len(BIG):
            raise IntegrityError("the checksum of all that was fetched is wrong")

    store.hold = fail_the_last
    async with tier(store, settings) as reader:
        await reader.get(ref, 0, MIB)
    forgotten = list[bool]()
    async with tier(store, settings) as reader:
        assert isinstance(reader, CachedReader)
        reader.forgets = lambda: forgotten.append(True)
        await reader.get(ref, 0, 2 * MIB)  # the first half is kept, the second is on its way to the disk
        assert not forgotten
        with pytest.raises(IntegrityError):
            await reader.get(ref, 2 * MIB, len(BIG))
        assert forgotten
        await reader.get(ref, 0, MIB)
    async with tier(store, settings) as reader:
        await reader.get(ref, 0, 2 * MIB)
    assert store.fetched[-2:] == [("big", 0, MIB), ("big", 0, 2 * MIB)]


async def test_whoever_waits_for_a_fetch_that_fails_fetches_itself(tmp_path: Path) -> None:
    store = CountingStore({"big": BIG})
    ref, settings = store.ref("big"), settings_of(tmp_path / "cache")
    fetching, failing = trio.Event(), trio.Event()

    async def fail_the_first() -> None:
        if len(store.fetched) == 1:
            fetching.set()
            await failing.wait()
            raise UnavailableError("the service is away")

    store.hold = fail_the_first
    got: list[bytes] = []

    async def read_and_fail() -> None:
        with pytest.raises(UnavailableError):
            await one.get(ref, 0, MIB)

    async def read() -> None:
        await fetching.wait()
        with trio.CancelScope() as looked:
            looked.cancel()
            await other.get(ref, 0, MIB)  # it waits
        assert looked.cancelled_caught
        failing.set()
        got.append(bytes(await other.get(ref, 0, MIB)))

    async with tier(store, settings) as one, tier(store, settings) as other, trio.open_nursery() as nursery:
        nursery.start_soon(read_and_fail)
        nursery.start_soon(read)
    assert got == [BIG[:MIB]]
    assert len(store.fetched) == 2


@pytest.mark.parametrize(("deadline_s", "waits_s"), [(60, 10), (6, 1)])
async def test_nobody_waits_longer_than_the_bound_for_a_claim(
    tmp_path: Path, autojump_clock: MockClock, deadline_s: float, waits_s: float
) -> None:
    store = CountingStore({"big": BIG})
    ref, settings = store.ref("big"), settings_of(tmp_path / "cache")
    async with tier(store, settings, deadline_s=deadline_s) as reader:
        with closing(open_cache(settings, os.geteuid())) as cache:
            claims = Claims(cache.claims_fd)
            assert claims.take(identity("http://s3.test", ref)[0], 0, 4096)
            began_s = trio.current_time()
            assert bytes(await reader.get(ref, 0, MIB)) == BIG[:MIB]
            assert waits_s <= trio.current_time() - began_s < waits_s + 0.1
            store.hold = trio.sleep_forever
            began_s = trio.current_time()
            with pytest.raises(DeadlineError, match=f"'big' could not be read within {deadline_s} s") as caught:
                await reader.get(ref, 0, MIB)
            assert caught.value.hint == DeadlineError.TOO_SLOW_HINT
            assert trio.current_time() - began_s == pytest.approx(deadline_s)
            store.hold = trio.lowlevel.checkpoint
            assert bytes(await reader.get(ref, MIB, 2 * MIB)) == BIG[MIB : 2 * MIB]  # is nobody's


async def test_nobody_waits_for_a_claim_that_no_file_system_gives(tmp_path: Path, autojump_clock: MockClock) -> None:
    store = CountingStore({"big": BIG})
    refused = patch("fastfuse.cache.claims.set_lock", side_effect=OSError(errno.ENOLCK, os.strerror(errno.ENOLCK)))
    async with tier(store, settings_of(tmp_path / "cache")) as reader:
        with refused, trio.fail_after(1):
            assert bytes(await reader.get(store.ref("big"), 0, MIB)) == BIG[:MIB]


async def test_a_disk_that_is_off_once_the_rest_of_a_range_is_there_is_not_asked(tmp_path: Path) -> None:
    store = CountingStore({"big": BIG})
    ref, settings = store.ref("big"), settings_of(tmp_path / "cache")
    async with tier(store, settings) as reader:
        await reader.get(ref, 0, MIB)
    async with tier(store, settings) as reader:
        assert isinstance(reader, CachedReader)
        disk = reader._disk

        async def fail() -> None:
            disk.leave_alone()

        store.hold = fail
        with patch.object(Segments, "read", side_effect=AssertionError):
            assert bytes(await reader.get(ref, 0, 2 * MIB)) == BIG[: 2 * MIB]


async def test_the_files_of_an_idle_tier_do_not_become_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_TOUCH_EVERY_S", 0.0)
    settings = settings_of(tmp_path / "cache")
    async with tier(CountingStore(), settings):
        files = [*settings.directory.iterdir()]
        assert {file.name for file in files} >= {"claims", "filter", "index.db", "index.db-wal", "index.db-shm"}
        for file in files:
            os.utime(file, (0, 0))
        with trio.fail_after(30):
            while any(file.stat().st_mtime == 0 or file.stat().st_atime == 0 for file in files):  # noqa: ASYNC110
                await trio.sleep(0.05)


async def test_a_claim_dies_with_its_holder(tmp_path: Path) -> None:
    """The kernel closes the files of a process that dies."""
    store, settings = CountingStore({"big": BIG}), settings_of(tmp_path / "cache")
    async with tier(store, settings) as reader, trio.open_nursery() as nursery:
        with closing(open_cache(settings, os.geteuid())) as cache:
            assert Claims(cache.claims_fd).take(identity("http://s3.test", store.ref("big"))[0], 0, MIB)
            nursery.start_soon(reader.get, store.ref("big"), 0, MIB)
            await trio.testing.wait_all_tasks_blocked()
            assert store.fetched == []
    assert store.fetched == [("big", 0, MIB)]


async def test_the_end_of_a_tier_says_how_much_its_disk_has_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, counters, takes = CountingStore({"big": BIG}), Counters(), threading.Event()
    monkeypatch.setattr(Filling, "put", lambda *_: takes.wait())
    monkeypatch.setattr(reader_module, "FLUSH_S", 0.01)
    async with tier(store, settings_of(tmp_path / "cache"), counters) as reader:
        await reader.get(store.ref("big"), 0, 2 * MIB)
    takes.set()
    assert isinstance(reader, CachedReader)
    await trio.to_thread.run_sync(reader.writer._thread.join)
    reader.cache.close()
    assert f"the cache {tmp_path}/cache does not keep 2 MiB: its disk has not taken them in 0.01 s" in caplog.text
    assert counters.get("fastfuse_cache_failures", "disk") == 1
    assert counters.get("fastfuse_cache_bytes", "dropped") == 2 * MIB


def used_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


async def test_the_size_is_held_and_a_share_of_an_epoch_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of many sizes; 0.45 is what the stable share of a scan of twice the size has to bring.

    The next range is asked for when the one before is written, so the outcome does not depend on the thread's pace.
    """
    monkeypatch.setattr(writer, "_GATHER_S", 0.0)
    monkeypatch.setattr(writer, "_TICK_S", 3600.0)
    store = CountingStore({f"{n}": content(f"{n}", 40_000 + 7919 * (n % 100)) for n in range(300)})
    refs = [store.ref(f"{n}") for n in range(300)]
    total_bytes = sum(ref.size_bytes for ref in refs)
    settings, counters = settings_of(tmp_path / "cache", size_bytes=total_bytes // 2), Counters()
    async with tier(store, settings, counters) as reader:
        assert isinstance(reader, CachedReader)
        for _ in range(4):
            for ref in refs:
                await reader.get(ref, 0, ref.size_bytes)
                while reader.writer.queued_bytes:
                    await trio.lowlevel.checkpoint()
            assert used_bytes(tmp_path / "cache") <= settings.size_bytes
    served_bytes = counters.get("fastfuse_cache_bytes", "served")
    assert served_bytes >= 0.45 * 3 * total_bytes
    assert served_bytes + store.fetched_bytes == 4 * total_bytes

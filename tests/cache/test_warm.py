"""What a warm-up fetches, keeps, evicts and says; and what `fastfuse cache` does with the result."""

import errno
import json
import os
import random
import shutil
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from bench.s3server import LoopbackServer, MemoryObjects
from fastfuse.cache import upkeep, writer
from fastfuse.cache import warm as warm_module
from fastfuse.cache.directory import open_cache
from fastfuse.cache.reader import CachedReader
from fastfuse.cache.segments import Filling
from fastfuse.cache.settings import CacheSettings
from fastfuse.cache.warm import Warming, WarmState
from fastfuse.cli.cache_work import _incomplete, _rows_of
from fastfuse.errors import ConfigurationError, ObjectChangedError
from fastfuse.objects import ObjectRef
from tests.cache.node import MIB, CountingStore, content, settings_of, tier
from tests.index.indexes import table_of
from tests.mounting import access, mounted, run_fastfuse
from tests.terminals import finished_on_terminal, terminal

URL = "http://s3.test"


def store_of(*sizes: int) -> CountingStore:
    return CountingStore({f"{number:02}": content(f"{number}", size) for number, size in enumerate(sizes)})


def refs_in(store: CountingStore, numbers: Sequence[int]) -> list[ObjectRef]:
    return [store.ref(f"{number:02}") for number in numbers]


async def warmed(
    store: CountingStore,
    settings: CacheSettings,
    refs: Sequence[ObjectRef],
    *,
    checks: bool = False,
    memory_bytes: int = 256 * MIB,
) -> WarmState:
    """Warm up in a tier of its own, as a command does; what is fetched is noted anew."""
    store.fetched.clear()
    async with tier(store, settings, takes_places=True) as reader:
        assert isinstance(reader, CachedReader)
        warming = Warming(
            reader=reader, most_gets=2, checks=checks, limit_bytes=settings.size_bytes, memory_bytes=memory_bytes
        )
        await warming.run(lambda: refs)
        return warming.state


def rot(directory: Path) -> None:
    segment = min(directory.glob("*.segment"), key=lambda path: int(path.stem, 16))
    with segment.open("r+b") as file:
        file.seek(5000)
        byte = file.read(1)
        file.seek(5000)
        file.write(bytes([byte[0] ^ 1]))


async def test_check_reads_what_is_kept_and_fetches_again_what_is_damaged(tmp_path: Path) -> None:
    store, settings = store_of(3 * MIB, 3 * MIB), settings_of(tmp_path / "cache")
    refs = refs_in(store, [0, 1])
    await warmed(store, settings, refs)
    rot(settings.directory)
    await warmed(store, settings, refs)
    assert store.fetched == []
    assert (await warmed(store, settings, refs, checks=True)).missing_bytes == 0
    assert 0 < store.fetched_bytes < 6 * MIB
    await warmed(store, settings, refs, checks=True)
    assert store.fetched == []


async def test_what_cannot_be_kept_is_named_and_the_rest_is_fetched(tmp_path: Path) -> None:
    store, settings = store_of(1000, 1000, 1000), settings_of(tmp_path / "cache")
    gone, without_etag, good = refs_in(store, range(3))
    without_etag = replace(without_etag, etag="")
    gone = replace(gone, etag='"another"')
    state = await warmed(store, settings, [gone, without_etag, good])
    assert set(state.failures) == {gone.uri, without_etag.uri}
    assert (state.missing_bytes, state.fetched_bytes) == (2000, 1000)
    with pytest.raises(ObjectChangedError):
        await store.get(gone, 0, 1)


async def test_objects_without_an_etag_end_it_as_others_that_cannot_be_kept_do(tmp_path: Path) -> None:
    store, settings = store_of(1000), settings_of(tmp_path / "cache")
    (ref,) = refs_in(store, [0])
    state = await warmed(store, settings, [*(replace(ref, key=f"{n}", etag="") for n in range(300)), ref])
    assert (len(state.failures), store.fetched) == (100, [])


async def test_a_large_object_that_cannot_be_read_is_one_failure_and_does_not_end_it(tmp_path: Path) -> None:
    store, settings = store_of(1000, 1000), settings_of(tmp_path / "cache")
    gone, good = refs_in(store, range(2))
    gone = replace(gone, etag='"another"', size_bytes=2000 * MIB)
    state = await warmed(store, settings, [gone, good])
    assert (list(state.failures), state.fetched_bytes, state.has_no_room) == ([gone.uri], 1000, False)
    assert len(store.fetched) <= 4


async def test_an_error_of_the_disk_that_passes_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails before the fifth object is asked for. A second run fetches what it did not take."""
    monkeypatch.setattr(writer, "_PAUSE_S", 0.05)
    store, settings = store_of(*[2 * MIB] * 5), settings_of(tmp_path / "cache")
    refs, failures = refs_in(store, range(5)), list[OSError]()
    put = Filling.put

    def fail_once(filling: Filling, offset: int, data: memoryview) -> None:
        if not failures:
            failures.append(OSError(errno.EIO, "the disk fails"))
            raise failures[0]
        put(filling, offset, data)

    async def wait_for_failure() -> None:
        while len(store.fetched) >= 3 and not failures:  # noqa: ASYNC110 - the thread that writes knows no loop
            await trio.sleep(0.001)

    store.hold = wait_for_failure
    monkeypatch.setattr(Filling, "put", fail_once)
    state = await warmed(store, settings, refs)
    assert (state.has_no_room, state.is_given_up, len(store.fetched)) == (False, False, 5)
    assert 0 < state.missing_bytes <= 8 * MIB
    state = await warmed(store, settings, refs)
    assert (state.missing_bytes, 0 < len(store.fetched) <= 4) == (0, True)


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_disk_that_takes_nothing_is_given_up_and_not_taken_for_a_full_one(
    hangs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_module, "_MOST_WAIT_S", 0.2)
    store, settings, is_over = store_of(*[2 * MIB] * 20), settings_of(tmp_path / "cache"), threading.Event()
    close = CachedReader.aclose

    async def answer_and_close(reader: CachedReader) -> None:
        is_over.set()
        await close(reader)

    def fail(*_: object) -> None:
        if hangs:
            is_over.wait()
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(Filling, "put", fail)
    monkeypatch.setattr(CachedReader, "aclose", answer_and_close)
    state = await warmed(store, settings, refs_in(store, range(20)), memory_bytes=8 * MIB)
    assert (state.has_no_room, state.is_given_up, state.missing_bytes) == (False, True, 40 * MIB)
    assert len(store.fetched) < 20
    error = _incomplete(state, settings)
    assert str(error) == f"40 MiB are not kept: the disk of {settings.directory} takes nothing"
    assert "log" in error.hint


async def test_a_directory_that_is_removed_ends_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_TICK_S", 0.05)
    store, settings = store_of(*[2 * MIB] * 20), settings_of(tmp_path / "cache")
    refs = refs_in(store, range(20))
    await warmed(store, settings, refs[:5])

    async def remove() -> None:
        shutil.rmtree(settings.directory, ignore_errors=True)

    store.hold = remove
    with trio.fail_after(warm_module._MOST_WAIT_S / 2):
        state = await warmed(store, settings, refs, memory_bytes=8 * MIB)
    assert (state.has_no_room, state.missing_bytes) == (False, 40 * MIB)
    assert str(_incomplete(state, settings)) == f"40 MiB are not kept: the cache {settings.directory} was removed"


async def test_it_takes_the_place_of_what_was_kept_before_but_not_of_its_own_or_what_is_pinned(tmp_path: Path) -> None:
    """A tier of 64 MiB has room for 62 segments of 1 MiB."""
    store, settings = store_of(*[8 * MIB] * 20), settings_of(tmp_path / "cache")
    before, pinned, large = refs_in(store, range(4)), refs_in(store, [4]), refs_in(store, range(5, 20))
    await warmed(store, settings, [*before, *pinned])
    with closing(open_cache(settings, os.geteuid())) as cache:
        assert upkeep.pin(cache, pinned, URL, is_pinned=True)["segments"] == 8
    state = await warmed(store, settings, large)
    assert state.has_no_room
    assert 40 * MIB <= 15 * 8 * MIB - state.missing_bytes <= 54 * MIB
    assert store.fetched_bytes <= 64 * MIB
    again = await warmed(store, settings, large)
    assert again.missing_bytes <= state.missing_bytes
    await warmed(store, settings, pinned)
    assert store.fetched == []
    with closing(open_cache(settings, os.geteuid())) as cache:
        assert upkeep.pin(cache, before, URL, is_pinned=False)["kept_bytes"] == 0
        upkeep.unpin_all(cache)
        assert upkeep.status(cache)["pinned_bytes"] == 0


async def test_what_is_there_of_the_objects_stays_although_others_are_younger(tmp_path: Path) -> None:
    store, settings = store_of(*[8 * MIB] * 10), settings_of(tmp_path / "cache")
    first, younger, rest = (refs_in(store, numbers) for numbers in (range(3), range(3, 7), range(7, 10)))
    await warmed(store, settings, first)
    await warmed(store, settings, younger)
    state = await warmed(store, settings, [*first, *rest])
    assert (state.missing_bytes, store.fetched_bytes) == (0, 24 * MIB)


async def test_where_pins_leave_too_little_room_what_comes_first_is_kept(tmp_path: Path) -> None:
    store, settings = store_of(*[8 * MIB] * 12), settings_of(tmp_path / "cache")
    pinned, others = refs_in(store, range(5)), refs_in(store, range(5, 12))
    await warmed(store, settings, pinned)
    with closing(open_cache(settings, os.geteuid())) as cache:
        upkeep.pin(cache, pinned, URL, is_pinned=True)
    state = await warmed(store, settings, others)
    assert state.has_no_room
    assert (await warmed(store, settings, others[:2])).there_bytes == 16 * MIB


def test_a_list_of_hints_names_files_as_a_mount_takes_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table, hints = table_of(["a", "d/b", "d/e/c"]), tmp_path / "hints"
    hints.write_text("./d//e/./c\na\n/mnt/d/b\n./a\n")
    assert [ref.key for ref in table.refs(_rows_of(hints, table, "/mnt"))] == ["d/e/c", "a", "d/b"]
    assert not caplog.records
    hints.write_text("a\nd\nd/b/\nabsent\n.\n")
    assert [ref.key for ref in table.refs(_rows_of(hints, table, "/mnt"))] == ["a"]
    assert caplog.messages == [f"4 paths of {hints} are no files of /mnt, such as 'd'"]
    for text in ("d\n", "../a\n"):
        hints.write_text(text)
        with pytest.raises(ConfigurationError, match="are no files of /mnt"):
            _rows_of(hints, table, "/mnt")
    hints.write_text("")
    assert _rows_of(hints, table, "/mnt") == []


DATA = {f"d/{n}": random.Random(n).randbytes(2 * MIB if n < 3 else 39_000) for n in range(20)}


@pytest.mark.fuse
def test_commands(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o700)  # nobody may not enter
    cache = ("--cache", str(tmp_path / "cache"), "--cache-size", "1GiB", "--cache-min-free", "0")
    with LoopbackServer({"bucket": MemoryObjects(DATA)}) as server:
        warm = ("warm", "s3://bucket/d/", *cache, *access(server.endpoint_url))
        with terminal(*warm, "--limit", "2KiB/s", settings={"NO_COLOR": "1"}) as running:
            running.read_until("2 MiB fetched")  # the log says so after 5 s
            running.interrupt()
            assert running.finished() == 130
        assert "interrupted" in running.output
        before = server.count("GetObject")
        assert before == 1

        hints = tmp_path / "hints"
        hints.write_text("none\n19\n./18\n")
        some = run_fastfuse(*warm, "--hints", str(hints))
        assert (some.returncode, server.count("GetObject") - before) == (0, 2)
        assert "1 paths of" in some.stderr
        hints.write_text("none\n")
        none = run_fastfuse(*warm, "--hints", str(hints))
        assert (none.returncode, "are no files of s3://bucket/d/, such as 'none'" in none.stderr) == (2, True)
        exit_code, output = finished_on_terminal(*warm, columns=200, settings={"TERM": "dumb"})
        assert (exit_code, "\x1b" in output) == (0, False)
        assert server.count("GetObject") == len(DATA)
        assert sum(one.sent_bytes for one in server.requests if one.operation == "GetObject") == sum(
            map(len, DATA.values())
        )

        with mounted("s3://bucket/d/", server.endpoint_url, *cache) as mount:
            again = run_fastfuse("warm", str(mount.path))
            assert again.returncode == 0, again.stderr
            assert server.count("GetObject") == len(DATA) + 1  # a byte for the mount (L8)
            assert "in 0 GETs" in again.stdout
            assert run_fastfuse("cache", "clear", *cache).returncode == 0
            assert all(Path(mount.path, key[2:]).read_bytes() == data for key, data in DATA.items())
        verify = ("cache", "verify", *cache)
        assert run_fastfuse(*verify).returncode == 0
        rot(tmp_path / "cache")
        assert [run_fastfuse(*verify).returncode for _ in range(2)] == [1, 0]
        pinned = run_fastfuse("cache", "pin", "s3://bucket/d/", *cache, *access(server.endpoint_url))
        assert (pinned.returncode, "are not kept" in pinned.stdout) == (1, True)
        status = json.loads(run_fastfuse("cache", "status", "--json", *cache).stdout)
        assert 0 < status["pinned_bytes"] <= status["used_bytes"] < status["size_bytes"] == 1 << 30
    for words, message in (
        (("warm", "/tmp", "--shard", "1/2"), "MOUNTPOINT"),
        (("warm", "/tmp"), "nothing of fastfuse is mounted"),
        (("cache", "status", "--cache", str(tmp_path / "none")), "is not there"),
    ):
        refused = run_fastfuse(*words)
        assert message in refused.stderr
        assert refused.stderr.count("\n") <= 2

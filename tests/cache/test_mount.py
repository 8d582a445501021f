"""The tier behind real mounts: shared by two, warm for a third, in a directory that root may open, and nobody not."""

import hashlib
import os
import random
import re
import signal
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing
from itertools import islice, repeat
from pathlib import Path
from textwrap import dedent

import pytest

import fastfuse
from bench.s3server import ACCESS_DENIED, FaultRule, LoopbackServer, MemoryObjects, Stall
from fastfuse.sizes import format_size
from tests.cache.node import MIB
from tests.filesystem.test_supervisor import with_change
from tests.filesystem.waiting import wait_until
from tests.mounting import Mount, mounted, run_fastfuse
from tests.sagemaker.running.jobs import CHECKSUMS, channel, checksums, running, script
from tests.semantics.test_threads import has_threads

pytestmark = pytest.mark.fuse

# Threads wait for as long as a server of the tests takes on a busy machine, and nothing is fetched twice.
PATIENT = """
from fastfuse.filesystem.serving import direct_files
direct_files._patience_s = lambda _: 1000.0
"""
DATA = {f"d/{n}": random.Random(n).randbytes(5 * MIB + n if n < 2 else 39_000 + n) for n in range(60)}


def small(count: int) -> dict[str, bytes]:
    return {f"d/{n}": random.Random(n).randbytes(15_000 + n) for n in random.Random(1).sample(range(count), count)}


def is_right(mount: Mount, key: str, data: Mapping[str, bytes]) -> bool:
    """Read a file through the kernel, past pages that it has."""
    with open(mount.path / key[2:], "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return file.read() == data[key]


def all_right(mount: Mount, data: Mapping[str, bytes] = DATA) -> bool:
    return all(is_right(mount, key, data) for key in data)


def options_of(place: Path) -> tuple[str, ...]:
    return "--cache", str(place / "cache"), "--cache-size", "1GiB", "--cache-min-free", "0"


def told_of(place: Path) -> re.Pattern[str]:
    """What the status says once everything came from the cache."""
    size = format_size(sum(map(len, DATA.values())))
    return re.compile(rf"  cache     \S+ MiB of 1 GiB in {place}/cache, {size} served\n")


def test_a_node_fetches_each_byte_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`tmp_path` lies below a directory that only root may enter; a worker is nobody, and dies in between."""
    with_change(monkeypatch, PATIENT)
    os.chmod(tmp_path, 0o700)
    with LoopbackServer({"bucket": MemoryObjects(DATA)}) as server:

        def fetched_bytes() -> int:
            return sum(one.sent_bytes for one in server.requests if one.operation == "GetObject")

        with (
            mounted("s3://bucket/d/", server.endpoint_url, *options_of(tmp_path)) as one,
            mounted("s3://bucket/d/", server.endpoint_url, *options_of(tmp_path)) as other,
            ThreadPoolExecutor() as readers,
        ):
            assert all(readers.map(all_right, (one, other)))
            assert fetched_bytes() == sum(map(len, DATA.values())) + 2  # each mount reads a byte first (L8)
            assert one.log.count("WARNING") == other.log.count("WARNING") == 0
        with mounted("s3://bucket/d/", server.endpoint_url, *options_of(tmp_path)) as later:
            assert all_right(later)
            wait_until(lambda: told_of(tmp_path).search(run_fastfuse("status", str(later.path)).stdout) is not None)
            slow_gets = run_fastfuse("top", str(later.path)).stdout.partition("slow GETs")[2]
            assert slow_gets.count("\n") == 1  # the heading
        assert fetched_bytes() == sum(map(len, DATA.values())) + 3
    owner = (tmp_path / "cache").stat()
    assert (owner.st_uid, owner.st_mode & 0o777) == (65534, 0o700)
    assert {path.stat().st_uid for path in (tmp_path / "cache").iterdir()} == {65534}
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "cache").iterdir()} == {0}


def test_readers_of_the_largest_parts_share_the_smallest_memory_with_what_is_to_be_kept(tmp_path: Path) -> None:
    """The queue to the disk has a quarter of the target, and the parts no room for two."""
    data = {f"d/{n}": random.Random(n).randbytes(40 * MIB + n if n < 3 else 39_000 + n) for n in range(6)}
    options = (*options_of(tmp_path), "--memory-target", "128MiB", "--part-size", "32MiB")
    with (
        LoopbackServer({"bucket": MemoryObjects(data)}) as server,
        mounted("s3://bucket/d/", server.endpoint_url, *options) as mount,
        ThreadPoolExecutor() as readers,
    ):
        assert [*readers.map(lambda key: Path(mount.path, key[2:]).read_bytes() == data[key], data)] == [True] * 6
        assert "WARNING" not in mount.log


def test_parts_that_threads_fetch_are_fetched_once_by_a_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files come until threads fetch for both mounts, which they do from some time after the first.

    Some are small.
    """
    with_change(monkeypatch, PATIENT)
    contents = [random.Random(n).randbytes(5 * MIB // 4 + n if n % 4 else 39_000 + n) for n in range(8)]
    data = {f"d/{n}": contents[n % len(contents)] for n in range(2000)}
    options, unread, read = (*options_of(tmp_path), "--part-size", "1MiB"), iter(data), list[str]()

    def reads_next(*mounts: Mount) -> bool:
        read.append(next(unread))
        return all(readers.map(is_right, mounts, repeat(read[-1]), repeat(data)))

    with LoopbackServer({"bucket": MemoryObjects(data)}) as server, ThreadPoolExecutor() as readers:
        with (
            mounted("s3://bucket/d/", server.endpoint_url, *options) as one,
            mounted("s3://bucket/d/", server.endpoint_url, *options) as other,
        ):
            wait_until(lambda: reads_next(one) and has_threads(one))
            wait_until(lambda: reads_next(other) and has_threads(other))
            assert all(reads_next(one, other) for _ in range(24))
            assert one.log.count("WARNING") == other.log.count("WARNING") == 0
        with mounted("s3://bucket/d/", server.endpoint_url, *options) as later:
            assert all(is_right(later, key, data) for key in read)
        fetched_bytes = Counter[str]()
        for one_get in server.requests:
            if one_get.operation == "GetObject" and one_get.sent_bytes > 1:  # each mount reads a byte first (L8)
                fetched_bytes[one_get.key] += one_get.sent_bytes
    assert {key: fetched_bytes[key] for key in read} == {key: len(data[key]) for key in read}


def test_threads_get_and_read_the_small_files_that_are_kept_and_all_else_is_fetched(tmp_path: Path) -> None:
    """What is kept is damaged bit by bit: rows of the index, and a segment."""
    data = small(400)
    first, *others = data
    options = "--cache", str(tmp_path / "cache"), "--cache-size", "128MiB", "--cache-min-free", "0"

    with LoopbackServer({"bucket": MemoryObjects(data)}) as server:
        with mounted("s3://bucket/d/", server.endpoint_url, *options) as mount:
            unread = iter(others)
            wait_until(lambda: is_right(mount, next(unread), data) and has_threads(mount))
            server.faults.add(FaultRule(action=ACCESS_DENIED, operation="GetObject", key=first))
            with pytest.raises(PermissionError):
                is_right(mount, first, data)
            server.faults.clear()
            assert all_right(mount, data)
        segments = [*tmp_path.glob("cache/*.segment")]
        assert len(segments) > 1
        before = server.count("GetObject")
        with mounted("s3://bucket/d/", server.endpoint_url, *options) as mount:
            assert all_right(mount, data)
            assert has_threads(mount)
            assert server.count("GetObject") == before + 1  # (L8)
        with closing(sqlite3.connect(tmp_path / "cache" / "index.db")) as index, index:
            index.execute("UPDATE extents SET segment = -(object % 2) WHERE object % 3 = 0")
        with mounted("s3://bucket/d/", server.endpoint_url, *options) as mount:
            assert all_right(mount, data)
        segments[0].write_bytes(bytes(segments[0].stat().st_size))
        with mounted("s3://bucket/d/", server.endpoint_url, *options) as mount:
            assert all_right(mount, data)
            assert mount.log.count("a kept range cannot be used and is fetched again") == 1
            assert mount.log.count("WARNING") == 1


# What a thread hashes it has to decode from the path of a request first.
ODD_NAMES = (
    *("a b", "100%", "%41", "\u00e4/\u20ac", "q?x=1&y#z", "'\"", "~-_.", "deep/er/and/deeper", "\x7f", "%", "%2", "+"),
)


@pytest.mark.parametrize("filter_is", ["kept", "removed", "without bits", "full"])
def test_files_are_found_by_any_name_or_filter(filter_is: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without bits, which only a power failure could take, each may be fetched once more."""
    change = """
    from fastfuse.cache.reader import CachedReader
    keep = CachedReader.keep
    CachedReader.keep = lambda *it: (print("got by a thread", file=sys.stderr, flush=True), keep(*it))[1]
    """
    with_change(monkeypatch, change)
    names = random.Random(1).sample([f"{name}-{n}" for n in range(30) for name in ODD_NAMES], 30 * len(ODD_NAMES))
    data = {f"d/{name}": random.Random(name).randbytes(15_000 + n) for n, name in enumerate(names)}
    with LoopbackServer({"bucket": MemoryObjects(data)}) as server:
        with mounted("s3://bucket/d/", server.endpoint_url, *options_of(tmp_path)) as mount:
            assert all_right(mount, data)
            assert mount.log.count("got by a thread") > len(data) / 2
        path = tmp_path / "cache" / "filter"
        if filter_is == "removed":
            path.unlink()
        elif filter_is != "kept":
            path.write_bytes((b"\0" if filter_is == "without bits" else b"\xff") * path.stat().st_size)
        for _ in range(2):
            with mounted("s3://bucket/d/", server.endpoint_url, *options_of(tmp_path)) as mount:
                assert all_right(mount, data)
        # Each mount reads a byte first (L8).
        gets = Counter(one.key for one in server.requests if one.operation == "GetObject" and one.sent_bytes > 1)
    assert set(gets) == set(data)
    assert max(gets.values()) == (2 if filter_is == "without bits" else 1)


def test_what_was_replaced_under_the_same_etag_is_read_anew_after_a_refresh(tmp_path: Path) -> None:
    etag = '"00000000000000000000000000000000-1"'
    objects, new = MemoryObjects({}), {key: data[::-1] for key, data in DATA.items()}

    def put(data: Mapping[str, bytes], modified_s: int) -> None:
        for key, content in data.items():
            objects.put(key, content, etag=etag, modified_s=modified_s)

    put(DATA, 1_700_000_000)
    with (
        LoopbackServer({"bucket": objects}) as server,
        mounted("s3://bucket/d/", server.endpoint_url, *options_of(tmp_path)) as mount,
    ):
        assert all_right(mount, DATA)
        put(new, 1_700_000_001)
        assert run_fastfuse("refresh", str(mount.path)).returncode == 0
        assert all_right(mount, new)


# Python hears of what threads have got by requests of the kernel, and by what threads tell.
NO_LOOKS = f"{PATIENT}direct_files._LOOK_EVERY_S = 1000.0\n"


def small_files() -> dict[str, bytes]:
    """Files that are read in this order, and one whose neighbours nobody reads, so that it is not fetched ahead."""
    numbers = random.Random(1).sample(range(100, 400), 300)
    return {f"d/{n}": random.Random(n).randbytes(15_000 + n) for n in numbers} | {"d/last": bytes(range(256))}


def reads_until_threads_do(mount: Mount, unread: Iterator[str], data: Mapping[str, bytes]) -> list[str]:
    """Read files until threads have got three; return all that were read."""
    read, got = list[str](), 0
    while got < 3:
        read.append(next(unread))
        assert is_right(mount, read[-1], data)
        got += has_threads(mount)
    return read


def test_what_a_thread_has_got_last_is_kept_as_the_mount_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No request of the kernel comes after it, and what threads tell is not heard."""
    change = """
    import trio
    direct_files.DirectFiles._hear = lambda *_: trio.sleep_forever()
    """
    with_change(monkeypatch, NO_LOOKS + dedent(change))
    data = small_files()
    with LoopbackServer({"bucket": MemoryObjects(data)}) as server:
        with mounted("s3://bucket/d/", server.endpoint_url, *options_of(tmp_path)) as mount:
            read = reads_until_threads_do(mount, iter(data), data)
        before = len(server.requests)
        with mounted("s3://bucket/d/", server.endpoint_url, *options_of(tmp_path)) as mount:
            assert all(is_right(mount, key, data) for key in read)
        assert {one.key for one in server.requests[before:] if one.operation == "GetObject"}.isdisjoint(read[-3:])


# The disk takes nothing before a worker that ends has beaten ten times.
SLOW_DISK = """
import threading, time
from fastfuse.cache import segments
from fastfuse.cache.writer import Writer
from fastfuse.filesystem.serving import worker
worker.BEAT_EVERY_S = 0.05
close, write_all, takes = Writer.close, segments.write_all, threading.Event()
def close_slowly(self, patience_s):
    def take_after(beats):
        while self._counters.get("fastfuse_worker_beats") < beats:
            time.sleep(0.01)
        takes.set()
    threading.Thread(target=take_after, args=[self._counters.get("fastfuse_worker_beats") + 10], daemon=True).start()
    return close(self, patience_s)
Writer.close = close_slowly
segments.write_all = lambda *what: (takes.wait(), write_all(*what))
"""


@pytest.mark.parametrize("end", ["unmounted", "stopped with a file open"])
def test_what_waits_for_a_disk_at_the_end_is_written(end: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = {key: DATA[key] for key in ("d/0", "d/1")}
    with LoopbackServer({"bucket": MemoryObjects(data)}) as server:
        with monkeypatch.context() as patched, ExitStack() as files:
            with_change(patched, SLOW_DISK)
            with mounted("s3://bucket/d/", server.endpoint_url, *options_of(tmp_path)) as mount:
                assert all_right(mount, data)
                if end == "unmounted":
                    subprocess.run(["fusermount3", "-u", mount.path], check=True)
                    assert mount.wait() == 0
                else:
                    files.enter_context(open(mount.path / "0", "rb"))
                    assert mount.stop() == 0
                assert "the worker does not answer" not in mount.log
        before = len(server.requests)
        with mounted("s3://bucket/d/", server.endpoint_url, *options_of(tmp_path)) as mount:
            assert all_right(mount, data)
        fetched = [one for one in server.requests[before:] if one.operation == "GetObject"]
        assert sum(one.sent_bytes for one in fetched) == 1  # each mount reads a byte first (L8)


def test_who_waits_for_a_threads_file_makes_no_other_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The thread ends after one that has read from the tier, which Python has not heard of yet."""
    with_change(monkeypatch, NO_LOOKS)
    data, last = small_files(), "d/last"

    with (
        LoopbackServer({"bucket": MemoryObjects(data)}) as server,
        ThreadPoolExecutor(1) as readers,
        mounted("s3://bucket/d/", server.endpoint_url, *options_of(tmp_path)) as one,
        mounted("s3://bucket/d/", server.endpoint_url, *options_of(tmp_path)) as other,
    ):
        unread = iter(data)
        kept = next(unread)
        assert is_right(other, kept, data)
        reads_until_threads_do(one, unread, data)
        assert is_right(one, kept, data)
        rule = server.faults.add(FaultRule(action=Stall(0), operation="GetObject", key=last, times=1))
        reading = readers.submit(is_right, one, last, data)
        wait_until(lambda: server.faults.hits(rule) > 0)
        assert is_right(one, kept, data)
        server.faults.remove(rule)
        assert reading.result()
        assert is_right(other, last, data)
        assert server.count("GetObject", last) == 1


def test_a_threads_file_is_not_fetched_again_before_it_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    change = """
    from fastfuse.cache import catalog
    from fastfuse.cache.claims import Claims
    catalog._WRITER_WAITS_S = 60.0
    take = Claims.take
    Claims.take = lambda *it: take(*it) or print("is claimed", file=sys.stderr, flush=True)
    """
    with_change(monkeypatch, PATIENT + dedent(change))
    data, last = small_files(), "d/last"
    with (
        LoopbackServer({"bucket": MemoryObjects(data)}) as server,
        ThreadPoolExecutor(1) as readers,
        mounted("s3://bucket/d/", server.endpoint_url, *options_of(tmp_path)) as mount,
        closing(sqlite3.connect(tmp_path / "cache" / "index.db", isolation_level=None)) as index,
    ):
        reads_until_threads_do(mount, iter(data), data)
        index.execute("BEGIN IMMEDIATE")
        assert is_right(mount, last, data)
        reading = readers.submit(is_right, mount, last, data)
        wait_until(lambda: "is claimed" in mount.log or reading.done())
        index.execute("ROLLBACK")
        assert reading.result()
        assert server.count("GetObject", last) == 1


def test_where_a_small_file_is_kept_is_remembered_until_it_is_not_there(tmp_path: Path) -> None:
    """The index forgets all after the first reads, so later ones find only what is remembered; then that is damaged."""
    data = small(500)

    with LoopbackServer({"bucket": MemoryObjects(data)}) as server:
        with mounted("s3://bucket/d/", server.endpoint_url, *options_of(tmp_path)) as mount:
            assert all_right(mount, data)
        with mounted("s3://bucket/d/", server.endpoint_url, *options_of(tmp_path)) as mount:
            assert all_right(mount, data)
            before = server.count("GetObject")
            with closing(sqlite3.connect(tmp_path / "cache" / "index.db")) as index, index:
                index.execute("DELETE FROM extents")
            assert all_right(mount, data)
            assert server.count("GetObject") - before < len(data) / 2  # the files beside these are fetched on suspicion
            for segment in tmp_path.glob("cache/*.segment"):
                segment.write_bytes(bytes(segment.stat().st_size))
            assert all_right(mount, dict(islice(data.items(), 100)))


@pytest.mark.parametrize("hangs", [False, True])
def test_threads_fetch_from_s3_what_the_tier_has_lost(
    hangs: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    change = """
    from fastfuse.filesystem.serving import reads
    answer = reads.Reads.answer

    def counted(self, request, **by_task):
        if not by_task:
            print("left to Python", file=sys.stderr, flush=True)
        return answer(self, request, **by_task)

    reads.Reads.answer = counted
    """
    with_change(monkeypatch, change)
    data = small(500)
    options = (*options_of(tmp_path), "--read-deadline-s", "20")
    with LoopbackServer({"bucket": MemoryObjects(data)}) as server, ExitStack() as opened:
        with mounted("s3://bucket/d/", server.endpoint_url, *options) as mount:
            assert all_right(mount, data)
        with mounted("s3://bucket/d/", server.endpoint_url, *options) as mount:
            assert all_right(mount, data)
            segments = [*tmp_path.glob("cache/*.segment")]
            if hangs:
                for segment in segments:
                    segment.unlink()
                    os.mkfifo(segment, 0o666)  # whoever opens it waits
            else:
                assert run_fastfuse("cache", "clear", "--cache", str(tmp_path / "cache")).returncode == 0
            assert all_right(mount, data)
            assert mount.log.count("left to Python") < len(data) / 20  # as many as the disk is asked for in vain
            assert ("is not used for 30 s: its disk has not answered within" in mount.log) == hangs
            for segment in segments if hangs else ():
                opened.enter_context(open(os.open(segment, os.O_RDWR | os.O_NONBLOCK), "rb"))


def test_no_thread_asks_for_an_archived_object_with_a_tier(tmp_path: Path) -> None:
    objects = MemoryObjects({f"d/{n}": b"%d" % n for n in range(2000)})
    objects.put("d/cold", b"cold", storage_class="GLACIER")

    def get_count(*options: str) -> int:
        unread = iter(range(2000))
        with (
            LoopbackServer({"bucket": objects}) as server,
            mounted("s3://bucket/d/", server.endpoint_url, *options) as mount,
        ):
            wait_until(lambda: Path(mount.path, str(next(unread))).read_bytes() != b"" and has_threads(mount))
            with pytest.raises(PermissionError):
                Path(mount.path, "cold").read_bytes()
            return server.count("GetObject", "d/cold")

    assert get_count() == get_count(*options_of(tmp_path))


def test_a_worker_that_the_disk_ends_is_followed_by_one_without_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    change = """
    import signal
    from fastfuse.cache import catalog
    catalog.Index.find = lambda *_: signal.pause()
    """
    places = tmp_path / "disk", tmp_path / "signal"
    for place in places:
        place.mkdir()
    with LoopbackServer({"bucket": MemoryObjects(DATA)}) as server:

        def mounting(place: Path) -> AbstractContextManager[Mount]:
            return mounted("s3://bucket/d/", server.endpoint_url, *options_of(place))

        with mounting(places[1]) as by_signal, monkeypatch.context() as patched:
            with_change(patched, change)
            with mounting(places[0]) as by_disk:
                stopped = by_signal.worker()
                os.kill(stopped, signal.SIGSTOP)
                assert all_right(by_disk)
                assert all_right(by_signal)
                assert by_disk.log.count("the worker does not answer: it hung") == 1
                assert f"the next worker does not use the cache {places[0]}/cache" in by_disk.log
                assert "  cache     not used by this worker" in run_fastfuse("status", str(by_disk.path)).stdout
                counters = fastfuse.stats(by_disk.path)["counters"]
                assert counters["fastfuse_cache_wanted"] > counters["fastfuse_cache_size_bytes"]
                assert by_signal.log.count("the worker does not answer: it hung") == 1
                assert by_signal.worker() != stopped
                assert "does not use the cache" not in by_signal.log
                os.kill(by_signal.worker(), signal.SIGBUS)  # as if its map of the index had been cut
                wait_until(lambda: f"does not use the cache {places[1]}/cache" in by_signal.log)
        with mounting(places[1]) as later:
            assert all_right(later)
            wait_until(lambda: told_of(places[1]).search(run_fastfuse("status", str(later.path)).stdout) is not None)


@pytest.mark.parametrize("mode", ["File", "Pipe"])
def test_channels_that_are_not_mounted_share_the_bytes_of_the_node(mode: str, tmp_path: Path) -> None:
    command = script(CHECKSUMS)
    digest = hashlib.sha256(b"".join(data for _, data in sorted(DATA.items()))).hexdigest()
    with LoopbackServer({"bucket": MemoryObjects(DATA)}) as server:
        for _ in range(2):
            channels = [channel("train", mode, "d/")]
            with running(server.endpoint_url, channels, *options_of(tmp_path), command=command) as job:
                assert job.wait() == 0, job.log
                assert checksums(job) == {"train": digest}
        sent_bytes = sum(one.sent_bytes for one in server.requests if one.operation == "GetObject")
    assert sent_bytes == sum(map(len, DATA.values()))

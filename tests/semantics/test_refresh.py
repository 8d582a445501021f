"""Clause L6: a refresh swaps the whole table, and what has changed is stale."""

import contextlib
import errno
import os
import re
import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.s3server import ACCESS_DENIED, SLOW_DOWN, FaultRule, MemoryObjects, Stall
from tests.descriptors import open_descriptors
from tests.filesystem.waiting import wait_until
from tests.mounting import run_fastfuse
from tests.semantics.places import block_bytes, direct_read, gets, place, refresh, tree
from tests.semantics.test_metrics import Scrape


def objects() -> MemoryObjects:
    return MemoryObjects({"same": b"same", "changes": b"before", "goes": b"gone soon", "folder/file": b"deep"})


def change(held: MemoryObjects) -> None:
    held.put("changes", b"after, and longer")
    held.delete("goes")
    held.put("new/below/file", b"new")
    held.put("folder/another", b"another")


def test_the_view_after_a_refresh_is_what_the_source_holds_and_what_is_the_same_keeps_inode_and_pages() -> None:
    """L6, D1"""
    with place(objects()) as here:
        for path in (here.path / "new", here.path / "folder" / "another"):  # the kernel remembers that they are not
            assert not path.exists()
        tree(here.path)
        before = {name: (here.path / name).stat() for name in ("same", "changes", "folder", "folder/file")}
        folder = os.open(here.path / "folder", os.O_RDONLY)
        change(here.objects)
        assert tree(here.path)["same"] == b"same"
        assert not (here.path / "new").exists()
        told = refresh(here.path)
        assert told.startswith("2 added, 1 removed, 1 replaced; 5 objects now, ")
        after = {name: (here.path / name).stat() for name in before}
        assert after["same"] == before["same"]
        assert after["folder/file"] == before["folder/file"]
        assert after["folder"].st_ino == before["folder"].st_ino
        assert after["changes"].st_ino != before["changes"].st_ino
        requests = len(gets(here))
        assert (here.path / "same").read_bytes() == b"same"
        assert len(gets(here)) == requests
        # A working directory stays good.
        assert sorted(os.listdir(folder)) == ["another", "file"]
        assert os.stat("another", dir_fd=folder).st_size == 7
        os.close(folder)
        assert tree(here.path) == {
            "same": b"same",
            "changes": b"after, and longer",
            "new/below/file": b"new",
            "folder/file": b"deep",
            "folder/another": b"another",
        }
        assert (here.path / "changes").stat().st_size == 17
        assert not (here.path / "goes").exists()
        assert sorted(os.listdir(here.path)) == ["changes", "folder", "new", "same"]


def test_an_open_file_that_was_replaced_or_deleted_is_stale_but_for_the_pages_that_the_kernel_has() -> None:
    """L6, D1, D2"""
    before = objects()
    before.put("goes", bytes(9 << 20))
    with place(before) as here, (here.path / "changes").open("rb") as held, (here.path / "goes").open("rb") as gone:
        assert held.read() == b"before"
        change(here.objects)
        refresh(here.path)
        assert os.pread(held.fileno(), 100, 0) == b"before"
        assert os.fstat(held.fileno()).st_size == len(b"before")
        with pytest.raises(OSError, match="Stale file handle") as caught:
            gone.read()
        assert caught.value.errno == errno.ESTALE
        told = "a refresh has replaced or removed the open file"
        wait_until(lambda: told in run_fastfuse("status", str(here.path)).stdout)
        with pytest.raises(OSError, match="Stale file handle"):
            direct_read(Path(f"/proc/self/fd/{held.fileno()}"), 4096)
        assert (here.path / "changes").read_bytes() == b"after, and longer"


def test_an_added_object_that_is_older_than_its_siblings_is_listed_at_once() -> None:
    """L6: the directory's time stays, so its attributes do not show that it has changed."""
    held = MemoryObjects()
    for name in ("b", "d", "f"):
        held.put(f"folder/{name}", b"x", modified_s=1_700_000_000)
    held.put("other/deep/x", b"x", modified_s=1_700_000_000)
    for name in ("1", "2"):
        held.put(f"less/{name}", b"x", modified_s=1_700_000_000)
    with place(held) as here:
        folder, less = here.path / "folder", here.path / "less"
        before = folder.stat()
        assert (here.path / "other").stat().st_mtime == 1_700_000_000
        for _ in range(3):  # so that the kernel keeps the listing
            assert sorted(os.listdir(folder)) == ["b", "d", "f"]
            assert sorted(os.listdir(less)) == ["1", "2"]
        held.put("folder/c", b"old", modified_s=1_600_000_000)
        held.delete("less/2")
        held.put("other/deep/y", b"x", modified_s=1_800_000_000)
        refresh(here.path)
        assert folder.stat().st_mtime_ns == before.st_mtime_ns
        assert sorted(os.listdir(folder)) == ["b", "c", "d", "f"]
        assert (folder / "c").read_bytes() == b"old"
        # Only a listing has asked for it.
        assert os.listdir(less) == ["1"]
        assert not (less / "2").exists()
        # No name in it has changed, and yet it is younger.
        assert (here.path / "other").stat().st_mtime == 1_800_000_000


def test_a_listing_across_a_refresh_has_each_name_of_both_tables_exactly_once() -> None:
    """N6"""
    names = [f"{number:05}" for number in range(0, 30_000, 10)]
    with place(dict.fromkeys(names, b"")) as here, os.scandir(here.path) as entries:
        seen = [next(entries).name for _ in range(1500)]
        # Whatever the kernel has asked for by now, the entry behind which it goes on is gone or is replaced.
        gone, replaced = set(names[1::3]), set(names[2::3])
        for name in gone:
            here.objects.delete(name)
        for name in replaced:
            here.objects.put(name, b"new")
        for number in range(5, 30_000, 100):
            here.objects.put(f"{number:05}", b"")
        refresh(here.path)
        seen += [entry.name for entry in entries]
        assert len(seen) == len(set(seen))
        after = sorted(os.listdir(here.path))
        assert set(names) & set(after) <= set(seen)
        assert set(seen) <= set(names) | set(after)
        assert not gone & set(after)
        assert all((here.path / name).stat().st_size == 3 for name in sorted(replaced)[:20])


def test_a_refresh_after_a_refresh_and_a_worker_that_dies_in_between() -> None:
    """L6, L3"""
    with place(objects()) as here:
        for number in range(3):
            here.objects.put("changes", b"x" * number)
            here.objects.put(f"number-{number}", b"")
            assert refresh(here.path).startswith("1 added, 0 removed, 1 replaced; ")
            os.kill(here.mount.worker(), signal.SIGKILL)
            assert (here.path / "changes").read_bytes() == b"x" * number
            assert (here.path / f"number-{number}").exists()


def test_readers_notice_nothing_but_the_new_version() -> None:
    """L6, D1"""
    versions = {block_bytes(seed, 300_000) for seed in range(4)}
    with place({"fixed": block_bytes(9, 300_000), "changes": block_bytes(0, 300_000)}) as here:
        stop = threading.Event()
        right, wrong = Counter[str](), Counter[str]()

        def read() -> None:
            while not stop.is_set():
                data = (here.path / "fixed").read_bytes()
                (right if data == block_bytes(9, 300_000) else wrong)["fixed"] += 1
                with contextlib.suppress(OSError):  # replaced while it was being read
                    data = (here.path / "changes").read_bytes()
                    (right if data in versions else wrong)["changes"] += 1

        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers:
            reader.start()
        try:
            for seed in (1, 2, 3):
                here.objects.put("changes", block_bytes(seed, 300_000))
                refresh(here.path)
                assert (here.path / "changes").read_bytes() == block_bytes(seed, 300_000)
        finally:
            stop.set()
            for reader in readers:
                reader.join()
        assert not wrong
        assert right["fixed"] > 0
        assert right["changes"] > 0
        # The worker keeps no table that another has taken the place of: this is the mapping's own descriptor.
        worker = here.mount.worker()
        assert Path(f"/proc/{worker}/maps").read_text().count("memfd:fastfuse-") == 1
        assert str(open_descriptors(worker)).count("memfd:fastfuse-") == 1


def test_a_worker_that_dies_while_the_source_is_listed_again_is_followed_by_one_with_the_new_table() -> None:
    """L6, L3"""
    with place(objects()) as here, ThreadPoolExecutor(1) as threads:
        rule = here.server.faults.add(FaultRule(action=Stall(10), operation="ListObjectsV2"))
        listings = here.server.statistics().requests["ListObjectsV2"]
        change(here.objects)
        refreshed = threads.submit(refresh, here.path)
        here.server.wait_until(lambda now: now.requests["ListObjectsV2"] > listings, 60)
        os.kill(here.mount.children()[0], signal.SIGKILL)
        try:
            assert (here.path / "same").read_bytes() == b"same"
            assert not (here.path / "new").exists()
        finally:
            here.server.faults.remove(rule)
        assert refreshed.result(60).startswith("2 added, 1 removed, 1 replaced; ")
        assert tree(here.path)["changes"] == b"after, and longer"
        assert (here.path / "new" / "below" / "file").read_bytes() == b"new"


def test_a_refresh_waits_out_what_passes_and_what_lasts_leaves_the_view_as_it_was() -> None:
    """L6; tests/test_fault_matrix.py has every class of failure of a listing."""
    with place(objects(), "--metrics-listen", "0") as here:
        here.server.faults.add(FaultRule(action=SLOW_DOWN, operation="ListObjectsV2", times=1))
        assert refresh(here.path).startswith("0 added, 0 removed, 0 replaced; 4 objects now, ")
        page = "page 1 of the listing of 's3://bucket/': 503 SlowDown, request FASTFUSE"
        assert f" WARNING fastfuse.s3.retries: {page}; trying again (attempt 1 failed, " in here.mount.log
        assert re.search(
            r" INFO .*: answered again after \d+\.\d s: 1 × 503 SlowDown; 1 request waited\n", here.mount.log
        )
        denied = here.server.faults.add(FaultRule(action=ACCESS_DENIED, operation="ListObjectsV2"))
        change(here.objects)
        done = run_fastfuse("refresh", str(here.path))
        assert (done.returncode, done.stdout) == (3, "")
        error = done.stderr.splitlines()[0].removeprefix("fastfuse: error: ")
        assert (
            f" ERROR fastfuse.filesystem.refresh: the view stays as it was: s3://bucket/ was not refreshed: {error}\n"
            in (here.mount.log)
        )
        assert (here.path / "changes").stat().st_size == len(b"before")
        scrape = Scrape(here.mount.metrics_port())
        assert scrape["retries_total", "throttled"] == 1
        assert [scrape["refreshes_total", outcome] for outcome in ("ok", "failed")] == [1, 1]
        failing = re.compile(rf"\n  refresh   failing for \d+ s: {re.escape(error)}\n")
        assert failing.search(run_fastfuse("status", str(here.path)).stdout)
        here.server.faults.remove(denied)
        refresh(here.path)
        assert "refresh" not in run_fastfuse("status", str(here.path)).stdout


def test_a_name_that_turns_from_file_to_directory_and_back() -> None:
    """L6, N4"""
    with place({"thing": b"file"}) as here:
        assert (here.path / "thing").read_bytes() == b"file"
        here.objects.put("thing/below", b"x")
        refresh(here.path)
        assert (here.path / "thing" / "below").read_bytes() == b"x"
        here.objects.delete("thing/below")
        refresh(here.path)
        assert (here.path / "thing").read_bytes() == b"file"
        with pytest.raises(OSError, match=os.strerror(errno.ENOTDIR)):
            (here.path / "thing" / "below").stat()

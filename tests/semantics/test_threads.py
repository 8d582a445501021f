"""What threads read without the interpreter: every byte, every count, and what happens beside them."""

import os
import random
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from bench.s3server import ACCESS_DENIED, FaultRule, MemoryObjects, Stall
from bench.s3server.faults import INTERNAL_ERROR, Action, Truncate
from tests.filesystem.waiting import wait_until
from tests.mounting import Mount
from tests.semantics.places import Place, block_bytes, gets, place, refresh
from tests.semantics.test_lifecycle import stopping
from tests.semantics.test_metrics import Scrape, settle

pytestmark = pytest.mark.fuse

# The largest is one that threads still read, or one that they do not.
SIZES = (1, 4096, 39_000, 100_001, 256 << 10, (256 << 10) + 1)
NAMES = [f"a b/ä{index % 7}/{index}" for index in range(240)]
READERS = 8
KILLS = 3


def data_of(index: int) -> bytes:
    return block_bytes(index, SIZES[index % len(SIZES)])


def objects() -> MemoryObjects:
    return MemoryObjects({name: data_of(index) for index, name in enumerate(NAMES)})


def read(path: Path) -> bytes:
    """Read a file whole, and have the kernel forget its pages."""
    with path.open("rb") as file:
        data = file.read()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return data


def has_threads(mount: Mount) -> bool:
    """Return whether a thread of the worker has begun to fetch."""
    tasks = Path(f"/proc/{mount.worker()}/task")
    names = []
    for task in tasks.glob("*/comm"):
        with suppress(FileNotFoundError, ProcessLookupError):  # another thread, which has just ended
            names.append(task.read_text())
    return "fastfuse-get\n" in names


def read_until_threads_do(here: Place, name: str = NAMES[0], data: bytes = data_of(0)) -> int:
    """Read a file until a thread has, and return how often it was read."""
    count = 0

    def is_met() -> bool:
        nonlocal count
        count += 1
        assert read(here.path / name) == data
        return has_threads(here.mount)

    wait_until(is_met)
    return count


def read_all(here: Place, *, meanwhile: Callable[[], None] = lambda: None) -> None:
    order = random.Random(0).sample(range(len(NAMES)), len(NAMES))
    with ThreadPoolExecutor(READERS) as readers:
        pending = [(index, readers.submit(read, here.path / NAMES[index])) for index in order]
        meanwhile()
        wrong = [NAMES[index] for index, future in pending if future.result() != data_of(index)]
    assert wrong == []


def test_what_threads_read_is_right_and_counted_once() -> None:
    """D1"""
    with place(objects(), "--metrics-listen", "0") as here:
        tried = read_until_threads_do(here)
        read_all(here)
        settle(here)
        scrape = Scrape(here.mount.metrics_port())
        read_bytes = tried * len(data_of(0)) + sum(len(data_of(index)) for index in range(len(NAMES)))
        assert scrape["read_served_bytes_total",] == read_bytes
        assert scrape["fetch_requests_total", "ok"] == len(gets(here))
        assert scrape["waiting_reads",] == 0
        # Those that threads read and those that they leave alone.
        assert {record.key for record in gets(here)} == set(NAMES)


def test_threads_read_at_once_after_a_refresh() -> None:
    """L6"""
    change = "from fastfuse.filesystem.serving import direct_files\ndirect_files._LOOK_EVERY_S = 3600.0\n"
    with place(objects(), change=change) as here:
        refresh(here.path)
        read_until_threads_do(here)


def test_readers_of_small_files_do_not_notice_that_workers_die() -> None:
    """L3"""
    with place(objects()) as here:
        read_until_threads_do(here)

        def kill() -> None:
            os.kill(here.mount.worker(), signal.SIGKILL)

        for _ in range(KILLS):
            worker = here.mount.worker()
            read_all(here, meanwhile=kill)
            wait_until(lambda: bool(set(here.mount.children()) - {worker}))  # noqa: B023
        read_until_threads_do(here)


def test_parts_that_threads_read_are_right_and_counted_once() -> None:
    """D1"""
    data = block_bytes(1, 24 << 20)
    with place(MemoryObjects({"large": data}), "--metrics-listen", "0") as here:
        count = read_until_threads_do(here, "large", data)
        settle(here)
        scrape = Scrape(here.mount.metrics_port())
        assert scrape["read_served_bytes_total",] == count * len(data)
        assert scrape["fetched_bytes_total",] == sum(record.sent_bytes for record in gets(here))
        assert scrape["fetch_requests_total", "ok"] == len(gets(here))


@pytest.mark.parametrize("action", [Truncate(1000), INTERNAL_ERROR])
def test_what_becomes_of_a_part_in_a_thread_is_made_good_by_the_client(action: Action) -> None:
    """D5"""
    data = block_bytes(1, 24 << 20)
    with place(MemoryObjects({"large": data})) as here:
        read_until_threads_do(here, "large", data)
        before = len(gets(here))
        here.server.faults.add(FaultRule(action=action, operation="GetObject", times=1))
        assert read(here.path / "large") == data
        assert len(gets(here)) > before


def test_an_object_that_is_denied_does_not_keep_threads_from_the_others() -> None:
    """D5"""
    with place(objects()) as here:
        read_until_threads_do(here)
        here.server.faults.add(FaultRule(action=ACCESS_DENIED, operation="GetObject", key=NAMES[1]))
        for _ in range(4):
            with pytest.raises(PermissionError):
                read(here.path / NAMES[1])
            assert read(here.path / NAMES[0]) == data_of(0)
        # A thread met each of these, and the client asked again.
        assert [record.key for record in gets(here)].count(NAMES[1]) >= 2 * 4


def test_a_read_that_a_thread_gives_back_ends_well_while_the_mount_stops() -> None:
    """L2"""
    with place(objects(), "--grace-s", "60", "--read-deadline-s", "30") as here:
        read_until_threads_do(here)
        rule = here.server.faults.add(FaultRule(action=Stall(0), operation="GetObject", key=NAMES[1], times=1))
        with ThreadPoolExecutor(1) as readers:
            reading = readers.submit(read, here.path / NAMES[1])
            # Not by the number of GETs: one that a thread has given back may come to the server late.
            wait_until(lambda: here.server.faults.hits(rule) > 0)
            stopping(here)
            assert reading.result(60) == data_of(1)
        assert here.mount.wait() == 0

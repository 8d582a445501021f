"""Small files of an announced order, which threads fetch and answer without the interpreter, through a real mount."""

import errno
import mmap
import os
import random
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from bench.s3server import FaultRule, MemoryObjects, Stall
from bench.s3server.faults import ACCESS_DENIED, SLOW_DOWN, Action, Replace, Truncate
from fastfuse.filesystem.talking.control import ask_status, entry_of
from fastfuse.hints import order
from tests.filesystem.waiting import wait_until
from tests.mounting import mounted
from tests.semantics.places import BUCKET, Place, block_bytes, direct_read, errno_of, gets, place, refresh
from tests.semantics.test_metrics import Scrape, settle
from tests.semantics.test_respawn import has_hits
from tests.semantics.test_threads import has_threads

pytestmark = pytest.mark.fuse

# Whole pages, parts of one, and the largest that threads read.
SIZES = (1, 4096, 39_000, 100_001, 256 << 10)
DATA = {f"d{index % 7}/ä {index}": block_bytes(index, SIZES[index % len(SIZES)]) for index in range(100)}
NAMES = random.Random(0).sample([*DATA], len(DATA))
# Read to find out whether threads read; nothing is fetched ahead for it, nor are they after others.
# There are enough of them that also a busy machine starts its threads before all are read.
OTHERS = {f"a/{index}": b"other" for index in random.Random(1).sample(range(1000), 900)}
LARGE, SMALL = (next(name for name in NAMES if len(DATA[name]) == size_bytes) for size_bytes in (256 << 10, 39_000))
# On a busy machine a service looks far away, and the mount would fetch some of the `OTHERS` as guesses.
NEAR = "from fastfuse.readahead import own_pace\nown_pace._FAR_S = 1e9\n"
# Whatever threads answer ahead is told in the log, and they wait for long.
TOLD = f"""
{NEAR}from fastfuse.filesystem.serving import direct_files
from fastfuse.readahead import engine
note_read_ahead = engine.ReadEngine.note_read_ahead
def tell(self, inode, offset, size_bytes, reader, **about):
    print("ahead:", offset, size_bytes, about["has_waited"], file=sys.stderr, flush=True)
    note_read_ahead(self, inode, offset, size_bytes, reader, **about)
engine.ReadEngine.note_read_ahead = tell
direct_files._PATIENCE_S = 1000.0
"""
PATIENT = "--read-deadline-s", "3600"


@contextmanager
def threads_read(*options: str, change: str = TOLD, more: Mapping[str, bytes] | None = None) -> Iterator[Place]:
    """Mount `DATA`, and wait until threads read small files."""
    others = iter(OTHERS)

    def is_met(here: Place) -> bool:
        (here.path / next(others)).read_bytes()
        return has_threads(here.mount)

    with place(MemoryObjects(DATA | OTHERS | dict(more or {})), *options, change=change) as here:
        wait_until(lambda: is_met(here))
        yield here


def answered(here: Place) -> list[tuple[int, int, bool]]:
    """Return offset and size of each read that was answered ahead, and whether it waited."""
    settle(here)
    told = re.findall(r"ahead: (\d+) (\d+) (\w+)", here.mount.log)
    return [(int(offset), int(size_bytes), waited == "True") for offset, size_bytes, waited in told]


def get_count(here: Place, name: str) -> int:
    return sum(record.key == name for record in gets(here))


def got_bytes(here: Place) -> int:
    """Return the bytes of the files of `DATA` that were got."""
    return sum(len(DATA[record.key]) for record in gets(here) if record.key in DATA and record.status < 300)


def whole(path: Path) -> bytes:
    return path.read_bytes()


def in_pieces(path: Path) -> bytes:
    """Read past the page cache, from the end to the begin."""
    offsets = range(0, path.stat().st_size, 64 << 10)
    return b"".join([direct_read(path, 64 << 10, offset) for offset in reversed(offsets)][::-1])


def mapped(path: Path) -> bytes:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        return view[::-1][::-1]


@pytest.mark.parametrize("read", [whole, in_pieces, mapped])
def test_an_announced_file_is_fetched_once_and_right_however_it_is_read(read: Callable[[Path], bytes]) -> None:
    """D1"""
    with threads_read("--metrics-listen", "0") as here, order(NAMES, here.path):
        port = here.mount.metrics_port()
        wait_until(lambda: Scrape(port)["fetched_parts_total", "prefetched"] == len(NAMES))
        with ThreadPoolExecutor(4) as readers:
            assert [*readers.map(lambda name: read(here.path / name), NAMES)] == [DATA[name] for name in NAMES]
        assert {get_count(here, name) for name in NAMES} == {1}
        assert sum(size_bytes for _, size_bytes, _ in answered(here)) == sum(map(len, DATA.values()))
        wait_until(lambda: Scrape(port)["memory_bytes", "unread"] == 0)


def test_a_read_of_a_file_ahead_that_kills_workers_fails_and_the_mount_goes_on() -> None:
    """L3"""
    with ThreadPoolExecutor(1) as reader, threads_read("--metrics-listen", "0", *PATIENT) as here:
        rule = here.server.faults.add(FaultRule(action=Stall(1000), operation="GetObject", key=SMALL))
        with order([SMALL], here.path):
            wait_until(lambda: here.server.faults.hits(rule) == 1)
            read = reader.submit(errno_of, whole, here.path / SMALL)
            wait_until(lambda: Scrape(here.mount.metrics_port())["waiting_reads",] == 1)
            for death in (1, 2):
                wait_until(partial(has_hits, here, rule, death))
                os.kill(ask_status(entry_of(here.path))["worker_pid"], signal.SIGSEGV)
            assert read.result(60) == errno.EIO
        assert here.server.faults.hits(rule) == here.mount.log.count("; starting another") == 2
        assert "workers die of the read of inode " in here.mount.log
        assert whole(here.path / LARGE) == DATA[LARGE]


@pytest.mark.parametrize("action", [Stall(1000), Truncate(1000), Replace(b"other"), ACCESS_DENIED])
def test_what_threads_get_ahead_in_vain_the_client_gets_for_whoever_reads(action: Action) -> None:
    """D5"""
    with threads_read(change="") as here:
        rule = here.server.faults.add(FaultRule(action=action, operation="GetObject", key=LARGE, times=1))
        with order([LARGE], here.path):
            wait_until(lambda: here.server.faults.hits(rule) > 0)
            assert (here.path / LARGE).read_bytes() == DATA[LARGE]
        assert get_count(here, LARGE) >= 2


def test_nothing_ahead_outlives_a_refresh() -> None:
    """L6"""
    with threads_read() as here:
        with order([LARGE], here.path):
            wait_until(lambda: get_count(here, LARGE) == 1)
            here.objects.put(LARGE, b"new")
            refresh(here.path)
            assert (here.path / LARGE).read_bytes() == b"new"
        assert answered(here) == []


def test_what_nobody_reads_is_let_go_with_its_order_and_counted() -> None:
    def unread_bytes() -> int:
        return int(Scrape(here.mount.metrics_port())["memory_bytes", "unread"])

    with threads_read("--metrics-listen", "0") as here:
        with order([LARGE], here.path):
            wait_until(lambda: get_count(here, LARGE) == 1 and unread_bytes() == len(DATA[LARGE]))
        with order([SMALL], here.path):
            wait_until(lambda: unread_bytes() == len(DATA[SMALL]))
        wait_until(lambda: Scrape(here.mount.metrics_port())["wasted_bytes_total",] == len(DATA[LARGE]))
        assert (here.path / LARGE).read_bytes() == DATA[LARGE]
        assert get_count(here, LARGE) == 2


def test_however_many_reads_have_waited_the_next_one_may() -> None:
    """Threads have room for 1,024 at once."""

    def is_begun(rule: int) -> bool:
        return here.server.faults.hits(rule) > 0

    names = [name for name in NAMES if len(DATA[name]) == len(DATA[LARGE])][:18]
    offsets = range(0, len(DATA[LARGE]), 4096)
    change = f"{TOLD}from fastfuse.readahead import own_pace\nown_pace._FEW_READERS = 64\n"
    options = "--metrics-listen", "0", *PATIENT
    with threads_read(*options, change=change) as here, ThreadPoolExecutor(64) as readers:
        for name in names:
            rule = here.server.faults.add(FaultRule(action=Stall(0), operation="GetObject", key=name))
            with order([name], here.path):
                wait_until(partial(is_begun, rule))
                pieces = readers.map(partial(direct_read, here.path / name, 4096), offsets)
                wait_until(lambda: Scrape(here.mount.metrics_port())["waiting_reads",] == len(offsets))
                here.server.faults.remove(rule)
                assert b"".join(pieces) == DATA[name]
            assert get_count(here, name) == 1
        assert [has_waited for *_, has_waited in answered(here)] == [True] * len(names) * len(offsets)
        assert Scrape(here.mount.metrics_port())["waiting_reads",] == 0


def test_an_order_of_many_is_fetched_by_few_threads_in_turn() -> None:
    """More than there are threads; some are read while they are queued, and some while they are on their way."""

    def part_count() -> float:
        now = Scrape(here.mount.metrics_port())
        return now["fetched_parts_total", "demanded"] + now["fetched_parts_total", "prefetched"]

    with threads_read("--metrics-listen", "0", *PATIENT) as here, ThreadPoolExecutor(8) as readers:
        rule = here.server.faults.add(FaultRule(action=Stall(0), operation="GetObject", key="d*"))
        with order(NAMES, here.path):
            wait_until(lambda: here.server.faults.hits(rule) >= 48)
            last = [readers.submit(whole, here.path / name) for name in (*NAMES[:4], *NAMES[-4:])]
            wait_until(lambda: Scrape(here.mount.metrics_port())["waiting_reads",] >= 8)
            here.server.faults.remove(rule)
            assert [one.result(60) for one in last] == [DATA[name] for name in (*NAMES[:4], *NAMES[-4:])]
            assert [whole(here.path / name) for name in NAMES] == [DATA[name] for name in NAMES]
        assert {get_count(here, name) for name in NAMES} == {1}
        # What was queued and read before a thread came to it was fetched once, too.
        wait_until(lambda: part_count() >= len(gets(here)))
        assert part_count() == len(gets(here))


def test_files_that_the_tier_keeps_are_left_to_their_readers_and_the_others_come_ahead(tmp_path: Path) -> None:
    def part_count() -> float:
        return Scrape(mount.metrics_port())["fetched_parts_total", "prefetched"]

    cache = "--cache", str(tmp_path / "cache"), "--cache-size", "1GiB", "--cache-min-free", "0"
    others = reversed(OTHERS)  # the tier keeps the first
    with threads_read(*cache) as here:
        with order(NAMES[::2], here.path):
            here.wait_for_gets(len(NAMES) // 4)
            assert all(whole(here.path / name) == DATA[name] for name in NAMES[::2])
        assert len(answered(here)) >= len(NAMES) // 4
        assert here.mount.stop() == 0
        kept = {name for name in NAMES if get_count(here, name)}  # files that came ahead of others included
        assert len(kept) < len(NAMES)
        options = *cache, "--metrics-listen", "0", "--memory-target", "1GiB"
        with mounted(f"s3://{BUCKET}", here.server.endpoint_url, *options, change=NEAR) as mount:
            wait_until(lambda: bool((mount.path / next(others)).read_bytes()) and has_threads(mount))
            with order(NAMES, mount.path):
                wait_until(lambda: part_count() == len(NAMES) - len(kept))
                assert {get_count(here, name) for name in NAMES} == {1}
                assert all(whole(mount.path / name) == DATA[name] for name in NAMES)
            assert part_count() == len(NAMES) - len(kept)
            assert Scrape(mount.metrics_port())["cache_bytes_total", "served"] >= sum(len(DATA[name]) for name in kept)
        assert {get_count(here, name) for name in NAMES} == {1}


def test_files_that_wait_for_threads_leave_room_to_reads() -> None:
    many = {f"m/{index}": b"m" for index in range(4200)}
    change = f"{TOLD}from fastfuse.readahead import orders\norders._FIRST_CREDIT_FILES = 5000\n"
    change += "orders._LEAST_SPREAD_FILES = 5000\n"
    options = "--metrics-listen", "0", "--memory-target", "512MiB", *PATIENT
    with threads_read(*options, change=change, more=many) as here, order([LARGE], here.path):
        wait_until(lambda: get_count(here, LARGE) == 1)
        rule = here.server.faults.add(FaultRule(action=Stall(0), operation="GetObject", key="m/*"))
        with order(many, here.path):
            wait_until(lambda: Scrape(here.mount.metrics_port())["memory_bytes", "unread"] > len(DATA[LARGE]) + 4096)
            assert (here.path / LARGE).read_bytes() == DATA[LARGE]
            assert (here.path / SMALL).read_bytes() == DATA[SMALL]
        here.server.faults.remove(rule)
        assert get_count(here, LARGE) == 1
        assert sum(size_bytes for _, size_bytes, _ in answered(here)) == len(DATA[LARGE])


def test_what_nobody_was_asked_for_is_no_failure() -> None:
    """The service refuses one file, so threads stop while others are queued."""
    with threads_read("--metrics-listen", "0", *PATIENT) as here:
        port, faults = here.mount.metrics_port(), here.server.faults
        faults.add(FaultRule(action=SLOW_DOWN, operation="GetObject", key=LARGE, times=1))
        rule = faults.add(FaultRule(action=Stall(0), operation="GetObject", key="d*"))
        with order([LARGE, *(name for name in NAMES if name != LARGE)], here.path):
            wait_until(lambda: Scrape(port)["refused_gets_total",] == 1)
            faults.remove(rule)
            wait_until(lambda: Scrape(port)["memory_bytes", "unread"] == got_bytes(here))
            assert [Scrape(port)["retries_total", cause] for cause in ("throttled", "broken")] == [1, 0]
            assert all(whole(here.path / name) == DATA[name] for name in NAMES)


def test_files_that_are_read_in_part_give_way_to_others() -> None:
    """As no order drops them any more."""
    # Room for one of them.
    change = f"{TOLD}engine._BEGUN_SMALL_DIVISOR = (416 << 20) // 4 // 300_000\n"
    options = "--metrics-listen", "0", "--memory-target", "512MiB"
    names = [name for name in NAMES if len(DATA[name]) == len(DATA[LARGE])][:2]
    with threads_read(*options, change=change) as here, order(names, here.path):
        port = here.mount.metrics_port()
        wait_until(lambda: Scrape(port)["memory_bytes", "unread"] == 2 * len(DATA[LARGE]))
        wait_until(lambda: all(get_count(here, name) == 1 for name in names))
        for name in names:
            assert direct_read(here.path / name, 64 << 10) == DATA[name][: 64 << 10]
        wait_until(lambda: Scrape(port)["wasted_bytes_total",] == len(DATA[LARGE]) - (64 << 10))
        assert Scrape(port)["memory_bytes", "unread"] == len(DATA[LARGE])
        for name in names:
            assert direct_read(here.path / name, 192 << 10, 64 << 10) == DATA[name][64 << 10 :]
        assert [get_count(here, name) > 1 for name in names] == [True, False]


def test_what_was_queued_and_never_fetched_is_not_wasted() -> None:
    with threads_read("--metrics-listen", "0", *PATIENT) as here:
        rule = here.server.faults.add(FaultRule(action=Stall(0), operation="GetObject", key="d*"))
        with order(NAMES, here.path):
            wait_until(lambda: here.server.faults.hits(rule) >= 48)
        wait_until(lambda: Scrape(here.mount.metrics_port())["wasted_bytes_total",] > 0)
        fetched = NAMES[: here.server.faults.hits(rule)]
        here.server.faults.remove(rule)
        assert Scrape(here.mount.metrics_port())["wasted_bytes_total",] == sum(len(DATA[name]) for name in fetched)
        # Whoever comes next has the queue to itself.
        with order(NAMES[-1:], here.path):
            wait_until(lambda: get_count(here, NAMES[-1]) == 1)

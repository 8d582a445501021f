"""Each verdict is provoked by a workload that has that fault, through a real mount.

Those that a limit of CPU or memory causes are not: `test_verdict` has their rules, `test_status` how limits are noted.
"""

import mmap
import os
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import pytest

from bench.s3server import Delay, FaultRule, Limit, LoopbackServer, MemoryObjects
from bench.s3server.faults import Action
from fastfuse.filesystem.figures.recorder import samples_of
from fastfuse.filesystem.figures.verdict import Figures, figures_of, judge
from fastfuse.filesystem.talking.control import RECORD, ask, ask_status, entry_of
from fastfuse.hints import hand_over
from fastfuse.metrics import Counters
from tests.filesystem.waiting import wait_until
from tests.mounting import Mount, mounted, run_fastfuse
from tests.semantics.places import place as place_of

pytestmark = pytest.mark.fuse

MIB = 1 << 20
FILE_BYTES = 16 * MIB
FILES = 24
# A verdict needs so many GETs.
ENOUGH = 20
PAGE = mmap.PAGESIZE
# A file that memory has no room for, or all of it might be fetched once reads here and there have waited for long.
HUGE, HUGE_BYTES = "huge", 256 * MIB


@dataclass
class Place:
    """A mount of large files, each of which is read for the first time once."""

    mount: Mount
    server: LoopbackServer
    unread: Iterator[Path]

    def next_files(self, count: int) -> list[Path]:
        return [*islice(self.unread, count)]

    def now(self) -> tuple[float, Counters]:
        record = ask(entry_of(self.mount.path), RECORD)
        return samples_of(record["at"], record["numbers"])[-1]

    @contextmanager
    def gives(self, verdict: str) -> Iterator[None]:
        """Expect this verdict of what happens in the block."""
        _, earlier = self.now()
        # What was read before the block is counted within a second, and CPU last.
        wait_until(lambda: self.now()[1].get("fastfuse_cpu_seconds") > earlier.get("fastfuse_cpu_seconds"))
        began, before = self.now()

        def figures() -> Figures:
            ended, after = self.now()
            # Other work may take the CPUs of this machine.
            return replace(figures_of(after.since(before), elapsed_s=ended - began), loop_wait_s=0.0)

        yield
        # Parts are counted once a second.
        wait_until(lambda: judge(figures()).name == verdict, lambda: f"{judge(figures())} of {figures()}")

    @contextmanager
    def faulty(self, action: Action) -> Iterator[None]:
        rule = self.server.faults.add(FaultRule(action=action, operation="GetObject"))
        try:
            yield
        finally:
            self.server.faults.remove(rule)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    # No order that could be foreseen.
    names = [f"{number:03}" for number in range(FILES)]
    random.Random(1).shuffle(names)
    data = bytes(FILE_BYTES)
    objects = MemoryObjects({f"data/{name}": data for name in names})
    objects.put(f"data/{HUGE}", bytes(HUGE_BYTES), etag='"huge"')
    with (
        LoopbackServer({"bucket": objects}) as server,
        mounted("s3://bucket/data", server.endpoint_url, "--memory-target", "128MiB") as mount,
    ):
        yield Place(mount, server, iter([mount.path / name for name in names]))


def in_order(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(MIB):
            pass


def here_and_there(path: Path) -> None:
    fd, rng = os.open(path, os.O_RDONLY | os.O_DIRECT), random.Random(1)
    with mmap.mmap(-1, PAGE) as page:
        for _ in range(2 * ENOUGH):
            os.preadv(fd, [page], rng.randrange(HUGE_BYTES // PAGE) * PAGE)
    os.close(fd)


def begin(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        for _ in range(4):
            assert file.read(MIB)


def at_once(work: Callable[[Path], None], paths: Sequence[Path], readers: int) -> None:
    with ThreadPoolExecutor(readers) as threads:
        assert [*threads.map(work, paths)]


def together(place: Place, work: Callable[[Path], None], paths: Sequence[Path]) -> None:
    """Read with a reader for each path, all of whom wait for a while at first, however busy the machine is."""

    def have_waited(readers: int, for_us: int) -> bool:
        counters = place.now()[1]
        is_met = counters.get("fastfuse_waiting_reads") >= readers
        return is_met and counters.get("fastfuse_stalled_seconds") >= for_us

    with ThreadPoolExecutor(len(paths)) as threads, place.faulty(Limit(MIB / 4)):
        reading = [threads.submit(work, path) for path in paths]
        wait_until(lambda: have_waited(len(paths), 0))
        until_us = place.now()[1].get("fastfuse_stalled_seconds") + 3_000_000
        wait_until(lambda: have_waited(len(paths), until_us))
    for each in reading:
        each.result()


def test_a_few_reads_tell_nothing(place: Place) -> None:
    with place.gives("too little to judge"), place.faulty(Delay(0.5)):
        in_order(place.next_files(1)[0])


def test_one_reader_of_large_files(place: Place) -> None:
    # The reader has to wait for a share of the time that it takes, which is much on a busy machine.
    with place.gives("too few readers"), place.faulty(Delay(0.5)):
        at_once(in_order, place.next_files(2), readers=1)


def test_readers_that_are_as_fast_as_the_service(place: Place) -> None:
    with place.gives("network limit"):
        # Two requests of each wait at most, and the memory has room for eight.
        together(place, in_order, place.next_files(4))


def test_reads_here_and_there(place: Place) -> None:
    with place.gives("random reads"), place.faulty(Delay(0.02)):
        here_and_there(place.mount.path / HUGE)


def test_a_kernel_that_may_not_read_ahead(place: Place) -> None:
    kernel = Path("/sys/class/bdi", entry_of(place.mount.path).device, "read_ahead_kb")
    before = kernel.read_text()
    kernel.write_text("128")
    with place.gives("readahead not permitted"), place.faulty(Delay(0.1)):
        at_once(in_order, place.next_files(2), readers=1)
    kernel.write_text(before)


def test_more_readers_than_the_memory_has_room_for(place: Place) -> None:
    with place.gives("memory target too small"):
        together(place, begin, place.next_files(12))


def test_small_files_that_are_waited_for_without_hints_and_with_wrong_ones_are_summed_up() -> None:
    # Nothing is foreseen, because the names have no order.
    names = sorted((f"{number:03}" for number in range(400)), key=lambda name: zlib.crc32(name.encode()))[:40]
    with place_of({f"{number:03}": bytes(1000) for number in range(400)}) as here:
        mount = here.mount
        here.server.faults.add(FaultRule(action=Delay(0.02), operation="GetObject"))
        for name in names:
            assert (mount.path / name).read_bytes() == bytes(1000)
        # Parts are counted once a second.
        wait_until(lambda: ask_status(entry_of(mount.path))["summary"]["demanded"] == len(names))
        summary = ask_status(entry_of(mount.path))["summary"]
        assert (summary["gets"], summary["served_bytes"], summary["fetched_bytes"]) == (40, 40_000, 40_000)
        assert (summary["files"], summary["total_bytes"], summary["foreseen_share"]) == (400, 400_000, 0.0)
        assert (summary["hits"], summary["misses"], summary["hit_share"]) == (0, 40, 0.0)
        assert 0 < summary["loop_cpu_s"] <= summary["cpu_s"]
        assert summary["loop_wait_s"] > 0
        assert 0.01 < summary["first_byte_p50_s"] <= summary["first_byte_p99_s"]
        shown = run_fastfuse("stats", "--summary", str(mount.path)).stdout
        # On a machine that is busy enough, its CPU is what they waited for.
        fetched = "small files without hints: files of 1000 B were fetched one by one, 100% of them when"
        assert f"\n{fetched}" in shown or "\nCPU limit: " in shown
        hand_over([f"data/{name}" for name in names], mount.path)
        assert mount.stop() == 0
        assert "wrong hints: 40 of 40 announced paths were no files of the mount" in mount.log

"""Each verdict is provoked by a workload that has that fault, through a real mount.

Those that a limit of CPU or memory causes are not: `test_verdict` has their rules, `test_status` how limits are noted.
"""

import mmap
import os
import random
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import pytest

from bench.s3server import Delay, FaultRule, LoopbackServer, MemoryObjects
from bench.s3server.faults import Action
from fastfuse.filesystem.figures.recorder import samples_of
from fastfuse.filesystem.figures.verdict import Figures, figures_of, judge
from fastfuse.filesystem.talking.control import RECORD, ask, ask_status, entry_of
from fastfuse.hints import hand_over
from fastfuse.metrics import Counters
from tests.filesystem.waiting import wait_until
from tests.mounting import Mount, mounted, run_fastfuse
from tests.semantics.places import forget
from tests.semantics.places import place as place_of

pytestmark = pytest.mark.fuse

MIB = 1 << 20
FILE_BYTES = 16 * MIB
FILES = 24
# A verdict needs so many GETs.
ENOUGH = 20
PAGE = mmap.PAGESIZE


@dataclass
class Place:
    """A mount of large files, each of which is read for the first time once."""

    mount: Mount
    server: LoopbackServer
    files: list[Path]
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
        yield
        self.server.faults.remove(rule)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    # No order that could be foreseen.
    names = [f"{number:03}" for number in range(FILES)]
    random.Random(1).shuffle(names)
    data = bytes(FILE_BYTES)
    with (
        LoopbackServer({"bucket": MemoryObjects({f"data/{name}": data for name in names})}) as server,
        mounted("s3://bucket/data", server.endpoint_url, "--memory-target", "128MiB") as mount,
    ):
        files = [mount.path / name for name in names]
        yield Place(mount, server, files, iter(files))


def in_order(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(MIB):
            pass


def here_and_there(path: Path) -> None:
    fd, rng = os.open(path, os.O_RDONLY | os.O_DIRECT), random.Random(path.name)
    with mmap.mmap(-1, PAGE) as page:
        for _ in range(ENOUGH):
            os.preadv(fd, [page], rng.randrange(FILE_BYTES // PAGE) * PAGE)
    os.close(fd)


def slowly(path: Path) -> None:
    """Read as a script does that computes between two reads."""
    with path.open("rb", buffering=0) as file:
        while file.read(MIB // 4):
            threading.Event().wait(0.02)


def at_once(work: Callable[[Path], None], paths: Sequence[Path], readers: int) -> None:
    with ThreadPoolExecutor(readers) as threads:
        assert [*threads.map(work, paths)]


def test_a_few_reads_tell_nothing(place: Place) -> None:
    with place.gives("too little to judge"), place.faulty(Delay(0.5)):
        in_order(place.next_files(1)[0])


def test_one_reader_of_large_files(place: Place) -> None:
    with place.gives("too few readers"), place.faulty(Delay(0.1)):
        at_once(in_order, place.next_files(2), readers=1)


def test_readers_that_are_as_fast_as_the_service(place: Place) -> None:
    with place.gives("network limit"), place.faulty(Delay(0.1)):
        # Two requests of each wait at most, and the memory has room for eight.
        at_once(in_order, place.next_files(6), readers=4)


def test_reads_here_and_there(place: Place) -> None:
    with place.gives("random reads"), place.faulty(Delay(0.02)):
        at_once(here_and_there, place.next_files(2), readers=2)


def test_a_kernel_that_may_not_read_ahead(place: Place) -> None:
    kernel = Path("/sys/class/bdi", entry_of(place.mount.path).device, "read_ahead_kb")
    before = kernel.read_text()
    kernel.write_text("128")
    with place.gives("readahead not permitted"), place.faulty(Delay(0.1)):
        at_once(in_order, place.next_files(2), readers=1)
    kernel.write_text(before)


def test_more_readers_than_the_memory_has_room_for(place: Place) -> None:
    # On a machine whose cores others take, the readers may come one after the other.
    for may_fail in (True, False):
        forget(place.mount.path)
        try:
            with place.gives("memory target too small"), place.faulty(Delay(0.05)):
                at_once(slowly, place.files, readers=FILES)
            return
        except TimeoutError:
            if not may_fail:
                raise


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
        assert "\nsmall files without hints: files of 1000 B were fetched one by one, 100% of them when" in shown
        hand_over([f"data/{name}" for name in names], mount.path)
        assert mount.stop() == 0
        assert "wrong hints: 40 of 40 announced paths were no files of the mount" in mount.log

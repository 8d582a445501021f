"""What a scripted workload leaves in the metrics, to the byte."""

import errno
import itertools
import mmap
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.s3server import ACCESS_DENIED, SLOW_DOWN, FaultRule, MemoryObjects, Stall
from fastfuse.filesystem.talking.control import ask_status, entry_of
from fastfuse.metrics import BUILD_INFO
from tests.filesystem.waiting import wait_until
from tests.mounting import run_fastfuse
from tests.semantics.places import Place, block_bytes, direct_read, errno_of, place

# Not `urlopen`: a proxy of the environment would be asked.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Scrape:
    """The samples of one moment."""

    def __init__(self, port: int) -> None:
        with OPENER.open(f"http://127.0.0.1:{port}/metrics", timeout=60) as reply:
            families = text_string_to_metric_families(reply.read().decode())
        samples = [sample for family in families for sample in family.samples if family.name != BUILD_INFO.name]
        # Every metric says of which mount it is.
        self.mounts = {(sample.labels.pop("mount"), sample.labels.pop("bucket")) for sample in samples}
        self._samples = {(sample.name, *sample.labels.values()): int(sample.value) for sample in samples}

    def __getitem__(self, key: tuple[str, ...]) -> int:
        name, *labels = key
        return self._samples[(f"fastfuse_{name}", *labels)]


_absent_names = (f"absent{number}" for number in itertools.count())


def settle(here: Place) -> None:
    """The mount counts an answer before the next question comes."""
    assert not (here.path / next(_absent_names)).exists()


@pytest.fixture(scope="module")
def here() -> Iterator[Place]:
    """One mount for the tests that count only what they add themselves."""
    objects = {"small": b"0123456789", "folder/large": block_bytes(1, 100_000), "changed": b"to be changed"}
    with place(objects, "--metrics-listen", "0") as here:
        yield here


def test_a_read_that_the_service_does_not_answer_is_counted_as_waiting(here: Place) -> None:
    port = here.mount.metrics_port()
    assert Scrape(port).mounts == {(str(here.path), "bucket")}
    rule = here.server.faults.add(FaultRule(action=Stall(0), operation="GetObject"))
    with ThreadPoolExecutor(1) as threads:
        read = threads.submit(direct_read, here.path / "small", 4096)
        wait_until(lambda: Scrape(port)["waiting_reads",] == Scrape(port)["gets_in_flight",] == 1)
        assert Scrape(port)["memory_bytes", "in_flight"] == 10
        here.server.faults.remove(rule)
        assert read.result(60) == b"0123456789"
    wait_until(lambda: Scrape(port)["waiting_reads",] == Scrape(port)["gets_in_flight",] == 0)
    assert sum(Scrape(port)["memory_bytes", use] for use in ("in_flight", "unread")) == 0


# These depend on time, on the machine, or on how often the kernel asks for names.
NOT_EXACT = {
    *("blocked_seconds", "stalled_seconds", "unserved_seconds", "in_use_seconds", "asked_seconds"),
    *("cpu_seconds", "loop_cpu_seconds", "loop_cpu_wait_seconds"),
    *("cpu_limit", "memory_limit_bytes", "requests", "streams", "pool_bytes", "memory_bytes", "worker_beats"),
    *("worker_memory_bytes", "table_memory_bytes", "kernel_readahead_bytes", "listed_timestamp_seconds"),
}
# Files among which the ones that are read lie in no order, so that nothing is foreseen.
OTHERS = 400
PLACES = {"whole": (50, 350), "large": (10, 90), "busy": (200, 130), "denied": (120, 230), "changed": (280, 30)}
SIZES = {"whole": 10, "large": 100_000, "busy": 100_000, "denied": 30, "changed": 40}


def each_outcome_once(here: Place, number: int) -> None:
    """Read a file whole, two in two requests, of which S3 refuses one once, and two that cannot be read."""
    keys = {name: f"{places[number]:03}-{name}" for name, places in PLACES.items()}
    faults = here.server.faults
    faults.add(FaultRule(action=ACCESS_DENIED, operation="GetObject", key=keys["denied"]))
    faults.add(FaultRule(action=SLOW_DOWN, operation="GetObject", key=keys["busy"], times=1))
    here.objects.put(keys["changed"], b"another")
    for name, requests in {"whole": 1, "large": 2, "busy": 2}.items():
        part_bytes = -(-SIZES[name] // requests // 4096) * 4096
        data = b"".join(direct_read(here.path / keys[name], part_bytes, part_bytes * at) for at in range(requests))
        assert len(data) == SIZES[name]
    for name, error in {"denied": errno.EACCES, "changed": errno.ESTALE}.items():
        assert errno_of(direct_read, here.path / keys[name], 4096) == error
    # Questions about what is not there are no errors.
    assert errno_of(os.getxattr, here.path / keys["whole"], "user.nothing") == errno.ENODATA


def wanted_after(rounds: int) -> dict[str, int]:
    """Every number that is not 0 after so many rounds, in all of which but the first another worker answered."""
    read_bytes = sum(SIZES[name] for name in ("whole", "large", "busy"))
    each = {
        'fetch_requests{outcome="ok"}': 3,
        'fetch_requests{outcome="denied"}': 1,
        'fetch_requests{outcome="changed"}': 1,
        "fetched_bytes": read_bytes,
        "whole_gets": 3,
        'fetched_parts{asker="demanded"}': 5,  # two are all of a large file, for its first read
        'retries{cause="throttled"}': 1,
        "answered_gets": 6,
        "refused_gets": 1,
        'verified_objects{outcome="none"}': 3,
        "read_served_bytes": read_bytes,
        'read_source_bytes{source="demanded"}': 10 + 2 * 53_248,
        'read_source_bytes{source="ahead"}': 2 * 46_752,
        'reads{outcome="hit"}': 2,
        'reads{outcome="miss"}': 5,
        'errors{errno="EACCES"}': 1,
        'errors{errno="ESTALE"}': 1,
    }
    of_the_source = {
        "objects_listed": OTHERS + 2 * len(SIZES),
        "index_requests": 1,
        "table_files": OTHERS + 2 * len(SIZES),
        "table_bytes": OTHERS + 2 * sum(SIZES.values()),
        "memory_target_bytes": 256 << 20,
    }
    numbers = {name: count * rounds for name, count in each.items()}
    return {name: count for name, count in {**numbers, **of_the_source, "worker_respawns": rounds - 1}.items() if count}


def test_every_metric_is_exact_before_and_after_the_death_of_a_worker() -> None:
    """L3"""
    objects = {f"{number:03}": b"x" for number in range(OTHERS)}
    for name, places in PLACES.items():
        objects |= {f"{number:03}-{name}": block_bytes(1, SIZES[name]) for number in places}
    with place(objects) as here:

        def found() -> dict[str, float]:
            counters = ask_status(entry_of(here.path))["counters"]
            short = {name.removeprefix("fastfuse_"): number for name, number in counters.items() if number}
            return {name: number for name, number in short.items() if name.partition("{")[0] not in NOT_EXACT}

        def wait_until_exact(wanted: dict[str, int]) -> None:
            # Parts are counted once a second.
            wait_until(lambda: found() == wanted, lambda: str({*found().items()} ^ {*wanted.items()}))

        each_outcome_once(here, 0)
        wait_until_exact(wanted_after(1))
        os.kill(here.mount.worker(), signal.SIGKILL)
        each_outcome_once(here, 1)
        wait_until_exact(wanted_after(2))


def test_bytes_that_wait_for_a_reader_are_told_and_are_waste_once_their_object_is_gone() -> None:
    data = block_bytes(1, 1 << 20)
    files = MemoryObjects({"one": data, "two": b""})
    with place(files, "--metrics-listen", "0", "--memory-target", "128MiB") as here:
        port = here.mount.metrics_port()
        assert direct_read(here.path / "one", 4096) == data[:4096]
        wait_until(lambda: Scrape(port)["fetched_bytes_total",] == Scrape(port)["memory_bytes", "unread"] == 1 << 20)
        assert [Scrape(port)[name,] for name in ("wasted_bytes_total", "memory_target_bytes")] == [0, 128 << 20]
        assert 1 << 20 < Scrape(port)["worker_memory_bytes",] < 256 << 20
        files.delete("one")
        assert run_fastfuse("refresh", str(here.path)).returncode == 0
        wait_until(lambda: Scrape(port)["wasted_bytes_total",] == (1 << 20) - 4096)


def test_objects_are_counted_while_they_are_listed() -> None:
    files = MemoryObjects({f"{number:04}": b"" for number in range(1500)})
    with place(files, "--metrics-listen", "0") as here:
        port = here.mount.metrics_port()
        assert Scrape(port)["objects_listed_total",] == 1500
        # The first page comes, and no other.
        rule = here.server.faults.add(FaultRule(action=Stall(0), operation="ListObjectsV2", skip=1))
        here.mount.process.send_signal(signal.SIGHUP)
        wait_until(lambda: Scrape(port)["objects_listed_total",] == 2500)
        here.server.faults.remove(rule)
        wait_until(lambda: Scrape(port)["objects_listed_total",] == 3000)


def test_the_memory_of_the_inode_table_is_told_apart() -> None:
    names = {f"{number:05}": b"" for number in range(2000)}
    files = MemoryObjects({"one": b""})
    with place(files, "--metrics-listen", "0") as here:
        port = here.mount.metrics_port()

        def is_what_the_worker_maps() -> bool:
            maps = Path(f"/proc/{here.mount.worker()}/maps").read_text()
            found = re.findall(r"^(\w+)-(\w+) r.*/memfd:fastfuse-index", maps, re.MULTILINE)
            mapped_bytes = sum(int(end, 16) - int(start, 16) for start, end in found)
            return 0 <= mapped_bytes - Scrape(port)["table_memory_bytes",] < mmap.PAGESIZE

        wait_until(is_what_the_worker_maps)
        for name, content in names.items():
            files.put(name, content)
        assert run_fastfuse("refresh", str(here.path)).returncode == 0
        assert Scrape(port)["table_memory_bytes",] > 2000 * 50
        wait_until(is_what_the_worker_maps)


def health(port: int) -> tuple[int, str]:
    try:
        with OPENER.open(f"http://127.0.0.1:{port}/healthz", timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_mount_is_ill_while_every_read_fails_and_well_once_one_succeeds(here: Place) -> None:
    port = here.mount.metrics_port()
    denied = here.server.faults.add(FaultRule(action=ACCESS_DENIED, operation="GetObject"))
    assert health(port) == (200, "ok\n")

    def is_ill() -> bool:
        with pytest.raises(PermissionError):
            direct_read(here.path / "small", 4096)
        return health(port) == (503, "reads fail: nothing was delivered\n")

    wait_until(is_ill)
    assert Scrape(port)["reads_failing",] == 1
    done = run_fastfuse("status", str(here.path))
    assert done.returncode == 1
    assert re.search(r"\n  trouble   for \d+ s: [1-9]\d* × EACCES; reads fail\n", done.stdout)
    here.server.faults.remove(denied)
    assert direct_read(here.path / "small", 4096) == b"0123456789"
    wait_until(lambda: health(port) == (200, "ok\n"))
    wait_until(lambda: ask_status(entry_of(here.path))["state"] == "ok")
    wait_until(lambda: re.search(r"reads succeed again after \d+ s: [1-9]\d* × EACCES", here.mount.log) is not None)


def test_a_mount_is_well_though_an_object_has_changed(here: Place) -> None:
    here.objects.put("changed", b"another one")
    with pytest.raises(OSError, match="Stale"):
        direct_read(here.path / "changed", 4096)
    # With what the worker thinks of it.
    wait_until(lambda: "failed with ESTALE" in run_fastfuse("status", str(here.path), "--json").stdout)
    assert health(here.mount.metrics_port()) == (200, "ok\n")


def test_a_second_listing_and_a_second_read_of_what_the_kernel_has_ask_nothing(here: Place) -> None:
    port = here.mount.metrics_port()
    path = here.path / "folder" / "large"

    def use() -> None:
        assert os.listdir(here.path / "folder") == ["large"]
        with os.scandir(here.path) as entries:
            assert {entry.name for entry in entries if entry.stat().st_mode} >= {"folder", "small"}
        assert path.read_bytes() == block_bytes(1, 100_000)
        assert direct_stat(path) == 100_000

    for _ in range(2):  # the kernel opens nothing by itself before it was told to, once for each kind
        use()

    def asked() -> float:
        before = Scrape(port)["requests_total",]
        use()
        return Scrape(port)["requests_total",] - before

    wait_until(lambda: asked() == 0)  # what threads have answered before is counted within a second


def direct_stat(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)

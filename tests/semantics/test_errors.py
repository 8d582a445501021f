"""Clauses D5 and D6: which errno for which misfortune, and for nobody else."""

import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.s3server import (
    ACCESS_DENIED,
    INTERNAL_ERROR,
    SERVICE_UNAVAILABLE,
    SLOW_DOWN,
    FaultRule,
    MemoryObjects,
    Reset,
    Stall,
    Truncate,
)
from bench.s3server.faults import Action
from tests.semantics.places import Place, block_bytes, direct_read, errno_of, place

MIB = 1 << 20
SIZE = 300_000
DEADLINE_S = 3.0
# Each comes to nothing until the deadline.
MISFORTUNES: dict[str, Action] = {
    "throttled": SLOW_DOWN,
    "unavailable": SERVICE_UNAVAILABLE,
    "broken": INTERNAL_ERROR,
    "refused": Reset(None),
    "reset": Reset(100),
    "truncated": Truncate(100),
    "stalled": Stall(100),
    "silent": Stall(0),
}


def test_an_archived_object_is_refused_until_it_is_restored_and_the_log_says_what_to_do() -> None:
    """D5"""
    objects = MemoryObjects({"warm": b"warm"})
    objects.put("cold", block_bytes(1, SIZE), storage_class="DEEP_ARCHIVE")
    objects.put("instant", block_bytes(2, SIZE), storage_class="GLACIER_IR")
    objects.put("empty", b"", storage_class="GLACIER")
    with place(objects) as here:
        with (here.path / "cold").open("rb", buffering=0) as cold:
            for _ in range(2):
                assert errno_of(cold.read) == errno.EACCES
        archived = "s: 'cold' is in an archive storage class (DEEP_ARCHIVE). Restore the object first."
        assert here.mount.log.count(archived) == 1
        assert here.mount.log.count("a read at 0 failed with EACCES after ") == 1
        assert os.stat(here.path / "cold").st_size == SIZE
        objects.put("cold", block_bytes(1, SIZE))  # what a GET sees of a restored object; its ETag is the same
        assert (here.path / "cold").read_bytes() == block_bytes(1, SIZE)
        assert (here.path / "instant").read_bytes() == block_bytes(2, SIZE)
        assert (here.path / "empty").read_bytes() == b""
        assert (here.path / "warm").read_bytes() == b"warm"


@pytest.fixture(scope="module")
def troubled() -> Iterator[Place]:
    """A file for each misfortune, none of which passes."""
    data = {name: block_bytes(1, SIZE) for name in (*MISFORTUNES, "con\ntrol")}
    with place(data, "--read-deadline-s", str(DEADLINE_S)) as here:
        for name, action in MISFORTUNES.items():
            here.server.faults.add(FaultRule(action=action, operation="GetObject", key=name))
        here.server.faults.add(FaultRule(action=SLOW_DOWN, operation="GetObject", key="con*"))
        yield here
        here.server.faults.clear()


def test_a_misfortune_that_lasts_is_an_input_output_error_within_the_deadline(troubled: Place) -> None:
    """D5"""
    names = [*MISFORTUNES, "con\ntrol"]
    with ThreadPoolExecutor(len(names) * 2) as threads:
        buffered = [threads.submit(errno_of, (troubled.path / name).read_bytes) for name in names]
        direct = [threads.submit(errno_of, direct_read, troubled.path / name, 4096, 4096) for name in names]
        # A default deadline would be twenty times as long.
        answers = [future.result(10 * DEADLINE_S) for future in buffered + direct]
    assert answers == [errno.EIO] * 2 * len(names)
    for name in names:
        assert (troubled.path / name).stat().st_size == SIZE
    assert re.search(
        r"WARNING .*: a read at \d+ failed with EIO after \d\.\d s: '.*' could not be read", troubled.mount.log
    )


def test_a_stalled_object_delays_no_other() -> None:
    """D6: though it has more readers than there are connections."""
    readers = 72
    good = {f"good{number}": block_bytes(number, SIZE) for number in range(8)}
    rule = FaultRule(action=Stall(0), operation="GetObject", key="silent")
    # Larger than a part, which is one GET for all who read it, and read at places too far apart for parts of more.
    silent = bytes(readers * 2 * MIB)
    with place({"silent": silent, **good}) as here, ThreadPoolExecutor(readers + len(good)) as threads:
        here.server.faults.add(rule)
        stalled = [
            threads.submit(direct_read, here.path / "silent", 4096, number * 2 * MIB) for number in range(readers)
        ]
        # Three quarters of the connections is what one file may have.
        here.wait_for_gets(48)
        read = [threads.submit((here.path / name).read_bytes) for name in good]
        assert [future.result() for future in read] == [*good.values()]
        assert not any(future.done() for future in stalled)
        here.server.faults.clear()
        assert [future.result() for future in stalled] == [bytes(4096)] * readers


# Reads the first page of a file, past the page cache or in a map.
_READER = """
import mmap, os, sys
if sys.argv[2] == "map":
    mapped = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, prot=mmap.PROT_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    mapped[0]
else:
    os.preadv(os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT), [mmap.mmap(-1, 4096)], 0)
"""


def test_a_reader_that_is_killed_ends_although_the_service_does_not_answer() -> None:
    """D5"""
    cases = {"small": (4096, "direct"), "large": (8 * MIB, "direct"), "mapped": (8 * MIB, "map")}
    data = {name: block_bytes(number, size) for number, (name, (size, _)) in enumerate(cases.items())}
    with place(data) as here:
        here.server.faults.add(FaultRule(action=Stall(0), operation="GetObject"))
        readers = [
            subprocess.Popen([sys.executable, "-c", _READER, here.path / name, how]) for name, (_, how) in cases.items()
        ]
        here.wait_for_gets(len(readers))
        for reader in readers:
            reader.kill()
        assert [reader.wait(30) for reader in readers] == [-signal.SIGKILL] * len(readers)
        here.server.faults.clear()
        assert {name: (here.path / name).read_bytes() for name in data} == data


def test_a_mount_ends_without_the_reads_of_killed_readers() -> None:
    """L2"""
    with place({"large": block_bytes(1, 8 * MIB)}, "--grace-s", "10") as here:
        here.server.faults.add(FaultRule(action=Stall(0), operation="GetObject"))
        reader = subprocess.Popen([sys.executable, "-c", _READER, here.path / "large", "direct"])
        here.wait_for_gets(1)
        reader.kill()
        reader.wait(30)
        assert here.mount.stop() == 0
        assert "under way fail" not in here.mount.log


def test_a_log_that_nobody_reads_stops_no_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    os.mkfifo(log)
    with open(os.open(log, os.O_RDWR | os.O_NONBLOCK), "r+b", buffering=0) as pipe:
        while pipe.write(b"." * 4096):
            pass
        with place({"denied": b"1", "granted": b"2"}, "--log-file", str(log), "--verbose") as here:
            here.server.faults.add(FaultRule(action=ACCESS_DENIED, operation="GetObject", key="denied"))
            assert errno_of((here.path / "denied").read_bytes) == errno.EACCES
            assert (here.path / "granted").read_bytes() == b"2"

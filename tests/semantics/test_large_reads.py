"""Clause D1 where threads write the replies: whatever comes together, each request gets its own answer."""

import errno
import fcntl
import hashlib
import json
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.s3server import FaultRule, Stall
from fastfuse.filesystem.talking.control import ask_status, entry_of
from tests.filesystem.waiting import PATIENCE_S, wait_until
from tests.mounting import fuse_connections
from tests.readahead.readers import tensors
from tests.semantics.places import block_bytes, direct_read, gets, place

MIB = 1 << 20
# linux/fs.h
_FS_IOC_GETFLAGS = 0x80086601


def read_at(descriptor: int, offset: int) -> bytes:
    with mmap.mmap(-1, MIB) as buffer:
        return buffer[: os.preadv(descriptor, [buffer], offset)]


def test_many_large_reads_that_wait_for_one_get_are_answered_although_no_other_request_comes() -> None:
    """D1"""
    size = 40 * MIB
    data = block_bytes(1, size)
    with (
        ThreadPoolExecutor(40) as threads,
        place({"file": data}, "--part-size", "64MiB", "--memory-target", "512MiB") as here,
        fuse_connections() as connections,
    ):
        waiting = connections / str(os.minor(os.stat(here.path).st_dev)) / "waiting"
        rule = here.server.faults.add(FaultRule(action=Stall(0), operation="GetObject"))
        # One descriptor for all, so that nobody who is done asks for anything more.
        descriptor = os.open(here.path / "file", os.O_RDONLY | os.O_DIRECT)
        readers = [threads.submit(read_at, descriptor, offset) for offset in range(0, size, MIB)]
        # More of them than tasks that stay when there is nothing to do, and all are answered in one go.
        wait_until(lambda: int(waiting.read_text()) == len(readers))
        here.server.faults.remove(rule)
        assert b"".join(reader.result(PATIENCE_S) for reader in readers) == data
        os.close(descriptor)
        assert len(gets(here)) == 1


# In a process of its own, as a page fault lets no thread of that process serve it.
FAULTS = """
import hashlib, json, mmap, sys
ranges = json.load(sys.stdin)
hashes = hashlib.sha256()
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
    for start, end in ranges:
        hashes.update(mapping[start:end])
print(hashes.hexdigest())
"""


def test_a_mapped_checkpoint_is_fetched_once_although_the_order_of_its_keys_is_not_the_order_in_the_file() -> None:
    """D3"""
    ranges = tensors(1, 128 * MIB, 6 * MIB)
    data = block_bytes(1, max(end for _, end in ranges))
    with place({"checkpoint": data}) as here:
        command = [sys.executable, "-c", FAULTS, str(here.path / "checkpoint")]
        read = subprocess.run(
            command, input=json.dumps(ranges), capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
        assert read.stdout.strip() == hashlib.sha256(b"".join(data[slice(*place)] for place in ranges)).hexdigest()
        fetched_bytes = sum(record.range[1] - record.range[0] for record in gets(here) if record.range)
    assert fetched_bytes <= 1.05 * len(data)


def test_a_model_whose_tensors_were_looked_at_is_not_read_page_by_page() -> None:
    """D3"""
    tensor_bytes, tensors = 8 * MIB, 16
    looks = [(at + 40_960, at + 45_056) for at in range(0, tensors * tensor_bytes, tensor_bytes)]
    data = block_bytes(1, tensors * tensor_bytes)
    with place({"model": data}) as here:
        command = [sys.executable, "-c", FAULTS, str(here.path / "model")]
        read = subprocess.run(
            command, input=json.dumps([*looks, (0, len(data))]), capture_output=True, text=True,
            timeout=PATIENCE_S, check=True,
        )  # fmt: skip
        expected = b"".join([*(data[slice(*look)] for look in looks), data])
        assert read.stdout.strip() == hashlib.sha256(expected).hexdigest()
        requests = ask_status(entry_of(here.path))["counters"]["fastfuse_requests"]
        fetched_bytes = sum(record.range[1] - record.range[0] for record in gets(here) if record.range)
    # 256 for each MiB around a page that was looked at, if the kernel asks for its pages one by one.
    assert requests <= tensors * 128
    assert fetched_bytes <= 1.02 * len(data)


def test_requests_of_all_kinds_among_large_reads_get_their_own_answers() -> None:
    """D1"""
    data = {f"file{number}": block_bytes(number, 24 * MIB) for number in range(4)}
    over = threading.Event()

    def ask(calls: Callable[[Path], None], path: Path) -> int:
        rounds = 0
        while not over.is_set():
            calls(path)
            rounds += 1
        return rounds

    def look_at(path: Path) -> None:
        assert os.getxattr(path, "user.s3.key") == path.name.encode()
        assert os.statvfs(path).f_bfree == 0
        with path.open("rb") as file, pytest.raises(OSError, match=os.strerror(errno.ENOTTY)):
            fcntl.ioctl(file, _FS_IOC_GETFLAGS, bytearray(8))

    def read_small(path: Path) -> None:
        for offset in range(0, 24 * MIB, MIB):
            assert direct_read(path, 4096, offset) == data[path.name][offset : offset + 4096]

    def read_large(path: Path) -> None:
        for _ in range(4):
            for offset in range(0, 24 * MIB, MIB):
                assert direct_read(path, MIB, offset) == data[path.name][offset : offset + MIB]

    with ThreadPoolExecutor(8) as threads, place(data) as here:
        others = [threads.submit(ask, calls, here.path / "file0") for calls in (look_at, read_small)]
        readers = [threads.submit(read_large, here.path / name) for name in data]
        try:
            for reader in readers:
                reader.result(PATIENCE_S)
        finally:
            over.set()
        assert all(other.result(PATIENCE_S) for other in others)

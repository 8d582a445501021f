"""Twenty channels, as many as a job may have: one process tree, which starts and ends as one and keeps its budget."""

import os
import signal
from collections.abc import Iterator

import pytest

from bench.processes import process_tree
from bench.server import Server
from fastfuse.filesystem.mounting.mountpoint import fastfuse_mounts
from tests.filesystem.waiting import wait_for_end
from tests.sagemaker.running.jobs import BUCKET, channel, running
from tests.semantics.leftovers import descendants

MIB = 1 << 20
COUNT = 20
NAMES = [f"channel{number}" for number in range(COUNT)]
FILE_BYTES = 96 * MIB

# All channels at once, each past the page cache of its mount; then it waits.
READ_ALL = f"""
import os, signal
from concurrent.futures import ThreadPoolExecutor
def read(number):
    [file] = os.scandir(os.environ[f"SM_CHANNEL_CHANNEL{{number}}"])
    fd, total = os.open(file, os.O_RDONLY), 0
    while size := len(os.read(fd, {MIB})):
        total += size
        os.posix_fadvise(fd, 0, total, os.POSIX_FADV_DONTNEED)
    return total
with ThreadPoolExecutor({COUNT}) as pool:
    print("read", sum(pool.map(read, range({COUNT}))), flush=True)
signal.pause()
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(f"count=1,size={FILE_BYTES}", bucket=BUCKET) as running_server:
        yield running_server


def memory_bytes(pid: int) -> int:
    """What a process tree has, shared pages counted once."""
    total = 0
    for process in process_tree(pid):
        with open(f"/proc/{process}/smaps_rollup") as file:
            total += next(int(line.split()[1]) for line in file if line.startswith("Pss:")) << 10
    return total


def test_twenty_channels_are_one_tree_that_keeps_its_budget_and_ends_as_one(server: Server) -> None:
    channels = [channel(name, "FastFile") for name in NAMES]
    target_bytes = COUNT * 128 * MIB
    options = ("--memory-target", str(target_bytes))
    with running(server.endpoint_url, channels, *options, command=READ_ALL) as job:
        job.wait_for_output(f"read {COUNT * FILE_BYTES}")
        assert {path.name for path in fastfuse_mounts() if path.is_relative_to(job.data)} == set(NAMES)
        processes = descendants(job.process.pid)
        # The command, the guardian, and of each channel a supervisor and a worker.
        assert len(processes) == 2 + 2 * COUNT
        assert memory_bytes(job.process.pid) <= target_bytes
        ends = [os.pidfd_open(pid) for pid in processes]
        assert job.stop() == 128 + signal.SIGTERM
        for end in ends:
            wait_for_end(end)
        assert not [path for path in fastfuse_mounts() if path.is_relative_to(job.data)]

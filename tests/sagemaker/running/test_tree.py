"""Twenty channels, as many as a job may have: one process tree, which starts and ends as one."""

import os
import signal
from collections.abc import Iterator

import pytest

from bench.server import Server
from fastfuse.filesystem.mounting.mountpoint import fastfuse_mounts
from tests.filesystem.waiting import wait_for_end
from tests.sagemaker.running.jobs import BUCKET, channel, running
from tests.semantics.leftovers import descendants

MIB = 1 << 20
COUNT = 20
NAMES = [f"channel{number}" for number in range(COUNT)]
FILE_BYTES = MIB

# Reads all channels at once, then waits.
READ_ALL = f"""
import os, signal
from concurrent.futures import ThreadPoolExecutor
def read(number):
    [file] = os.scandir(os.environ[f"SM_CHANNEL_CHANNEL{{number}}"])
    with open(file, "rb") as opened:
        return len(opened.read())
with ThreadPoolExecutor({COUNT}) as pool:
    print("read", sum(pool.map(read, range({COUNT}))), flush=True)
signal.pause()
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(f"count=1,size={FILE_BYTES}", bucket=BUCKET) as running_server:
        yield running_server


def test_twenty_channels_are_one_tree_that_ends_as_one(server: Server) -> None:
    channels = [channel(name, "FastFile") for name in NAMES]
    with running(server.endpoint_url, channels, command=READ_ALL) as job:
        job.wait_for_output(f"read {COUNT * FILE_BYTES}")
        assert {path.name for path in fastfuse_mounts() if path.is_relative_to(job.data)} == set(NAMES)
        processes = descendants(job.process.pid)
        # The command, the guardian, and of each channel a supervisor and a worker.
        assert len(processes) == 2 + 2 * COUNT
        ends = [os.pidfd_open(pid) for pid in processes]
        assert job.stop() == 128 + signal.SIGTERM
        for end in ends:
            wait_for_end(end)
        assert not [path for path in fastfuse_mounts() if path.is_relative_to(job.data)]

"""A listing that is killed, through real processes: there is a whole mount or none.

`test_lister` and `test_fault_matrix` have services that break off or throttle.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.s3server import FaultRule, LoopbackServer, MemoryObjects, ServerConfig, Stall
from fastfuse.filesystem.mounting.mountpoint import find_mount
from tests.forked import Forked
from tests.mounting import ENVIRONMENT, children_of, mount_command

KEYS = [f"{folder}/{number:03}" for folder in "abc" for number in range(100)]


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer({"bucket": MemoryObjects(dict.fromkeys(KEYS, b"x"))}, ServerConfig(page_keys_max=10)) as server:
        yield server


@pytest.mark.parametrize("page", [0, 5])
def test_a_listing_that_is_killed_mounts_nothing(server: LoopbackServer, tmp_path: Path, page: int) -> None:
    server.faults.add(FaultRule(action=Stall(10), operation="ListObjectsV2", skip=page))
    command = mount_command("s3://bucket", tmp_path, server.endpoint_url)
    with Forked(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        try:
            server.wait_until(lambda now: now.requests.get("ListObjectsV2", 0) > page, 60)
            [lister] = children_of(process.pid)
            os.kill(lister, signal.SIGKILL)
            _, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 1
    assert stderr == "fastfuse: error: the lister was killed by signal 9\nhint: out of memory?\n"
    assert find_mount(tmp_path) is None

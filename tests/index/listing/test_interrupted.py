"""Listings that are killed, cut or throttled at any page, through real processes: a whole mount or none."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.s3server import INTERNAL_ERROR, FaultRule, LoopbackServer, MemoryObjects, ServerConfig, Stall
from fastfuse.filesystem.mountpoint import find_mount
from tests.forked import Forked, run_forked
from tests.mounting import ENVIRONMENT, mount_command

KEYS = [f"{folder}/{number:03}" for folder in "abc" for number in range(100)]
# A listing gives up within seconds instead of minutes.
IMPATIENT = """
import sys
from fastfuse.index.listing import page
page.LIST_DEADLINE_S = 2.0
from fastfuse.cli.main import main
sys.exit(main())
"""


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
            [lister] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(lister), signal.SIGKILL)
            _, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 1
    assert stderr == "fastfuse: error: the lister was killed by signal 9\nhint: out of memory?\n"
    assert find_mount(tmp_path) is None


# At which page it breaks off is no other matter here, nor how: see test_lister and test_fault_matrix.
def test_a_service_that_breaks_off_for_good_mounts_nothing(server: LoopbackServer, tmp_path: Path) -> None:
    server.faults.add(FaultRule(action=INTERNAL_ERROR, operation="ListObjectsV2", skip=2))
    command = mount_command("s3://bucket", tmp_path, server.endpoint_url)
    command = [sys.executable, "-c", IMPATIENT, *command[command.index("mount") :]]
    done = run_forked(command, ENVIRONMENT)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("fastfuse: error: ")]
    assert len(errors) == 1
    assert "Traceback" not in done.stderr
    assert find_mount(tmp_path) is None
    assert server.statistics().requests["ListObjectsV2"] > 2

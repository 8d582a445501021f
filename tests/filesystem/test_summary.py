"""A real mount counts exactly, over the death of a worker, and says in the end whether readers waited."""

import os
import signal
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from fastfuse.filesystem.control import ask_status, entry_of
from fastfuse.testing import Delay, FaultRule, LoopbackServer, MemoryObjects
from tests.filesystem.waiting import wait_until
from tests.mounting import Mount, mounted, run_fastfuse

pytestmark = pytest.mark.fuse

# Nothing is foreseen, because the names have no order.
NAMES = sorted((f"{number:03}" for number in range(400)), key=lambda name: zlib.crc32(name.encode()))[:40]


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer(
        {"bucket": MemoryObjects({f"data/{number:03}": bytes(1000) for number in range(400)})}
    ) as running:
        yield running


def status_of(mount: Mount) -> dict[str, Any]:
    return ask_status(entry_of(mount.path))


def wait_for_parts(mount: Mount, count: int) -> None:
    """Wait until so many are counted, which happens once a second."""
    wait_until(lambda: status_of(mount)["summary"]["demanded"] == count, lambda: str(status_of(mount)))


def read(mount: Mount, names: list[str]) -> None:
    for name in names:
        assert (mount.path / name).read_bytes() == bytes(1000)


def test_every_read_and_get_is_counted_once_whichever_worker_answered_it(server: LoopbackServer) -> None:
    with mounted("s3://bucket/data", server.endpoint_url) as mount:
        read(mount, NAMES[:10])
        wait_for_parts(mount, 10)
        before = status_of(mount)["summary"]
        assert (before["gets"], before["served_bytes"], before["fetched_bytes"]) == (10, 10_000, 10_000)
        assert (before["files"], before["total_bytes"]) == (400, 400_000)
        os.kill(status_of(mount)["worker_pid"], signal.SIGKILL)
        read(mount, NAMES[10:30])
        wait_for_parts(mount, 30)
        after = status_of(mount)["summary"]
        assert (after["gets"], after["served_bytes"], after["fetched_bytes"]) == (30, 30_000, 30_000)
        assert (after["demanded"], after["foreseen_share"]) == (30, 0.0)
        assert after["cpu_s"] > 0
        assert 0 < after["first_byte_p50_s"] <= after["first_byte_p99_s"]
        assert mount.stop() == 0


def test_small_files_that_are_waited_for_are_the_verdict(server: LoopbackServer) -> None:
    rule = server.faults.add(FaultRule(action=Delay(0.02), operation="GetObject"))
    try:
        with mounted("s3://bucket/data", server.endpoint_url) as mount:
            read(mount, NAMES)
            wait_for_parts(mount, len(NAMES))
            assert status_of(mount)["summary"]["first_byte_p50_s"] > 0.01
            shown = run_fastfuse("stats", "--summary", str(mount.path)).stdout
            assert "\nsmall files without hints: files of 1000 B were fetched when they were opened" in shown
            assert mount.stop() == 0
            assert "small files without hints: files of 1000 B" in mount.log
    finally:
        server.faults.remove(rule)

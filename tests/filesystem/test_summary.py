"""A real mount sums up what it counted, and says in the end whether readers waited."""

import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from bench.s3server import Delay, FaultRule, LoopbackServer, MemoryObjects
from fastfuse.filesystem.control import ask_status, entry_of
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


def test_small_files_that_are_waited_for_are_the_verdict(server: LoopbackServer) -> None:
    rule = server.faults.add(FaultRule(action=Delay(0.02), operation="GetObject"))
    try:
        with mounted("s3://bucket/data", server.endpoint_url) as mount:
            read(mount, NAMES)
            wait_for_parts(mount, len(NAMES))
            summary = status_of(mount)["summary"]
            assert (summary["gets"], summary["served_bytes"], summary["fetched_bytes"]) == (40, 40_000, 40_000)
            assert (summary["files"], summary["total_bytes"], summary["foreseen_share"]) == (400, 400_000, 0.0)
            assert (summary["hits"], summary["misses"], summary["hit_share"]) == (0, 40, 0.0)
            assert summary["cpu_s"] > 0
            assert 0.01 < summary["first_byte_p50_s"] <= summary["first_byte_p99_s"]
            shown = run_fastfuse("stats", "--summary", str(mount.path)).stdout
            assert "\nsmall files without hints: files of 1000 B were fetched when they were opened" in shown
            assert mount.stop() == 0
            assert "small files without hints: files of 1000 B" in mount.log
    finally:
        server.faults.remove(rule)

"""What a worker tells of its reads, second by second."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from fastfuse.filesystem import worker
from fastfuse.filesystem.status import Board
from fastfuse.metrics import Counters
from fastfuse.s3.retries import Retries


async def test_the_end_of_failing_reads_is_told_with_the_time_since_the_first(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody reads for 25 s after the failures, and the mount counts as failing for 10 s of them only."""
    caplog.set_level("INFO")
    counters, operations = Counters(), cast("Any", SimpleNamespace(last_errors=()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker._show, Board(), operations, Retries(), counters)
        await trio.sleep(0.5)
        counters.add(counters.slot("fastfuse_errors", "EIO"), 15)
        await trio.sleep(30)
        assert not caplog.messages
        counters.add(counters.slot("fastfuse_read_served_bytes"), 1)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert caplog.messages == ["reads succeed again after 30 s: 15 × EIO"]

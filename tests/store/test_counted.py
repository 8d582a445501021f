from collections.abc import Callable

import pytest
import trio

from fastfuse.errors import (
    BadReplyError,
    DeadlineError,
    ObjectArchivedError,
    ObjectChangedError,
    ObjectDeniedError,
    StoreUnsuitableError,
    UnavailableError,
)
from fastfuse.metrics import OUTCOMES, Counters
from fastfuse.store.counted import CountingReader
from fastfuse.store.memory import MemoryStore
from tests.fakes import BlockingReader, FailingReader


def outcomes(counters: Counters) -> dict[str, int]:
    counts = {outcome: counters.get("fastfuse_fetch_requests", outcome) for outcome in OUTCOMES}
    return {outcome: count for outcome, count in counts.items() if count}


async def test_bytes_and_requests_are_counted_as_they_arrive() -> None:
    store, counters = MemoryStore(), Counters()
    ref = store.put("a", b"0123456789")
    reader = CountingReader(store, counters)
    assert bytes(await reader.get_range(ref, 2, 5)) == b"234"
    assert bytes(await reader.get_range(ref, 0, 10)) == b"0123456789"
    assert outcomes(counters) == {"ok": 2}
    assert counters.get("fastfuse_fetched_bytes") == 13


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (lambda: ObjectChangedError("x"), "changed"),
        (lambda: ObjectDeniedError("x"), "denied"),
        (lambda: ObjectArchivedError("x"), "denied"),
        (lambda: UnavailableError("x"), "unavailable"),
        (lambda: DeadlineError("x"), "deadline"),
        (lambda: BadReplyError("x"), "bad_reply"),
        (lambda: StoreUnsuitableError("x", whole_server=True), "other"),
        (lambda: ValueError("x"), "other"),
    ],
)
async def test_a_failure_is_counted_by_its_family_and_passed_on(error: Callable[[], Exception], outcome: str) -> None:
    store, counters = MemoryStore(), Counters()
    ref = store.put("a", b"x")
    reader = CountingReader(FailingReader(store, error, times=1), counters)
    with pytest.raises(type(error())):
        await reader.get_range(ref, 0, 1)
    assert outcomes(counters) == {outcome: 1}
    assert counters.get("fastfuse_fetched_bytes") == 0


async def test_a_cancelled_read_is_counted_as_that() -> None:
    store, counters = MemoryStore(), Counters()
    ref = store.put("a", b"x")
    blocking = BlockingReader(store)
    reader = CountingReader(blocking, counters)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.get_range, ref, 0, 1)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert blocking.cancelled == 1
    assert outcomes(counters) == {"cancelled": 1}


async def test_closing_closes_what_is_counted() -> None:
    class Closing(MemoryStore):
        closed = False

        async def aclose(self) -> None:
            self.closed = True

    inner = Closing()
    await CountingReader(inner, Counters()).aclose()
    assert inner.closed

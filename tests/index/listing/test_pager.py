"""Asking for pages: fewer at once while the service throttles, more again afterwards."""

from dataclasses import dataclass, field

import pytest
import trio

from fastfuse.errors import ServiceError, ThrottledError
from fastfuse.index.listing.page import MAX_IN_FLIGHT, Pager
from tests.index.listing.test_lister import page_body

PAGE = page_body([b"p/a"])


@dataclass
class Busy:
    """Throttles the requests that `throttles` counts down; each page takes a second on trio's clock."""

    throttles: int = 0
    in_flight: int = 0
    most_in_flight: list[int] = field(default_factory=list)

    async def list(self, bucket: str, **_: object) -> bytes:
        self.in_flight += 1
        self.most_in_flight.append(self.in_flight)
        try:
            await trio.sleep(1)
        finally:
            self.in_flight -= 1
        if self.throttles > 0:
            self.throttles -= 1
            raise ThrottledError("503 SlowDown")
        return PAGE

    async def aclose(self) -> None:
        raise AssertionError("the pager does not own the source")


async def pages(pager: Pager, count: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(pager.page, "p/")


async def test_a_burst_of_throttling_halves_the_requests_in_flight_once(autojump_clock: object) -> None:
    pager = Pager(Busy(throttles=MAX_IN_FLIGHT), "bucket")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pages, pager, MAX_IN_FLIGHT)
        await trio.sleep(1.0001)  # the whole first round has been throttled, and nothing of the second is back
        assert pager.throttled_count == MAX_IN_FLIGHT
        assert pager.capacity == MAX_IN_FLIGHT // 2
    assert pager.request_count == 2 * MAX_IN_FLIGHT


async def test_a_service_that_goes_on_throttling_is_left_one_request(autojump_clock: object) -> None:
    source = Busy(throttles=10**6)
    pager = Pager(source, "bucket")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pages, pager, MAX_IN_FLIGHT)
        await trio.sleep(100)
        assert pager.capacity == 1
        assert source.most_in_flight[-1] == 1
        nursery.cancel_scope.cancel()


async def test_requests_in_flight_recover_by_one_a_round(autojump_clock: object) -> None:
    pager = Pager(Busy(throttles=1), "bucket")
    await pager.page("p/")
    assert pager.capacity == MAX_IN_FLIGHT // 2
    await pages(pager, MAX_IN_FLIGHT // 2 - 1)
    assert pager.capacity == MAX_IN_FLIGHT // 2 + 1
    await pages(pager, MAX_IN_FLIGHT**2)
    assert pager.capacity == MAX_IN_FLIGHT


async def test_a_page_that_waits_behind_silent_requests_is_given_up(autojump_clock: object) -> None:
    class Silent(Busy):
        async def list(self, bucket: str, **_: object) -> bytes:
            await trio.sleep_forever()
            raise AssertionError

    with trio.fail_after(400), pytest.raises(ServiceError, match="no LIST page of 'bucket' arrived within 300 s"):
        await Pager(Silent(), "bucket").page("p/")


async def test_a_page_that_is_throttled_for_minutes_is_given_up(autojump_clock: object) -> None:
    with trio.fail_after(400), pytest.raises(ThrottledError):
        await Pager(Busy(throttles=10**6), "bucket").page("p/")

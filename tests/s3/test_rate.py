"""The rate under throttling, against models of services that throttle."""

import random
from collections.abc import Callable
from typing import Protocol

import pytest
import trio
import trio.testing

from fastfuse.s3.rate import RequestRate


class Service(Protocol):
    """Returns whether a request at this time is answered."""

    def __call__(self, now_s: float) -> bool: ...


def token_bucket(per_s: float, burst: float) -> Service:
    tokens, last_s = burst, 0.0

    def is_answered(now_s: float) -> bool:
        nonlocal tokens, last_s
        tokens, last_s = min(burst, tokens + (now_s - last_s) * per_s), now_s
        if tokens < 1:
            return False
        tokens -= 1
        return True

    return is_answered


def each_second(per_s: float, _: float) -> Service:
    """A service that refuses everything beyond a number of requests until the second is over."""
    left, second = per_s, 0

    def is_answered(now_s: float) -> bool:
        nonlocal left, second
        if int(now_s) != second:
            left, second = per_s, int(now_s)
        left -= 1
        return left >= 0

    return is_answered


async def counts(service: Service, *, clients: int, seconds: float, rate: RequestRate | None = None) -> tuple[int, int]:
    """Return how many requests are answered and refused while `clients` ask without a pause."""
    rate = rate or RequestRate()
    answered = refused = 0
    ends_s = trio.current_time() + seconds
    chance = random.Random(1)

    async def ask() -> None:
        nonlocal answered, refused
        failed = 0
        while (now_s := trio.current_time()) < ends_s:
            await trio.sleep_until(rate.turn_s(now_s))
            await trio.sleep(chance.uniform(0.01, 0.03))
            now_s = trio.current_time()
            if service(now_s):
                answered, failed = answered + 1, 0
                rate.answered(now_s)
            else:
                refused, failed = refused + 1, failed + 1
                rate.throttled(now_s)
                await trio.sleep(chance.uniform(0, min(5, 0.1 * 2**failed)))

    async with trio.open_nursery() as nursery:
        for _ in range(clients):
            nursery.start_soon(ask)
    return answered, refused


@pytest.mark.parametrize(
    ("model", "per_s", "burst", "clients"),
    [
        (token_bucket, 100, 10, 16),
        (token_bucket, 100, 100, 16),
        (token_bucket, 200, 10, 64),
        (each_second, 100, 0, 16),
    ],
)
async def test_throttling_costs_a_tenth_of_what_is_allowed_and_wastes_one_request_in_20(
    autojump_clock: trio.testing.MockClock,
    model: Callable[[float, float], Service],
    per_s: float,
    burst: float,
    clients: int,
) -> None:
    seconds = 60
    answered, refused = await counts(model(per_s, burst), clients=clients, seconds=seconds)
    assert answered >= 0.9 * per_s * seconds
    assert refused <= 0.05 * (answered + refused)


async def test_a_service_that_does_not_throttle_is_asked_without_a_limit(
    autojump_clock: trio.testing.MockClock,
) -> None:
    rate = RequestRate()
    answered, _ = await counts(lambda now_s: True, clients=8, seconds=5, rate=rate)
    assert answered > 8 * 5 / 0.03
    assert not rate.is_limited


def test_a_few_refusals_among_many_answers_are_no_limit() -> None:
    rate = RequestRate()
    for number in range(100_000):
        if number % 100:
            rate.answered(number / 1000)
        else:
            rate.throttled(number / 1000)
    assert not rate.is_limited
    assert rate.turn_s(1000.0) == 1000.0


def test_a_service_that_answers_nothing_is_not_one_that_throttles() -> None:
    rate = RequestRate()
    for number in range(10_000):
        rate.throttled(number / 100)
    assert not rate.is_limited


async def test_the_limit_goes_once_the_service_bears_more(autojump_clock: trio.testing.MockClock) -> None:
    rate = RequestRate()
    await counts(token_bucket(50, 5), clients=16, seconds=10, rate=rate)
    assert rate.is_limited
    answered, _ = await counts(lambda now_s: True, clients=16, seconds=30, rate=rate)
    assert answered > 3 * 50 * 30
    await trio.sleep(60)
    rate.turn_s(trio.current_time())
    assert not rate.is_limited

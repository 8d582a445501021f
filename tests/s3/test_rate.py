"""The rate under throttling, against models of services that throttle, and what the client tells it."""

import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, nullcontext, suppress
from dataclasses import replace
from math import inf
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from bench.s3server import FaultRule, LoopbackServer
from bench.s3server.faults import SLOW_DOWN, Answer
from fastfuse.errors import ReadError, UnavailableError
from fastfuse.objects import ObjectRef
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from fastfuse.s3.http1 import ReplyHead
from fastfuse.s3.rate import RequestRate
from tests.s3.places import IN_A_REGION, loopback_client

# Returns whether a request at this time is answered.
Service = Callable[[float], bool]


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


async def counts(
    service: Service, *, clients: int, seconds: float, rate: RequestRate | None = None, seed: int = 1
) -> tuple[int, int]:
    """Return how many requests are answered and refused while `clients` ask without a pause."""
    rate, turn = rate or RequestRate(), trio.Lock()
    answered = refused = 0
    ends_s = trio.current_time() + seconds
    chance = random.Random(seed)

    async def ask() -> None:
        nonlocal answered, refused
        failed = 0
        while trio.current_time() < ends_s:
            async with turn:
                turn_s = rate.turn_s(trio.current_time())
                await trio.sleep_until(turn_s)
                rate.sent(turn_s)
            await trio.sleep(chance.uniform(0.01, 0.03))
            now_s = trio.current_time()
            if service(now_s):
                answered, failed = answered + 1, 0
                rate.answered(now_s)
            else:
                refused, failed = refused + 1, failed + 1
                if failed == 1:
                    rate.throttled(now_s)
                await trio.sleep(chance.uniform(0, min(5, 0.1 * 2**failed)))

    async with trio.open_nursery() as nursery:
        for _ in range(clients):
            nursery.start_soon(ask)
    return answered, refused


@pytest.mark.parametrize(
    ("model", "per_s", "burst", "clients"),
    [(token_bucket, 100, 10, 16), (token_bucket, 100, 100, 16), (token_bucket, 200, 10, 64), (each_second, 100, 0, 16)],
)
async def test_throttling_costs_a_tenth_of_what_is_allowed_and_wastes_one_request_in_20(
    autojump_clock: MockClock, model: Callable[[float, float], Service], per_s: float, burst: float, clients: int
) -> None:
    seconds = 60
    answered, refused = await counts(model(per_s, burst), clients=clients, seconds=seconds)
    assert answered >= 0.9 * per_s * seconds
    assert refused <= 0.05 * (answered + refused)


async def test_a_service_that_does_not_throttle_is_asked_without_a_limit(autojump_clock: MockClock) -> None:
    rate = RequestRate()
    answered, _ = await counts(lambda now_s: True, clients=8, seconds=1, rate=rate)
    assert answered > 8 * 1 / 0.04
    assert not rate.is_limited


def test_a_service_that_answers_nothing_is_not_one_that_throttles() -> None:
    rate = RequestRate()
    for number in range(10_000):
        rate.throttled(number / 100)
    assert not rate.is_limited


def test_the_first_limit_is_what_was_answered_before_a_moment_in_which_little_was() -> None:
    """The machine was busy, say, or the service about to refuse."""
    rate = RequestRate()
    for number in range(1000):
        rate.answered(number / 100)
    for number in range(3):
        rate.answered(10.0 + number / 5)
        rate.throttled(10.1 + number / 5)
    assert rate.per_s == pytest.approx(95, rel=0.1)


async def test_the_limit_goes_once_the_service_bears_more(autojump_clock: MockClock) -> None:
    rate = RequestRate()
    await counts(token_bucket(50, 5), clients=16, seconds=10, rate=rate)
    assert rate.is_limited
    answered, _ = await counts(lambda now_s: True, clients=16, seconds=30, rate=rate)
    assert answered > 3 * 50 * 30
    await trio.sleep(60)
    rate.turn_s(trio.current_time())
    assert not rate.is_limited


async def test_hosts_that_share_a_service_come_to_equal_rates(autojump_clock: MockClock) -> None:
    service, rates = token_bucket(120, 120), [RequestRate() for _ in range(4)]
    await shares(service, rates, seconds=20)
    answered = await shares(service, rates, seconds=40)
    assert min(answered) >= 0.7 * sum(answered) / len(answered), answered
    # When half of the hosts are done, the others take their place.
    assert sum(await shares(service, rates[:2], seconds=10)) >= 0.8 * 120 * 10


async def shares(service: Service, rates: Sequence[RequestRate], *, seconds: float) -> list[int]:
    answered = [0] * len(rates)

    async def host(number: int, rate: RequestRate) -> None:
        answered[number], _ = await counts(service, clients=16, seconds=seconds, rate=rate, seed=number)

    async with trio.open_nursery() as nursery:
        for number, rate in enumerate(rates):
            nursery.start_soon(host, number, rate)
    return answered


# --- what the client tells it


class Reader:
    """A client, at times that the test sets: no pause of a retry is longer than the test waits."""

    def __init__(self, server: LoopbackServer, client: S3Client) -> None:
        self.server, self.client, self.retries = server, client, client._retries
        self._ref = ObjectRef("bucket", "key", 1000, "", 0)

    async def read(self) -> None:
        await self.client.get(self._ref, 0, self._ref.size_bytes)

    def refuse_one(self) -> None:
        self.server.faults.add(FaultRule(action=SLOW_DOWN, operation="GetObject", times=1))

    @property
    def is_limited(self) -> bool:
        """Whether the threads that read small files have to stay away, in a time without trouble."""
        return self.client.direct("bucket", "") is None


@pytest.fixture
async def reader(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Reader]:
    monkeypatch.setattr("random.random", lambda: 0.0)
    async with loopback_client({"key": bytes(1000)}, None, replace(IN_A_REGION, sign_request=False)) as place:
        reader = Reader(*place)
        await reader.read()
        yield reader


async def test_a_reader_is_limited_where_every_other_request_is_refused(reader: Reader, mock_clock: MockClock) -> None:
    for _ in range(3):
        assert not reader.is_limited
        mock_clock.jump(0.1)
        reader.refuse_one()
        await reader.read()
    assert reader.is_limited
    mock_clock.jump(61)
    await reader.read()
    assert not reader.is_limited


async def test_a_few_refused_reads_do_not_limit_the_rate(
    reader: Reader, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is answered while nothing waits to be tried again counts, too."""
    monkeypatch.setattr("random.random", lambda: 0.5)
    mock_clock.autojump_threshold = 5.0  # for a read that waits, which fails this test
    for _ in range(4):
        for _ in range(60):
            await reader.read()
        reader.refuse_one()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.read)
            while not reader.retries.is_in_trouble:
                await trio.lowlevel.checkpoint()
            now_s = trio.current_time()
            for _ in range(20):
                await reader.read()
                assert trio.current_time() == now_s
            mock_clock.jump(0.1)
    assert not reader.is_limited


async def test_what_threads_read_counts_as_answered(reader: Reader, mock_clock: MockClock) -> None:
    for _ in range(3):
        for _ in range(100):
            reader.client.count_direct(1000, took_s=0.1, first_byte_s=0.1, is_checked=True, key="key")
        mock_clock.jump(0.1)
        reader.refuse_one()
        await reader.read()
    assert not reader.is_limited


async def test_a_read_that_has_no_turn_in_time_fails_and_names_the_reply(
    reader: Reader, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Swift, for one, answers 503 ServiceUnavailable while its servers of objects are down."""
    for _ in range(3):
        mock_clock.jump(0.1)
        reader.server.faults.add(
            FaultRule(action=Answer(503, "ServiceUnavailable", "m"), operation="GetObject", times=1)
        )
        await reader.read()
    assert reader.is_limited
    monkeypatch.setattr(RequestRate, "turn_s", lambda self, now_s: inf)
    mock_clock.autojump_threshold = 0.01
    began_s = trio.current_time()
    with pytest.raises(UnavailableError, match=r"the service throttles \(503 ServiceUnavailable\)"):
        await reader.read()
    assert trio.current_time() >= began_s + ConnectionConfig().deadline_s


class Reply:
    """The connection of a reply in a model of a service."""

    is_reusable = True

    async def read_all(self, _: int) -> bytes:
        return b""

    async def read_into(self, data: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        return len(data)

    def close(self) -> None:
        pass


def client_of_model(
    monkeypatch: pytest.MonkeyPatch, is_answered: Service, **options: float
) -> tuple[S3Client, Callable[..., Awaitable[object]]]:
    """Return a client of a service that answers a GET after 20 ms, or with 503, and what reads an object with it.

    The object is `key`, or the one that is named; those below `bad/` are refused each time.
    """
    size_bytes = 300_000

    async def ask(_: object, __: object, request: bytes, *___: object, **____: object) -> tuple[Reply, ReplyHead]:
        await trio.sleep(0.02)
        if b" /bucket/bad/" in request or not is_answered(trio.current_time()):
            return Reply(), ReplyHead(503, {}, True, 0)
        return Reply(), ReplyHead(206, {"content-range": f"bytes 0-{size_bytes - 1}/{size_bytes}"}, True, size_bytes)

    monkeypatch.setattr("fastfuse.s3.routes.Routes.ask", ask)
    settings: dict[str, Any] = {"endpoint_url": "http://s3.test", "sign_request": False, **options}
    client = S3Client(S3Session(replace(IN_A_REGION, **settings)))

    async def get(key: str = "key") -> object:
        return await client.get(ObjectRef("bucket", key, size_bytes, "", 0), 0, size_bytes)

    return client, get


async def answered_count(
    get: Callable[..., Awaitable[object]], *, readers: int, seconds: float, may_fail: bool = False
) -> int:
    """Return how many GETs are answered to readers that go on for so long."""
    ends_s, answered = trio.current_time() + seconds, 0

    async def read() -> None:
        nonlocal answered
        while trio.current_time() < ends_s:
            with suppress(ReadError) if may_fail else nullcontext():
                await get()
                answered += 1

    async with trio.open_nursery() as nursery:
        for _ in range(readers):
            nursery.start_soon(read)
    return answered


async def test_readers_that_time_out_cost_no_turn(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    client, get = client_of_model(monkeypatch, token_bucket(5, 5), deadline_s=10.0)
    async with aclosing(client):
        assert await answered_count(get, readers=128, seconds=200, may_fail=True) >= 0.8 * 5 * 200


async def test_objects_that_are_refused_each_time_slow_no_others_down(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """D6: S3 throttles each prefix by itself."""
    caplog.set_level(logging.INFO)
    client, get = client_of_model(monkeypatch, lambda now_s: True)

    async def get_bad(number: int) -> None:
        await trio.sleep(1)
        await get(f"bad/{number}")

    async with aclosing(client), trio.open_nursery() as nursery:
        for number in range(12):
            nursery.start_soon(get_bad, number)
        assert await answered_count(get, readers=4, seconds=20) >= 0.8 * 4 * 20 / 0.02
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.sleep(61)
            await get()
    told = [record.getMessage() for record in caplog.records if record.name == "fastfuse.s3.client"]
    assert [text.partition(": GETs are limited")[0] for text in told] == [
        "the service throttles (503)",
        "no GET was throttled at its first attempt for a minute",
    ]


async def test_a_short_outage_of_503_fails_no_read(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    began_s = trio.current_time()
    client, get = client_of_model(monkeypatch, lambda now_s: not began_s + 1 <= now_s < began_s + 21)
    async with aclosing(client):
        await answered_count(get, readers=128, seconds=21)
    assert trio.current_time() < began_s + 21 + 30

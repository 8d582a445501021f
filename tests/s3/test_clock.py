"""Requests are signed by the service's clock once it refuses this machine's."""

import hashlib
import logging
import time
from contextlib import AsyncExitStack, aclosing
from email.utils import formatdate

import pytest
import trio

from bench.s3server import LoopbackServer, MemoryObjects, ServerConfig
from fastfuse.objects import ObjectRef
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from fastfuse.s3.clock import ServiceClock
from fastfuse.s3.upload import ObjectWriter
from tests.s3.places import loopback_client

pytestmark = pytest.mark.usefixtures("aws_environment")

HOUR_S = 3600.0


@pytest.mark.parametrize("step_s", [HOUR_S, -24 * HOUR_S])
async def test_a_clock_that_is_set_wrong_and_right_again_fails_no_read(
    step_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ahead_s = 0.0
    config = ServerConfig(clock_s=time.time, most_skew_s=900.0)
    async with loopback_client({"key": b"data"}, config) as (server, client):
        client.session.clock = ServiceClock(lambda: time.time() + ahead_s)
        ref = ObjectRef("bucket", "key", 4, f'"{hashlib.md5(b"data", usedforsecurity=False).hexdigest()}"')
        for step in (0.0, step_s, 0.0):
            ahead_s = step
            for _ in range(2):
                assert await client.get(ref, 0, 4) == b"data"
        statuses = [request.status for request in server.requests]
    assert statuses.count(403) == 2
    told = [record.getMessage() for record in caplog.records if record.name == "fastfuse.s3.clock"]
    wrong, right = told
    assert f" {'ahead of' if step_s > 0 else 'behind'} the service's" in wrong
    assert "right again" in right


async def test_heads_at_once_that_a_wrong_clock_has_denied_are_made_again_and_no_others() -> None:
    settings = ServerConfig(writes="unconditional", clock_s=time.time, most_skew_s=900.0)
    with LoopbackServer({"bucket": MemoryObjects({"key": b"data"})}, settings) as server:
        config = ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1")
        for is_read in (True, False):
            session = S3Session(config)
            session.clock = ServiceClock(lambda: time.time() + HOUR_S)
            async with AsyncExitStack() as exits:
                client = await exits.enter_async_context(aclosing(S3Client(session)))
                if is_read:
                    async with trio.open_nursery() as nursery:
                        for _ in range(4):
                            nursery.start_soon(client.head, "bucket", "key")
                else:
                    state = await ObjectWriter(client, exits, "bucket", "key").state()
                    assert state is not None
    statuses = [request.status for request in server.requests]
    assert statuses.count(200) == 5
    assert statuses[-2:] == [403, 200]
    assert not ServiceClock().correct(formatdate(time.time(), usegmt=True))


@pytest.mark.parametrize("step_s", [HOUR_S, -24 * HOUR_S])
async def test_a_clock_that_is_set_wrong_and_right_again_fails_no_write(step_s: float) -> None:
    ahead_s = 0.0
    settings = ServerConfig(writes="unconditional", clock_s=time.time, most_skew_s=900.0)
    with LoopbackServer({"bucket": MemoryObjects({})}, settings) as server:
        session = S3Session(ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1"))
        session.clock = ServiceClock(lambda: time.time() + ahead_s)
        async with AsyncExitStack() as exits:
            writer = ObjectWriter(S3Client(session), exits, "bucket", "key")
            for step in (0.0, step_s, 0.0):
                ahead_s = step
                for _ in range(2):
                    await writer.put(b"data")
        assert [request.status for request in server.requests] == [200, 200, 403, 200, 200, 403, 200, 200]


@pytest.mark.parametrize(
    "date",
    [
        *("", "yesterday", "Sat, 99 Nov 2026 08:00:00 GMT"),
        *("Fri, 31 Dec 9999 23:59:59 GMT", "Fri, 31 Dec 2199 23:59:59 GMT", "Thu, 01 Jan 1970 00:00:00 GMT"),
    ],
)
def test_a_reply_without_a_time_corrects_nothing(date: str) -> None:
    clock = ServiceClock(lambda: 1e9)
    assert not clock.correct(date)
    assert clock.now_s() == 1e9


def test_a_service_that_refuses_its_own_time_is_not_asked_again() -> None:
    clock = ServiceClock(lambda: 1_767_225_600.0)
    assert not clock.correct("Thu, 01 Jan 2026 00:00:30 GMT")
    assert clock.now_s() == 1_767_225_600.0


def test_a_clock_that_has_begun_in_1970_is_corrected() -> None:
    clock = ServiceClock(lambda: 0.0)
    assert clock.correct("Thu, 01 Jan 2026 00:00:00 GMT")
    assert clock.now_s() == 1_767_225_600.0


def test_a_time_without_a_zone_is_one_of_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        clock = ServiceClock(lambda: 0.0)
        clock.correct("Thu, 01 Jan 2026 00:00:00 -0000")
    time.tzset()
    assert clock.now_s() == 1_767_225_600.0

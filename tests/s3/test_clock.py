"""Requests are signed by the service's clock once it refuses this machine's."""

import hashlib
import logging
import time
from contextlib import AsyncExitStack, aclosing
from functools import partial

import pytest
import trio

from bench.s3server import LoopbackServer, MemoryObjects, ServerConfig
from fastfuse.objects import ObjectRef
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from fastfuse.s3.clock import ServiceClock
from fastfuse.s3.upload import ObjectWriter

pytestmark = pytest.mark.usefixtures("aws_environment")

HOUR_S = 3600.0
SERVER = ServerConfig(writes="unconditional", clock_s=time.time, most_skew_s=900.0)
REF = ObjectRef("bucket", "key", 4, f'"{hashlib.md5(b"data", usedforsecurity=False).hexdigest()}"')


@pytest.mark.parametrize("step_s", [HOUR_S, -24 * HOUR_S])
@pytest.mark.parametrize("is_read", [True, False])
async def test_a_clock_that_goes_wrong_and_right_fails_no_request(
    step_s: float, is_read: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ahead_s = 0.0
    with LoopbackServer({"bucket": MemoryObjects({"key": b"data"})}, SERVER) as server:
        session = S3Session(ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1"))
        session.clock = ServiceClock(lambda: time.time() + ahead_s)
        async with AsyncExitStack() as exits, aclosing(S3Client(session)) as client:
            writer = ObjectWriter(client, exits, "bucket", "key")
            ask = partial(client.get, REF, 0, 4) if is_read else partial(writer.put, b"data")
            for step in (0.0, step_s, 0.0):
                ahead_s = step
                for _ in range(2):
                    await ask()
        refusals = [number for number, request in enumerate(server.requests) if request.status == 403]
    assert (refusals, len(server.requests)) == ([2, 5], 8)
    wrong, right = [record.getMessage() for record in caplog.records if record.name == "fastfuse.s3.clock"]
    assert f" {'ahead of' if step_s > 0 else 'behind'} the service's" in wrong
    assert "right again" in right


async def test_heads_at_once_that_a_wrong_clock_has_denied_are_made_again_and_no_others() -> None:
    with LoopbackServer({"bucket": MemoryObjects({"key": b"data"})}, SERVER) as server:
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
                    assert await ObjectWriter(client, exits, "bucket", "key").state() is not None
    statuses = [request.status for request in server.requests]
    assert statuses.count(200) == 5
    assert statuses[-2:] == [403, 200]


@pytest.mark.parametrize(
    ("machine_s", "date", "service_s"),
    [
        *((1e9, date, None) for date in ("", "yesterday", "Sat, 99 Nov 2026 08:00:00 GMT")),
        *((1e9, f"{day} 00:00:00 GMT", None) for day in ("Fri, 31 Dec 2199", "Thu, 01 Jan 1970", "Fri, 31 Dec 9999")),
        # The service refuses its own time, and so something else.
        (1_767_225_600.0, "Thu, 01 Jan 2026 00:00:30 GMT", None),
        (0.0, "Thu, 01 Jan 2026 00:00:00 GMT", 1_767_225_600.0),
        # Without a zone it is one of UTC.
        (0.0, "Thu, 01 Jan 2026 00:00:00 -0000", 1_767_225_600.0),
    ],
)
def test_only_another_time_that_makes_sense_corrects_a_clock(
    machine_s: float, date: str, service_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ServiceClock(lambda: machine_s)
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        corrected = clock.correct(date)
    time.tzset()
    assert corrected == (service_s is not None)
    assert clock.now_s() == (service_s or machine_s)

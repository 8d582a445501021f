"""What the S3 client makes of a server that misbehaves."""

import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from bench.s3server import (
    Answer,
    FaultRule,
    LoopbackServer,
    MemoryObjects,
    Replace,
    ServerConfig,
    Stall,
    create_certificate,
)
from fastfuse.errors import BadReplyError, ObjectChangedError, ObjectDeniedError
from fastfuse.objects import ObjectRef
from fastfuse.s3 import bodies
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from tests.s3.places import client_of

DATA = bytes(range(256)) * 4096  # 1 MiB: more than a socket buffer holds


@dataclass(frozen=True)
class Scene:
    server: LoopbackServer
    reader: S3Client
    ref: ObjectRef


@asynccontextmanager
async def scene(server_config: ServerConfig | None = None, **options: object) -> AsyncIterator[Scene]:
    objects = MemoryObjects({"key": DATA})
    with LoopbackServer({"bucket": objects}, server_config) as server:
        stored = objects.view().lookup(b"key")
        assert stored is not None
        ref = ObjectRef("bucket", "key", len(DATA), stored.etag)
        config = replace(ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1"), **options)  # type: ignore[arg-type]
        async with aclosing(client_of(config)) as reader:
            yield Scene(server, reader, ref)


@pytest.fixture
async def on() -> AsyncIterator[Scene]:
    """A connection that stalls is given up after a third of the deadline: 2 s."""
    async with scene(deadline_s=6.0) as one:
        yield one


@pytest.mark.parametrize("has_etag", [True, False])
@pytest.mark.parametrize("is_honest", [True, False])
async def test_a_replaced_object_of_the_same_length_is_found_out(has_etag: bool, is_honest: bool) -> None:
    async with scene(ServerConfig(honour_conditions=is_honest)) as on:
        ref = on.ref if has_etag else replace(on.ref, etag="", modified_ns=1_704_067_200 * 10**9)
        assert await on.reader.get(ref, 5000, 6000) == DATA[5000:6000]
        on.server.faults.add(FaultRule(action=Replace(b"x" * len(DATA)), operation="GetObject"))
        with pytest.raises(ObjectChangedError):
            await on.reader.get(ref, 6000, 7000)
        assert [request.status for request in on.server.requests] == [206, 412 if is_honest else 206]


async def test_what_the_service_quotes_reaches_neither_message_nor_traceback_nor_log(
    on: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    secret = "FwoGZXIvYXdzEJr-session-token"
    on.server.faults.add(FaultRule(action=Answer(400, "ExpiredToken", f"The token {secret} has expired")))
    with pytest.raises(ObjectDeniedError) as caught:
        await on.reader.get(on.ref, 0, 10)
    shown = "".join(traceback.format_exception(caught.value)) + caught.value.hint + caplog.text
    assert "400 ExpiredToken" in shown
    assert secret not in shown


# --- servers that answer a range with 200


async def test_a_whole_object_is_not_read_through_for_a_range_far_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_LONGEST_SKIP_BYTES", 1000)
    async with scene(ServerConfig(honour_ranges=False)) as on:
        assert await on.reader.get(on.ref, 1000, 1010) == DATA[1000:1010]
        with pytest.raises(BadReplyError, match="ignores Range"):
            await on.reader.get(on.ref, 1001, 1010)


# --- the number of connections


async def test_reads_of_all_sizes_and_what_else_is_asked_share_the_connections_that_there_may_be() -> None:
    async with scene(max_connections=2) as on:
        rule = on.server.faults.add(FaultRule(action=Stall(0)))
        async with trio.open_nursery() as nursery:
            for end in (10, len(DATA), 20, len(DATA)):
                nursery.start_soon(on.reader.get, on.ref, 0, end)
            nursery.start_soon(on.reader.head, "bucket", "key")
            nursery.start_soon(partial(on.reader.list, "bucket", prefix=""))
            await trio.to_thread.run_sync(on.server.wait_until, lambda _: len(on.server.requests) == 2)
            await trio.testing.wait_all_tasks_blocked()
            assert on.server.statistics().connections == 2
            on.server.faults.remove(rule)
        assert on.server.statistics().connections == 2


# --- TLS


async def test_without_verification_any_certificate_will_do_for_tls(tmp_path: Path) -> None:
    async with scene(ServerConfig(tls=create_certificate(tmp_path)), verify_ssl=False) as on:
        assert await on.reader.get(on.ref, 0, 10) == DATA[:10]

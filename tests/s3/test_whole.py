"""Whole objects, read from an independent server and under faults."""

import os

import pytest
import trio
import trio.testing

from bench.s3server import ACCESS_DENIED, SLOW_DOWN, FaultRule, LoopbackServer, MemoryObjects, Stall
from fastfuse.errors import AccessError, ServiceError, SourceError
from fastfuse.objects import ObjectRef
from fastfuse.s3 import whole
from fastfuse.s3.aws import S3Session
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from fastfuse.s3.whole import read_into, read_whole
from tests.s3.places import opened


async def test_a_large_object_comes_in_parts_a_few_at_a_time(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "_PART_BYTES", 100_000)
    monkeypatch.setattr(whole, "_MAX_IN_FLIGHT", 3)
    data = os.urandom(1_000_017)
    with LoopbackServer({"bucket": MemoryObjects({"large": data})}) as server:
        async with opened(server.endpoint_url) as client:
            ref = await client.head("bucket", "large")
            rule = server.faults.add(FaultRule(action=Stall(0), operation="GetObject"))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_into, client, ref, fd)
                await trio.to_thread.run_sync(server.wait_until, lambda now: now.requests.get("GetObject", 0) == 3)
                await trio.testing.wait_all_tasks_blocked()
                assert server.statistics().requests["GetObject"] == 3
                server.faults.remove(rule)
        assert server.statistics().requests["GetObject"] == 11
    assert os.pread(fd, len(data) + 1, 0) == data


async def test_what_cannot_be_read_is_said_by_its_name(fd: int) -> None:
    held = MemoryObjects({"denied": b"x", "late": b"x", "large": b"x" * 100, "changes": b"x" * 100})
    with LoopbackServer({"bucket": held}, faults=[FaultRule(action=ACCESS_DENIED, key="denied")]) as server:
        async with opened(server.endpoint_url) as client:
            with pytest.raises(SourceError, match="There is no object 's3://bucket/absent"):
                await client.head("bucket", "absent")
            with pytest.raises(AccessError, match="denies access to 's3://bucket/denied"):
                await client.head("bucket", "denied")
            large, late, changes = [await client.head("bucket", key) for key in ("large", "late", "changes")]
            with pytest.raises(SourceError, match="'s3://bucket/large' has 100 bytes, more than the 99 that are read"):
                await read_whole(client, large, limit_bytes=99)
            assert "GetObject" not in server.statistics().requests
            server.faults.add(FaultRule(action=ACCESS_DENIED, key="late"))
            held.put("changes", b"y" * 100)
            for ref, error in ((late, AccessError), (changes, SourceError)):
                with pytest.raises(error, match=ref.key):
                    await read_into(client, ref, fd)
                with pytest.raises(error, match=ref.key):
                    await read_whole(client, ref, limit_bytes=100)


async def test_a_service_that_stays_busy_is_an_error_of_a_command(fd: int) -> None:
    with LoopbackServer({"bucket": MemoryObjects({"key": b"x" * 5})}) as server:
        config = ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1", deadline_s=0.5)
        client, ref = S3Client(S3Session(config)), ObjectRef("bucket", "key", 5, "")
        server.faults.add(FaultRule(action=SLOW_DOWN))
        with pytest.raises(ServiceError, match="key"):
            await read_into(client, ref, fd)
        await client.aclose()

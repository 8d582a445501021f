"""Whole objects in and out, against an independent server and against faults."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from fastfuse.errors import AccessError, ServiceError, SourceError
from fastfuse.objects import ObjectRef
from fastfuse.store import whole
from fastfuse.store.base import ConnectionConfig
from fastfuse.store.session import S3Session
from fastfuse.store.whole import WholeObjects
from fastfuse.testing import ACCESS_DENIED, SLOW_DOWN, FaultRule, LoopbackServer, MemoryObjects
from tests.servers import S3Server

KEYS = ["plain", "odd//key", "ü + %20"]


@asynccontextmanager
async def opened(endpoint_url: str) -> AsyncIterator[WholeObjects]:
    config = ConnectionConfig(endpoint_url=endpoint_url, region="us-east-1", force_path_style=True, deadline_s=5)
    objects = WholeObjects(S3Session(config))
    try:
        yield objects
    finally:
        await objects.aclose()


@pytest.fixture
def fd() -> Iterator[int]:
    fd = os.memfd_create("test")
    yield fd
    os.close(fd)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("size_bytes", [0, 1, 100_000])
async def test_what_was_written_is_read_and_is_as_listed(
    moto_server: S3Server, fd: int, key: str, size_bytes: int
) -> None:
    data = os.urandom(size_bytes)
    os.write(fd, data)
    async with opened(moto_server.endpoint_url) as objects:
        await objects.write_from(fd, "bucket", key)
        ref = await objects.head("bucket", key)
        [entry] = moto_server.client.list_objects_v2(Bucket="bucket", Prefix=key)["Contents"]
        modified_ns = int(entry["LastModified"].timestamp()) * 10**9
        assert ref == ObjectRef("bucket", key, size_bytes, entry["ETag"], modified_ns)
        assert await objects.read(ref, limit_bytes=size_bytes) == data
        os.ftruncate(fd, 0)
        await objects.read_into(ref, fd)
    assert os.pread(fd, size_bytes + 1, 0) == data


async def test_a_large_object_goes_and_comes_in_parts(
    moto_server: S3Server, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "_UPLOAD_PART_BYTES", 5 << 20)  # S3's least
    monkeypatch.setattr(whole, "_PART_BYTES", 1 << 20)
    data = os.urandom((12 << 20) + 17)
    os.write(fd, data)
    async with opened(moto_server.endpoint_url) as objects:
        await objects.write_from(fd, "bucket", "large")
        ref = await objects.head("bucket", "large")
        assert ref.etag.endswith('-3"')
        os.ftruncate(fd, 0)
        await objects.read_into(ref, fd)
    assert os.pread(fd, len(data) + 1, 0) == data


async def test_an_upload_that_fails_leaves_nothing_behind(
    moto_server: S3Server, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "_UPLOAD_PART_BYTES", 100)  # too small: S3 refuses to complete it
    os.write(fd, os.urandom(1000))
    async with opened(moto_server.endpoint_url) as objects:
        with pytest.raises(ServiceError):
            await objects.write_from(fd, "bucket", "failed")
        with pytest.raises(SourceError, match="There is no object 's3://bucket/failed"):
            await objects.head("bucket", "failed")
    assert not moto_server.client.list_multipart_uploads(Bucket="bucket").get("Uploads")


async def test_the_storage_class_comes_along(moto_server: S3Server) -> None:
    moto_server.put("cold", b"x", StorageClass="GLACIER")
    async with opened(moto_server.endpoint_url) as objects:
        assert (await objects.head("bucket", "cold")).storage_class == "GLACIER"


async def test_what_one_request_does_not_tell_is_asked_again() -> None:
    faults = [FaultRule(action=SLOW_DOWN, operation="HeadObject", times=1)]
    with LoopbackServer({"bucket": MemoryObjects({"key": b"x" * 5})}, faults=faults) as server:
        async with opened(server.endpoint_url) as objects:
            by_the_other = await objects.head("bucket", "key")
            assert by_the_other.size_bytes == 5
            assert await objects.head("bucket", "key") == by_the_other
        heads = [request.user_agent for request in server.requests if request.operation == "HeadObject"]
    assert [agent == "fastfuse" for agent in heads] == [True, False, True]


async def test_what_cannot_be_reached_directly_is_asked_for_by_botocore(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(S3Session, "special_endpoint", lambda *_: "not today")
    with LoopbackServer({"bucket": MemoryObjects({"key": b"x" * 5})}) as server:
        async with opened(server.endpoint_url) as objects:
            for _ in range(2):
                assert (await objects.head("bucket", "key")).size_bytes == 5
        heads = [request.user_agent for request in server.requests if request.operation == "HeadObject"]
    assert len(heads) == 2
    assert "fastfuse" not in heads


async def test_what_is_not_there_and_what_is_denied_is_said_by_its_name(fd: int) -> None:
    faults = [FaultRule(action=ACCESS_DENIED, key="denied")]
    with LoopbackServer({"bucket": MemoryObjects({"denied": b"x", "late": b"x"})}, faults=faults) as server:
        async with opened(server.endpoint_url) as objects:
            with pytest.raises(SourceError, match="There is no object 's3://bucket/absent"):
                await objects.head("bucket", "absent")
            with pytest.raises(AccessError, match="denies access to 's3://bucket/denied"):
                await objects.head("bucket", "denied")
            ref = await objects.head("bucket", "late")
            server.faults.add(FaultRule(action=ACCESS_DENIED, key="late"))
            with pytest.raises(AccessError, match="late"):
                await objects.read_into(ref, fd)
            with pytest.raises(SourceError, match="more than is plausible"):
                await objects.read(ref, limit_bytes=0)


async def test_an_object_that_changes_meanwhile_is_an_error(fd: int) -> None:
    held = MemoryObjects({"index": b"x" * 100})
    with LoopbackServer({"bucket": held}) as server:
        async with opened(server.endpoint_url) as objects:
            ref = await objects.head("bucket", "index")
            held.put("index", b"y" * 100)
            with pytest.raises(SourceError, match="index"):
                await objects.read_into(ref, fd)
            with pytest.raises(SourceError, match="index"):
                await objects.read(ref, limit_bytes=100)


async def test_an_upload_that_cannot_be_given_up_tells_why_it_failed(
    fd: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(whole, "_UPLOAD_PART_BYTES", 100)
    os.write(fd, bytes(1000))

    async def request(operation: str, **_: object) -> dict[str, object]:
        if operation == "create_multipart_upload":
            return {"UploadId": "u"}
        if operation == "upload_part":
            return {}
        raise ServiceError("unreachable")

    async with opened("http://127.0.0.1:1") as objects:
        monkeypatch.setattr(objects, "_request", lambda _bucket, _key, operation, **rest: request(operation, **rest))
        with pytest.raises(ServiceError, match="The service's reply for 's3://bucket/key' has no ETag"):
            await objects.write_from(fd, "bucket", "key")
    assert "the parts of a failed upload to 's3://bucket/key' are still there: unreachable" in caplog.text

"""Whole objects, written to an independent server and under faults."""

import errno
import gc
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from aiobotocore.awsrequest import AioAWSResponse
from aiobotocore.httpxsession import HttpxSession
from botocore.awsrequest import AWSPreparedRequest
from botocore.exceptions import EndpointConnectionError, HTTPClientError, SSLError
from trio.testing import MockClock

from bench.s3server import (
    ACCESS_DENIED,
    EXPIRED_TOKEN,
    FaultRule,
    LoopbackServer,
    MemoryObjects,
    ServerConfig,
    WrongEtag,
    WrongLength,
    create_chain,
)
from bench.s3server.faults import Action
from fastfuse.errors import (
    AccessError,
    ConfigurationError,
    DiskError,
    ServiceError,
    SourceError,
    UploadGoneError,
    WriteConflictError,
)
from fastfuse.metrics import Counters
from fastfuse.objects import ObjectRef
from fastfuse.s3 import upload as module
from fastfuse.s3.aws import S3Session, stall_timeout_s
from fastfuse.s3.base import ConnectionConfig
from fastfuse.s3.client import S3Client
from fastfuse.s3.credentials import Credentials, CredentialSource
from fastfuse.s3.failures import Failure, Kind
from fastfuse.s3.retries import Retries, RetryableError
from fastfuse.s3.retry_policy import attempts
from fastfuse.s3.upload import ObjectWriter, upload
from fastfuse.s3.upload_clients import UploadClient
from fastfuse.s3.whole import read_into, read_whole
from tests.s3.canned import canned_server
from tests.s3.places import opened
from tests.servers import S3Server, configure


@pytest.mark.parametrize(
    ("key", "size_bytes"), [("plain", 0), ("odd//key", 1), ("ü + %20", 100_000), ("large", (12 << 20) + 17)]
)
async def test_what_was_written_is_listed_and_read(
    moto_server: S3Server, fd: int, key: str, size_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_UPLOAD_PART_BYTES", 5 << 20)  # S3's least
    data = os.urandom(size_bytes)
    os.write(fd, data)
    async with opened(moto_server.endpoint_url) as client:
        await upload(client, fd, "bucket", key)
        ref = await client.head("bucket", key)
        [entry] = moto_server.client.list_objects_v2(Bucket="bucket", Prefix=key)["Contents"]
        modified_ns = int(entry["LastModified"].timestamp()) * 10**9
        assert ref == ObjectRef("bucket", key, size_bytes, entry["ETag"], modified_ns)
        assert ref.etag.endswith('-3"') == (key == "large")
        assert await read_whole(client, ref, limit_bytes=size_bytes) == data
        os.ftruncate(fd, 0)
        await read_into(client, ref, fd)
    assert os.pread(fd, size_bytes + 1, 0) == data


@pytest.mark.parametrize("is_one_put", [False, True])
async def test_a_file_that_the_kernel_gives_in_pieces_is_uploaded_whole(
    moto_server: S3Server, fd: int, monkeypatch: pytest.MonkeyPatch, *, is_one_put: bool
) -> None:
    """One call of Linux reads 2 GiB at most."""
    pread, data = os.pread, os.urandom(1000)
    os.write(fd, data)
    monkeypatch.setattr("os.pread", lambda fd, size_bytes, at: pread(fd, min(size_bytes, 300), at))
    key = f"pieces-{is_one_put}"
    async with writing(moto_server.endpoint_url, key) as (_, writer):
        writer.has_bare_etags = is_one_put
        await writer.write(fd, replaces=module.NO_OBJECT if is_one_put else "")
    assert moto_server.client.get_object(Bucket="bucket", Key=key)["Body"].read() == data


async def test_a_file_cut_short_is_no_object(moto_server: S3Server, fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    os.write(fd, bytes(1000))
    monkeypatch.setattr("os.pread", lambda *_: b"")
    async with writing(moto_server.endpoint_url, "shorter") as (_, writer):
        with pytest.raises(DiskError, match="shorter"):
            await writer.write(fd)
    assert "Contents" not in moto_server.client.list_objects_v2(Bucket="bucket", Prefix="shorter")


async def test_a_failed_upload_leaves_nothing(moto_server: S3Server, fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_UPLOAD_PART_BYTES", 100)  # too small: S3 refuses to complete it
    os.write(fd, os.urandom(1000))
    async with opened(moto_server.endpoint_url) as client:
        with pytest.raises(ServiceError):
            await upload(client, fd, "bucket", "failed")
        with pytest.raises(SourceError, match="There is no object 's3://bucket/failed"):
            await client.head("bucket", "failed")
    assert not moto_server.client.list_multipart_uploads(Bucket="bucket", Prefix="failed").get("Uploads")


async def test_parts_that_a_failed_upload_leaves_are_logged(
    fd: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_UPLOAD_PART_BYTES", 100)
    os.write(fd, bytes(1000))

    async def request(_: object, operation: str, **__: object) -> dict[str, object]:
        if operation == "create_multipart_upload":
            return {"UploadId": "u"}
        if operation == "upload_part":
            return {}
        raise ServiceError("unreachable")

    monkeypatch.setattr(ObjectWriter, "_request", request)
    async with opened("http://127.0.0.1:1") as client:
        with pytest.raises(ServiceError, match="The service's reply for 's3://bucket/key' has no ETag"):
            await upload(client, fd, "bucket", "key")
    assert "the parts of a failed upload to 's3://bucket/key' are still there, and cost money until " in caplog.text
    assert "the upload u (s3:AbortMultipartUpload), or a rule of the bucket's lifecycle does: unre" in caplog.text


async def test_renewed_keys_sign(moto_server: S3Server, aws_environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signed: list[tuple[str, object]] = []

    def note(request: AWSPreparedRequest, **_: object) -> None:
        key = str(request.headers["Authorization"]).partition("Credential=")[2].partition("/")[0]
        signed.append((key, request.headers.get("X-Amz-Security-Token")))

    def offer(name: str, more: str = "") -> None:
        keys = f"aws_access_key_id = {name}\naws_secret_access_key = s\n{more}"
        configure(aws_environment.parent / "credentials", f"[default]\n{keys}")

    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    offer("FIRST")
    async with writing(moto_server.endpoint_url, "key") as (client, writer):
        client.session.aws.register("before-send.s3.PutObject", note)
        source = client.session.credentials
        assert source is not None
        await writer.put(b"")
        offer("SECOND", "aws_session_token = renewed\n")
        assert await source.replace(await source.current())
        await writer.put(b"")
    assert signed == [("FIRST", None), ("SECOND", b"renewed")]


async def test_a_ca_bundle_that_is_none_is_a_configuration_error(fd: int, tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    configure(bundle, "not a certificate")
    config = ConnectionConfig(endpoint_url="https://127.0.0.1:1", region="us-east-1", ca_bundle=str(bundle))
    client = S3Client(S3Session(config))
    with pytest.raises(ConfigurationError, match="cannot be read as certificates"):
        await upload(client, fd, "bucket", "key")
    await client.aclose()


async def test_a_writer_asks_a_plain_proxy_for_the_whole_url(monkeypatch: pytest.MonkeyPatch) -> None:
    with canned_server(lambda _: (404, {}, b"")) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        async with writing("http://s3.test:81", "key") as (_, writer):
            assert await writer.state() is None
    assert [target for target, _ in proxy.seen] == ["http://s3.test:81/bucket/key"]


async def test_a_writer_follows_no_redirect() -> None:
    elsewhere = {"Location": "http://elsewhere.test/", "x-amz-bucket-region": "eu-west-1"}
    with canned_server(lambda _: (301, elsewhere, b"")) as server:
        async with writing(server.url, "key") as (_, writer):
            with pytest.raises(ConfigurationError, match="is in the region eu-west-1, not in us-east-1"):
                await writer.state()
    assert len(server.seen) == 1


async def test_a_host_that_botocore_refuses_is_not_blamed_on_the_credentials(fd: int) -> None:
    """Docker's names of services have underscores, and reads take them."""
    async with opened("http://my_minio:9000") as client:
        with pytest.raises(ConfigurationError, match="http://my_minio:9000: botocore refuses its host"):
            await upload(client, fd, "bucket", "key")


async def test_uploads_go_on_where_certificates_are_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each of these requests has a client, and so a connection, of its own."""
    authority, issued = create_chain(tmp_path)
    with LoopbackServer({"bucket": MemoryObjects({"key": b"data"})}, ServerConfig(tls=issued)) as server:
        config = ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1", ca_bundle=str(authority))
        session = S3Session(config)
        for step in range(3):
            async with AsyncExitStack() as exits:
                client, _ = await UploadClient(session, exits).current("us-east-1")
                assert (await client.head_object(Bucket="bucket", Key="key"))["ContentLength"] == 4
            if step == 0:
                create_chain(tmp_path)
                server._tls = server._tls_context()
            else:
                authority.unlink(missing_ok=True)
    assert "has changed" not in caplog.text


@asynccontextmanager
async def writing(endpoint_url: str, key: str, *, kms_key_id: str = "") -> AsyncIterator[tuple[S3Client, ObjectWriter]]:
    async with opened(endpoint_url) as client, AsyncExitStack() as exits:
        yield client, ObjectWriter(client, exits, "bucket", key, kms_key_id=kms_key_id)


async def test_an_upload_goes_past_the_proxy_to_a_network_of_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.0/8")
    with LoopbackServer({"bucket": MemoryObjects({})}, ServerConfig(writes="unconditional")) as server:
        async with writing(server.endpoint_url, "key") as (_, writer):
            assert await writer.put(b"data")


async def pieces_of(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@pytest.mark.parametrize("sizes", [(), (3,), (5 << 20, 1), (5 << 20, 5 << 20, 7)])
async def test_a_stream_of_any_pieces_becomes_one_object(moto_server: S3Server, sizes: tuple[int, ...]) -> None:
    pieces = [os.urandom(size_bytes) for size_bytes in sizes]
    async with writing(moto_server.endpoint_url, "another", kms_key_id="alias/models") as (_, writer):
        etag = await writer.beside("streamed").stream(pieces_of(*pieces))
    stored = moto_server.client.get_object(Bucket="bucket", Key="streamed")
    assert (stored["ServerSideEncryption"], stored["SSEKMSKeyId"]) == ("aws:kms", "alias/models")
    assert stored["ETag"] == etag
    assert stored["Body"].read() == b"".join(pieces)


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_a_stream_that_breaks_off_leaves_nothing_behind(moto_server: S3Server, count: int) -> None:
    async def broken() -> AsyncIterator[bytes]:
        for _ in range(count):
            yield bytes(5 << 20)
        raise OSError("the disk is gone")

    key = f"broken-{count}"
    async with writing(moto_server.endpoint_url, key) as (_, writer):
        with pytest.raises(OSError, match="the disk is gone"):
            await writer.stream(broken())
    assert "Contents" not in moto_server.client.list_objects_v2(Bucket="bucket", Prefix=key)
    assert not moto_server.client.list_multipart_uploads(Bucket="bucket", Prefix=key).get("Uploads")


@pytest.mark.parametrize("replaces", ["", module.NO_OBJECT])
async def test_each_object_has_its_md5(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch, replaces: str) -> None:
    send, sent = HttpxSession.send, list[str]()

    async def note(session: HttpxSession, request: AWSPreparedRequest) -> object:
        md5 = request.headers.get("Content-MD5", "")
        sent.append(md5.decode() if isinstance(md5, bytes) else md5)
        return await send(session, request)

    monkeypatch.setattr(HttpxSession, "send", note)
    async with writing(moto_server.endpoint_url, f"locked-{bool(replaces)}") as (_, writer):
        await writer.put(b"-", replaces=replaces)
    assert sent == ["M21evFQ2U05h0W5j3fyjJw=="]


@pytest.mark.parametrize(
    ("cancelled", "deadlines"),
    [("never", [300.0]), ("before", [8.0]), ("as a part fails", [8.0]), ("meanwhile", [300.0, 8.0])],
)
async def test_aborts_hurry_when_asked(monkeypatch: pytest.MonkeyPatch, cancelled: str, deadlines: list[float]) -> None:
    given_s: list[float] = []

    async def request(_: object, operation: str, *, deadline_s: float = 0.0, **__: object) -> dict[str, object]:
        await trio.lowlevel.checkpoint()
        if operation == "create_multipart_upload":
            return {"UploadId": "u"}
        if operation == "upload_part":
            if cancelled == "before":
                scope.cancel()
            if cancelled == "as a part fails" and not scope.cancel_called:
                scope.cancel()
                raise ServiceError("no answer")
            await trio.lowlevel.checkpoint()
            raise ServiceError("no answer")
        given_s.append(deadline_s)
        if cancelled == "as a part fails":
            raise ServiceError("no answer")
        if cancelled == "meanwhile":
            scope.cancel()
            await trio.lowlevel.checkpoint()
        return {}

    monkeypatch.setattr(ObjectWriter, "_request", request)
    async with writing("http://127.0.0.1:1", "key") as (_, writer):
        told = pytest.raises(ServiceError) if cancelled in {"never", "as a part fails"} else nullcontext()
        with trio.CancelScope() as scope, told:
            await writer.stream(pieces_of(*PARTS))
    assert given_s == deadlines


async def test_a_write_that_is_cancelled_while_it_connects_raises_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """An abort is made again in a hurry only then. A nursery of trio tries the addresses of a host."""

    async def try_for_ever(**_: object) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            scope.cancel()

    monkeypatch.setattr("trio.open_tcp_stream", try_for_ever)
    async with writing("http://127.0.0.1:1", "key") as (_, writer):
        with trio.CancelScope() as scope, pytest.raises(trio.Cancelled) as caught:
            await writer.put(b"")
    assert caught.type is trio.Cancelled


async def test_requests_wait_for_a_service_or_for_keys_together(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    fails = True

    async def once(*_: object) -> dict[str, object]:
        await trio.lowlevel.checkpoint()
        if fails:
            error = AccessError("The AWS credentials have expired.")
            raise RetryableError(error, Failure(kind=Kind.UNREACHABLE, detail="expired"), is_read=True)
        return {"ETag": "e"}

    monkeypatch.setattr(ObjectWriter, "_request_once", once)
    client, retries = S3Client(S3Session(ConnectionConfig())), Retries()
    async with AsyncExitStack() as exits:
        writers = [ObjectWriter(client, exits, "bucket", key, retries=retries) for key in ("a", "b", "c")]
        for _ in range(2):
            fails, began_s = True, trio.current_time()
            for writer in writers:
                with pytest.raises(AccessError):
                    await writer.put(b"")
            assert 250 < trio.current_time() - began_s < 400
            fails = False
            await writers[0].put(b"")


async def test_an_empty_object_is_known_without_its_length(
    moto_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache, as a proxy, leaves it out."""
    send = HttpxSession.send

    async def without_length(session: HttpxSession, request: AWSPreparedRequest) -> Any:  # noqa: ANN401
        reply: Any = await send(session, request)
        reply.headers.pop("content-length", None)
        return reply

    monkeypatch.setattr(HttpxSession, "send", without_length)
    async with writing(moto_server.endpoint_url, "empty") as (_, writer):
        etag = await writer.stream(pieces_of())
        state = await writer.state()
        assert state is not None
        assert (state.etag, state.size_bytes) == (etag, 0)
        with pytest.raises(ServiceError, match="no ContentLength"):
            await writer.stream(pieces_of(b"data"))


@pytest.mark.parametrize("action", [WrongEtag('"another"'), WrongLength(1)])
async def test_another_object_in_the_place_of_the_written_one_is_an_error(action: Action) -> None:
    with LoopbackServer({"bucket": MemoryObjects({})}, ServerConfig(writes="conditional")) as server:
        server.faults.add(FaultRule(action=action, operation="HeadObject"))
        async with writing(server.endpoint_url, "key") as (_, writer):
            with pytest.raises(ServiceError, match="'s3://bucket/key' is not what was written"):
                await writer.stream(pieces_of(b"data"))


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_an_upload_that_ends_without_an_etag_is_known_by_those_of_its_parts(
    moto_server: S3Server, monkeypatch: pytest.MonkeyPatch, *, is_replaced: bool
) -> None:
    send = HttpxSession.send

    async def without_etag(session: HttpxSession, request: AWSPreparedRequest) -> Any:  # noqa: ANN401
        reply: Any = await send(session, request)
        if b"<CompleteMultipartUploadResult" in (text := await reply.content):
            reply._content = re.sub(b"<ETag>.*</ETag>", b"<ETag></ETag>", text)
            if is_replaced:
                moto_server.put("untold", b"another")
        return reply

    monkeypatch.setattr(HttpxSession, "send", without_etag)
    async with writing(moto_server.endpoint_url, "untold") as (_, writer):
        uploading = writer.stream(pieces_of(bytes(5 << 20), b"end"))
        if is_replaced:
            with pytest.raises(ServiceError, match="reply for 's3://bucket/untold' has no ETag"):
                await uploading
        else:
            assert await uploading == moto_server.client.head_object(Bucket="bucket", Key="untold")["ETag"]


@pytest.mark.parametrize("is_denied", [False, True])
async def test_the_check_of_a_place_sends_a_part_and_leaves_nothing(
    moto_server: S3Server, monkeypatch: pytest.MonkeyPatch, *, is_denied: bool
) -> None:
    """With a key of KMS, an upload is begun with kms:GenerateDataKey, and takes parts only with kms:Decrypt, too."""
    send, sent = HttpxSession.send, list[object]()

    async def answer(session: HttpxSession, request: AWSPreparedRequest) -> Any:  # noqa: ANN401
        if "partNumber=" not in request.url:
            return await send(session, request)
        sent.append(request.headers["Content-MD5"])
        if not is_denied:
            return await send(session, request)
        reply = AioAWSResponse(request.url, 403, {}, None)
        reply._content = b"<Error><Code>AccessDenied</Code></Error>"
        return reply

    monkeypatch.setattr(HttpxSession, "send", answer)
    async with writing(moto_server.endpoint_url, "checked", kms_key_id="alias/models") as (_, writer):
        with pytest.raises(AccessError, match="denies access to 's3://b") if is_denied else nullcontext():
            await writer.check_access()
    assert sent == [b"M21evFQ2U05h0W5j3fyjJw=="]
    assert not moto_server.client.list_multipart_uploads(Bucket="bucket", Prefix="checked").get("Uploads")
    assert "Contents" not in moto_server.client.list_objects_v2(Bucket="bucket", Prefix="checked")


@pytest.mark.parametrize(
    ("date", "is_one"),
    [
        ("Thu, 01 Jan 2099 00:00:00 -0000", True),
        *(
            (date, False)
            for date in ("yesterday", "Sat, 99 Nov 2026 08:00:00 GMT", f"Sat, 28 Nov {'9' * 20} 08:00:00 GMT")
        ),
    ],
)
async def test_a_senseless_date_is_refused(
    moto_server: S3Server, monkeypatch: pytest.MonkeyPatch, date: str, is_one: bool
) -> None:
    moto_server.put("dated", b"data")
    send = HttpxSession.send

    async def dated(session: HttpxSession, request: AWSPreparedRequest) -> Any:  # noqa: ANN401
        reply: Any = await send(session, request)
        reply.headers["date"] = date
        return reply

    monkeypatch.setattr(HttpxSession, "send", dated)
    async with writing(moto_server.endpoint_url, "dated") as (_, writer):
        with nullcontext() if is_one else pytest.raises(ServiceError, match="has a date that makes no sense"):
            await writer.state()


PARTS = (bytes(5 << 20), b"end")
SAME_SIZE = bytes((5 << 20) + 3)
GONE = b"<Error><Code>NoSuchUpload</Code></Error>"


class Completing:
    """Answers requests that complete an upload of parts with these replies, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *replies: tuple[int, bytes], is_done: bool) -> None:
        """With `is_done`, the first request does its work before its answer is lost, and the replies come after it."""
        self._replies = [*replies]
        self._is_done = is_done
        self._send = HttpxSession.send
        monkeypatch.setattr(HttpxSession, "send", lambda session, request: self._answer(session, request))

    async def _answer(self, session: HttpxSession, request: AWSPreparedRequest) -> Any:  # noqa: ANN401
        if request.method != "POST" or "uploadId=" not in request.url:
            return await self._send(session, request)
        if self._is_done:
            self._is_done = False
            await self._send(session, request)
            raise HTTPClientError(error=ConnectionResetError(errno.ECONNRESET, "reset"))
        status, body = self._replies.pop(0)
        reply = AioAWSResponse(request.url, status, {}, None)
        reply._content = body
        return reply


@pytest.mark.parametrize("is_conditional", [False, True])
async def test_an_upload_whose_last_answer_is_lost_is_whole_although_it_is_gone(
    moto_server: S3Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_conditional: bool
) -> None:
    moto_server.put("lost", SAME_SIZE)
    replaces = moto_server.client.head_object(Bucket="bucket", Key="lost")["ETag"] if is_conditional else ""
    Completing(monkeypatch, (404, GONE), is_done=True)
    async with writing(moto_server.endpoint_url, "lost") as (_, writer):
        etag = await writer.stream(pieces_of(*PARTS), replaces=replaces)
    assert etag == moto_server.client.head_object(Bucket="bucket", Key="lost")["ETag"]
    assert "are still there" not in caplog.text


async def test_a_conditional_write_whose_answer_is_lost_is_no_conflict(
    moto_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, lost = HttpxSession.send, list[str]()

    async def lose_first(session: HttpxSession, request: AWSPreparedRequest) -> object:
        reply = await send(session, request)
        if request.method == "PUT" and not lost:
            lost.append(request.url)
            raise HTTPClientError(error=ConnectionResetError(errno.ECONNRESET, "reset"))
        return reply

    monkeypatch.setattr(HttpxSession, "send", lose_first)
    async with writing(moto_server.endpoint_url, "lost-put") as (_, writer):
        etag = await writer.put(b"ours", replaces=module.NO_OBJECT)
        with pytest.raises(WriteConflictError):
            await writer.put(b"another", replaces=module.NO_OBJECT)
    assert lost
    assert etag == moto_server.client.head_object(Bucket="bucket", Key="lost-put")["ETag"]


async def test_an_upload_that_something_has_aborted_is_an_error(
    moto_server: S3Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Completing(monkeypatch, (404, GONE), is_done=False)
    send = ObjectWriter._request_once

    async def once(writer: ObjectWriter, operation: str, arguments: dict[str, object]) -> Any:  # noqa: ANN401
        if operation == "abort_multipart_upload":
            raise UploadGoneError("")
        return await send(writer, operation, arguments)

    monkeypatch.setattr(ObjectWriter, "_request_once", once)
    async with writing(moto_server.endpoint_url, "aborted") as (_, writer):
        with pytest.raises(UploadGoneError, match="upload to 's3://bucket/aborted' is gone before its end"):
            await writer.stream(pieces_of(*PARTS))
    assert "are still there" not in caplog.text


@pytest.mark.parametrize("body", [b"", b"<html>welcome</html>"])
async def test_an_answer_without_an_etag_does_not_make_an_older_object_of_the_same_size_the_new_one(
    moto_server: S3Server, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    moto_server.put("same-size", SAME_SIZE)
    Completing(monkeypatch, (200, body), is_done=False)
    async with writing(moto_server.endpoint_url, "same-size") as (_, writer):
        with pytest.raises(ServiceError, match="reply for 's3://bucket/same-size' has no ETag"):
            await writer.stream(pieces_of(*PARTS))
    assert not moto_server.client.list_multipart_uploads(Bucket="bucket", Prefix="same-size").get("Uploads")


@pytest.mark.parametrize(
    ("trouble", "refusal"),
    [
        ("outage", "cannot be reached"),
        ("handshake", "No secure connection"),
        ("expired", "have expired"),
        ("no credentials", "gives no AWS credentials"),
    ],
)
@pytest.mark.parametrize("outlives_outages", [False, True])
async def test_a_writer_outlives_an_outage_and_waits_for_credentials_if_it_is_to(
    monkeypatch: pytest.MonkeyPatch, trouble: str, refusal: str, *, outlives_outages: bool
) -> None:
    monkeypatch.setattr("fastfuse.s3.retry_policy.FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr("fastfuse.s3.credentials._LEAST_RENEWAL_PAUSE", timedelta(0))
    # More than a command has attempts.
    times = 3 * attempts(Kind.UNREACHABLE, is_read=False)
    failures, send = iter(range(times)), HttpxSession.send
    unreachable = SSLError if trouble == "handshake" else EndpointConnectionError

    async def send_later(session: HttpxSession, request: AWSPreparedRequest) -> object:
        if next(failures, None) is not None:
            raise unreachable(endpoint_url=request.url, error="")
        return await send(session, request)

    async def resolve() -> Credentials:
        if next(failures, None) is not None:
            raise ServiceError("The instance gives no AWS credentials now.")
        return Credentials(access_key="later", secret_key="s")

    with LoopbackServer({"bucket": MemoryObjects({})}, ServerConfig(writes="unconditional")) as server:
        async with opened(server.endpoint_url) as client, AsyncExitStack() as exits:
            match trouble:
                case "outage" | "handshake":
                    monkeypatch.setattr(HttpxSession, "send", send_later)
                case "expired":
                    server.faults.add(FaultRule(action=EXPIRED_TOKEN, operation="PutObject", times=times))
                case _:
                    client.session.credentials = CredentialSource(resolve)
            writer = ObjectWriter(client, exits, "bucket", "key", outlives_outages=outlives_outages)
            putting = writer.put(b"data")
            if outlives_outages:
                assert await putting == (await client.head("bucket", "key")).etag
            else:
                with pytest.raises((ServiceError, AccessError), match=refusal):
                    await putting


async def test_what_may_not_be_read_again_counts_as_written() -> None:
    with LoopbackServer({"bucket": MemoryObjects({})}, ServerConfig(writes="conditional")) as server:
        rule = server.faults.add(FaultRule(action=ACCESS_DENIED, operation="HeadObject"))
        async with writing(server.endpoint_url, "key") as (client, writer):
            await writer.stream(pieces_of(b"data"))
            assert server.faults.hits(rule) == 1
            server.faults.clear()
            assert (await client.head("bucket", "key")).size_bytes == 4


async def test_an_attempt_that_failed_does_not_keep_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    send, failures = HttpxSession.send, iter([False, True, False])

    async def lose(session: HttpxSession, request: AWSPreparedRequest) -> object:
        if next(failures):
            raise HTTPClientError(error=ConnectionResetError(errno.ECONNRESET, "reset"))
        return await send(session, request)

    monkeypatch.setattr(HttpxSession, "send", lose)
    body, references = os.urandom(1000), list[int]()
    with LoopbackServer({"bucket": MemoryObjects({})}, ServerConfig(writes="unconditional")) as server:
        async with writing(server.endpoint_url, "key") as (_, writer):
            gc.disable()
            try:
                for _ in range(2):
                    await writer.put(body)
                    references.append(sys.getrefcount(body))
            finally:
                gc.enable()
    assert references[0] == references[1]


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_an_upload_that_failed_keeps_no_piece(monkeypatch: pytest.MonkeyPatch, *, is_cancelled: bool) -> None:
    async def request(_: ObjectWriter, operation: str, **arguments: object) -> dict[str, object]:
        if operation != "upload_part":
            return {"UploadId": "id"}
        if is_cancelled:
            scope.cancel()
            await trio.sleep_forever()
        raise ServiceError(f"no answer to {len(arguments)} arguments")

    monkeypatch.setattr(ObjectWriter, "_request", request)
    pieces = [os.urandom(1000) for _ in PARTS]
    before = [sys.getrefcount(piece) for piece in pieces]
    async with writing("http://127.0.0.1:1", "key") as (_, writer):
        gc.disable()
        try:
            with trio.CancelScope() as scope, suppress(ServiceError):
                await writer.stream(pieces_of(*pieces))
            await trio.lowlevel.checkpoint()  # until then trio keeps the last cancellation
            assert [sys.getrefcount(piece) for piece in pieces] == before
        finally:
            gc.enable()


async def test_a_body_goes_in_large_chunks(moto_server: S3Server, fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    send = HttpxSession.send

    async def note(session: HttpxSession, request: AWSPreparedRequest) -> object:
        chunks = [chunk async for chunk in request.body]
        sizes.extend(map(len, chunks))
        request.body = b"".join(chunks)
        return await send(session, request)

    monkeypatch.setattr(HttpxSession, "send", note)
    os.write(fd, b"\n" * (3 << 18))
    async with opened(moto_server.endpoint_url) as client:
        await upload(client, fd, "bucket", "newlines")
    assert sizes[:3] == [1 << 18] * 3


async def test_a_body_that_stalls_is_sent_again_with_as_long_for_each_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow link, which several parts share, takes seconds for a chunk."""
    send, timeouts = httpx2.AsyncHTTPTransport.handle_async_request, []

    async def stall_first(transport: httpx2.AsyncHTTPTransport, request: httpx2.Request) -> httpx2.Response:
        timeouts.append(request.extensions["timeout"])
        if len(timeouts) == 1:
            raise httpx2.WriteTimeout("")
        return await send(transport, request)

    monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", stall_first)
    counters = Counters()
    with LoopbackServer({"bucket": MemoryObjects({})}, ServerConfig(writes="unconditional")) as server:
        session = S3Session(ConnectionConfig(endpoint_url=server.endpoint_url, region="us-east-1"))
        async with AsyncExitStack() as exits:
            writer = ObjectWriter(S3Client(session), exits, "bucket", "key", retries=Retries(counters))
            await writer.put(b"data")
    assert counters.get("fastfuse_retries", "broken") == 1
    assert [timeout["write"] for timeout in timeouts] == [stall_timeout_s(session.config)] * 2
